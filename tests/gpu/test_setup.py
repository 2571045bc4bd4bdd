"""Case A3 on a device without NVRTC: what cuDNN runs alone runs, and what needs a kernel says what to install."""

import json
from pathlib import Path

import pytest

from graphdnn.engines.nvrtc.compile import LIBRARY
from tests.engines.nvrtc.hidden import python_without_nvrtc, said
from tests.numbers import TOLERANCE

pytestmark = pytest.mark.gpu

CONVOLUTION = """
import json
import numpy as np
import graphdnn as gd

rng = np.random.default_rng(7)
channels_last = (64 * 16 * 16, 1, 64 * 16, 64)
g = gd.GraphBuilder("block")
x = g.input("x", (2, 64, 16, 16), gd.float16, strides=channels_last)
w = g.constant((rng.standard_normal((64, 64, 3, 3)) / 24).astype(np.float16), name="w")
y = g.relu(g.bias(g.conv(x, w, padding=1), g.constant(np.ones(64, np.float16), name="b"), axis=1))
graph = g.build({"y": y}, strides={"y": channels_last})

exe = gd.compile(graph, target="cuda", options=gd.CompileOptions(cache_dir=""))
given = rng.standard_normal((2, 16, 16, 64)).astype(np.float16).transpose(0, 3, 1, 2)
found, wanted = (f({"x": given})["y"].astype(np.float64) for f in (exe, lambda x: gd.evaluate(graph, x, gd.float64)))
print(json.dumps({
    "engines": [r.engine for r in exe.report.regions],
    "error": float(np.abs(found - wanted).max() / np.abs(wanted).max()),
    "declined": [(c.code, c.reason) for c in exe.report.candidates if c.engine == "nvrtc"],
}))
"""

SOFTMAX = """
import graphdnn as gd

g = gd.GraphBuilder("rows")
graph = g.build({"y": g.softmax(g.input("x", (64, 512), gd.float16))})
try:
    gd.compile(graph, target="cuda", options=gd.CompileOptions(cache_dir=""))
except gd.SetupError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return python_without_nvrtc(tmp_path_factory.mktemp("hidden") / "env")


def printed(python: Path, script: str) -> str:
    done = said(python, "-c", script)
    assert not done.returncode, done.stderr
    return done.stdout


def test_what_cudnn_runs_alone_runs_without_nvrtc(python: Path) -> None:
    found = json.loads(printed(python, CONVOLUTION))
    assert found["engines"] == ["cudnn"]
    assert found["error"] <= TOLERANCE["float16"]
    assert found["declined"]
    for code, reason in found["declined"]:
        assert code == "setup"
        assert "libnvrtc" in reason
        assert LIBRARY in reason


def test_what_needs_a_generated_kernel_names_the_library_and_its_package(python: Path) -> None:
    (sentence,) = printed(python, SOFTMAX).splitlines()
    assert "libnvrtc" in sentence
    assert f"{LIBRARY} brings it" in sentence


def test_the_doctor_says_what_to_install(python: Path) -> None:
    done = said(python, "-m", "graphdnn", "doctor")
    assert done.returncode == 1
    (line,) = (line for line in done.stdout.splitlines() if " NVRTC: " in line)
    assert line.startswith("missing  NVRTC: ")
    assert line.endswith(f"pip install 'graphdnn[cuda13]' brings {LIBRARY}")
    assert "ok       GPU: " in done.stdout
