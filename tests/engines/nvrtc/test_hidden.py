"""Case A3 end to end: the NVRTC library hidden from the loader of a whole Python, in which nothing is patched."""

import json
import re
from pathlib import Path

import pytest

from graphdnn.engines.nvrtc.compile import LIBRARY
from tests.engines.nvrtc.hidden import python_without_nvrtc, said

INSTALL = "pip install 'graphdnn[cuda13]'"

ONE_REGION = """
from dataclasses import replace
import graphdnn as gd
from graphdnn.engines.contract import Policy
from graphdnn.engines.nvrtc.engine import NvrtcEngine
from graphdnn.ir.region import Region

g = gd.GraphBuilder()
graph = g.build({"y": g.softmax(g.input("x", (4, 64), gd.float16))})
region = Region.of(graph, graph.nodes)
described = gd.Target.named("h200")
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return python_without_nvrtc(tmp_path_factory.mktemp("hidden") / "env")


def printed(python: Path, script: str) -> list[str]:
    done = said(python, "-c", script)
    assert not done.returncode, done.stderr
    return done.stdout.splitlines()


def test_a_kernel_cannot_be_compiled_for_want_of_a_library_that_is_named(python: Path) -> None:
    script = """
from graphdnn.engines.nvrtc.compile import compile_cubin
answer = compile_cubin('extern "C" __global__ void f() {}', "sm_90")
print(answer.code, answer.reason, answer.fix, sep="\\n")
"""
    code, reason, fix = printed(python, script)
    assert code == "setup"
    assert "libnvrtc" in reason
    assert reason.endswith(f"{LIBRARY} brings it")
    assert fix == f"install {LIBRARY}"


def test_the_engine_declines_a_device_that_is_here_and_plans_for_one_that_is_not(python: Path) -> None:
    script = """
nvrtc = NvrtcEngine()
print(nvrtc.supports(region, replace(described, present=True), Policy()))
print(bool(nvrtc.supports(region, described, Policy())))
(chosen,) = gd.compile(graph, target=described).report.regions
print(chosen.engine)
"""
    declined, supported, engine = printed(python, ONE_REGION + script)
    assert LIBRARY in declined
    assert (supported, engine) == ("True", "nvrtc")


def test_the_doctor_says_what_to_install(python: Path) -> None:
    done = said(python, "-m", "graphdnn", "doctor")
    assert done.returncode == 1
    (line,) = (line for line in done.stdout.splitlines() if " NVRTC: " in line)
    assert re.fullmatch(rf"missing  NVRTC: .*libnvrtc\.so\.13 .*; {re.escape(INSTALL)} brings {LIBRARY}", line), line
    for other in ("cuDNN", "cuBLASLt"):
        assert f"ok       {other}: " in done.stdout


def test_cudnn_proposes_plans_all_the_same(python: Path) -> None:
    done = said(python, "-m", "tests.engines.cudnn.offline", "conv_bias_relu")
    assert not done.returncode, done.stderr
    names = [name for name, *_ in json.loads(done.stdout)]
    assert names
    assert all(name.startswith("eng") for name in names)
