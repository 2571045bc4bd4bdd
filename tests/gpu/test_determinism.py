"""Plans that say so give the same bits on every run, whatever the memory held; `-rP` prints the tables."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.answer import Decline
from graphdnn.engines.contract import Policy
from graphdnn.engines.cudnn.anatomy import Anatomy
from graphdnn.engines.cudnn.estimate import engine_class
from graphdnn.engines.cudnn.plans import PlanName
from graphdnn.ir.region import Region
from graphdnn.ir.types import DType, channels_last, row_major
from graphdnn.runtime.device import CudaDevice
from tests.engines.cudnn.layouts import spatial_last, whole
from tests.engines.cudnn.regions import attention, bias, columns, convolution, norm, product, residual
from tests.engines.cudnn.surface_graphs import GRAPHS, ROW_MAJOR
from tests.engines.cudnn.test_surface import PATTERNS
from tests.gpu.plan_runs import Stage, offered
from tests.gpu.test_cudnn import drawn

pytestmark = pytest.mark.gpu

Rng = np.random.Generator
ROOT = Path(__file__).parents[2]
RUNS = 10
EACH = 2
"""Plans of one engine of cuDNN that are run; the others differ in knobs."""


def transposed() -> Region:
    g = gd.GraphBuilder("transposed")
    x = g.input("x", (4, 64, 28, 28), gd.float16, strides=channels_last((4, 64, 28, 28)))
    w = g.input("w", (64, 48, 3, 3), gd.float16, strides=channels_last((64, 48, 3, 3)))
    return whole(g.build({"y": g.conv_transpose(x, w, stride=2, padding=1, output_padding=1)}), spatial_last)


def single(build: Callable[[gd.GraphBuilder], object], layout: object = row_major) -> Region:
    g = gd.GraphBuilder("single")
    return whole(g.build({"y": build(g)}), layout)  # type: ignore[arg-type, dict-item]


def deep(dtype: DType) -> Region:
    """Few tiles and long sums: what a library splits along the sum."""
    return product((16, 8192), (8192, 64), dtype, finish=columns)


REGIONS: dict[str, Callable[[], Region]] = {
    "conv, few pixels": lambda: convolution((1, 512, 7, 7), 512),
    "conv, bias, few pixels": lambda: convolution((1, 512, 7, 7), 512, finish=lambda g, y: g.relu(bias(g, y))),
    "conv, residual": lambda: convolution((4, 64, 28, 28), 64, finish=lambda g, y: g.silu(residual(g, y))),
    "conv, float32": lambda: convolution((1, 256, 9, 7), 128, dtype=gd.float32, finish=bias),
    "conv, float32, plain": lambda: convolution((1, 256, 9, 7), 128, dtype=gd.float32),
    "conv, bfloat16, odd": lambda: convolution((3, 31, 17, 13), 33, dtype=gd.bfloat16),
    "depthwise": lambda: convolution((4, 96, 28, 28), 96, groups=96, finish=bias),
    "transposed": transposed,
    "product, deep, float16": lambda: deep(gd.float16),
    "product, deep, bfloat16": lambda: deep(gd.bfloat16),
    "product, deep, float32": lambda: deep(gd.float32),
    "product, one row": lambda: product((1, 8192), (8192, 512)),
    "product, batched": lambda: product((6, 65, 1024), (6, 1024, 65)),
    "product, gelu": lambda: product((128, 4096), (4096, 256), finish=lambda g, y: g.gelu(columns(g, y))),
    "layer norm": lambda: norm((512, 4096)),
    "rms norm, few rows": lambda: norm((3, 8192), gd.bfloat16, rms=True),
    "attention": lambda: attention((2, 6, 300, 64), (2, 3, 300, 64), 64, causal="top_left"),
    "attention, one query": lambda: attention((2, 6, 1, 64), (2, 3, 3000, 64), 64),
    "softmax": lambda: single(lambda g: g.softmax(g.input("x", (33, 5000), gd.float16))),
    "sum": lambda: single(lambda g: g.reduce_sum(g.input("x", (3, 100_000), gd.float32), axes=1)),
    "sum of all": lambda: single(lambda g: g.reduce_sum(g.input("x", (300, 1000), gd.float32), axes=(0, 1))),
    "group norm": lambda: single(
        lambda g: g.group_norm(
            g.input("x", (2, 64, 33, 31), gd.float16, strides=channels_last((2, 64, 33, 31))),
            g.input("s", (64,), gd.float16),
            g.input("t", (64,), gd.float16),
            groups=8,
        ),
        spatial_last,
    ),
}


def varying(device: CudaDevice, name: str, region: Region, policy: Policy, rng: Rng) -> list[str]:
    """Plans that say that they repeat their bits, and do not.

    All that were run are printed, and cuDNN's engines among them as a row for the table KNOWN.
    """
    liars: list[str] = []
    ran: set[int] = set()
    count = 0
    with device:
        stage = Stage(device, region, drawn(region.graph, rng))
        for one in offered(device, region, policy, EACH):
            if isinstance(one.plan, Decline):
                print(f"{name:28} {one!s:60} {one.plan}")
                continue
            count += 1
            if one.candidate.engine == "cudnn":
                ran.add(PlanName.parse(one.candidate.name).engine)
            first = stage.run(one.plan, 0)
            same = 1
            for number in range(1, RUNS):
                again = stage.run(one.plan, (0xFF, 0x3C, 0x01, 0x80)[number % 4])
                same += all(again[v].tobytes() == first[v].tobytes() for v in first)
            says = "steady" if one.candidate.deterministic else "varies"
            print(f"{name:28} {one!s:60} says it {says}: {same} of {RUNS} runs alike")
            if one.candidate.deterministic and same < RUNS:
                liars.append(str(one))
    assert count, f"{name}: no plan was run"
    if ran:
        print(f'KNOWN "{engine_class(Anatomy(region))}": {sorted(ran)}')
    return liars


@pytest.mark.parametrize("name", REGIONS)
def test_steady_plans_repeat_their_bits(name: str, device: CudaDevice, rng: Rng) -> None:
    assert not varying(device, name, REGIONS[name](), Policy(), rng)


@pytest.mark.parametrize("name", ["conv, float32", "product, deep, float32", "product, deep, float16"])
@pytest.mark.parametrize("precision", ["tf32", "reduced"])
def test_steady_plans_of_lower_precision_repeat_their_bits(
    name: str, precision: str, device: CudaDevice, rng: Rng
) -> None:
    assert not varying(device, name, REGIONS[name](), Policy(precision=precision), rng)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [n for n in GRAPHS if PATTERNS[n]["accepted"]])
def test_patterns_of_the_surface_repeat_their_bits(name: str, device: CudaDevice, rng: Rng) -> None:
    region = whole(GRAPHS[name](), row_major if name in ROW_MAJOR else spatial_last)
    assert not varying(device, name, region, Policy(), rng)


SCRIPT = """
import hashlib
import numpy as np
import graphdnn as gd

rng = np.random.default_rng(5)
g = gd.GraphBuilder("model")

def weights(*shape):
    return g.constant((rng.standard_normal(shape) / np.prod(shape[1:]) ** 0.5).astype(np.float16))

x = g.input("x", (2, 3, 33, 31), gd.float16)
y = g.relu(g.bias(g.conv(x, weights(64, 3, 3, 3), padding=1), weights(64, 1, 1), axis=None))
y = g.relu(g.add(g.conv(y, weights(64, 64, 3, 3), padding=1), y))
y = g.max_pool(y, kernel=3, stride=2, padding=1)
t = g.transpose(g.reshape(y, (2, 64, -1)), (0, 2, 1))
t = g.layer_norm(t, weights(64), weights(64))
q, k, v = (g.transpose(g.reshape(g.matmul(t, weights(64, 64)), (2, -1, 4, 16)), (0, 2, 1, 3)) for _ in range(3))
o = g.reshape(g.transpose(g.attention(q, k, v), (0, 2, 1, 3)), (2, -1, 64))
o = g.add(t, g.matmul(o, weights(64, 64)))
z = g.matmul(g.gelu(g.matmul(o, weights(64, 256))), weights(256, 64))
graph = g.build({"z": z, "mean": g.reduce_mean(z, axes=1)})
exe = gd.compile(graph, target="cuda", options=gd.CompileOptions(deterministic=True))
out = exe({"x": np.random.default_rng(6).standard_normal((2, 3, 33, 31)).astype(np.float16)})
for region in exe.report.regions:
    print(region.name, region.engine, region.plan, region.deterministic)
for name in sorted(out):
    print(name, hashlib.sha256(np.ascontiguousarray(out[name]).tobytes()).hexdigest())
"""


def test_two_processes_give_equal_bits_and_plans(tmp_path: Path) -> None:
    said = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "GRAPHDNN_CACHE_DIR": str(tmp_path / seed)}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], capture_output=True, text=True, cwd=ROOT, env=environment, check=False
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    print(said[0])
    assert said[0] == said[1]
    assert "False" not in said[0]
