"""float32 means float32: every plan that is offered in ieee mode, against float64; `-rP` prints the tables."""

from collections.abc import Callable

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.answer import Decline
from graphdnn.engines.contract import Policy
from graphdnn.engines.cudnn.anatomy import Anatomy
from graphdnn.engines.cudnn.estimate import engine_class
from graphdnn.engines.cudnn.tables import FLOAT32_LIMIT
from graphdnn.ir.graph import Value
from graphdnn.ir.types import channels_last, row_major
from graphdnn.runtime.device import CudaDevice
from tests.engines.cudnn.layouts import spatial_last, whole
from tests.gpu.plan_runs import Stage, offered
from tests.gpu.test_cudnn import drawn
from tests.numbers import TOLERANCE, relative_error

pytestmark = pytest.mark.gpu

Rng = np.random.Generator
Builder = gd.GraphBuilder


def given(g: Builder, name: str, *shape: int) -> Value:
    """A float32 input, channels-last where it is an image."""
    return g.input(name, shape, gd.float32, strides=channels_last(shape) if len(shape) in (4, 5) else None)


def conv(
    g: Builder, shape: tuple[int, ...] = (2, 64, 16, 15), filters: int = 64, size: int = 3, **attributes: int
) -> Value:
    kernel = (size,) * (len(shape) - 2)
    w = given(g, "w", filters, shape[1] // attributes.get("groups", 1), *kernel)
    return g.conv(given(g, "x", *shape), w, **{"padding": size // 2, **attributes})  # type: ignore[arg-type]


def bias(g: Builder, y: Value) -> Value:
    return g.bias(y, g.input("b", (1, y.type.shape[1], *(1,) * (y.type.rank - 2)), gd.float32))


def residual(g: Builder, y: Value) -> Value:
    return g.add(y, given(g, "r", *y.type.shape))


def matmul(g: Builder, a: tuple[int, ...] = (65, 300), b: tuple[int, ...] = (300, 129)) -> Value:
    return g.matmul(g.input("a", a, gd.float32), g.input("b", b, gd.float32))


def columns(g: Builder, y: Value) -> Value:
    return g.add(y, g.input("c", y.type.shape[-1:], gd.float32))


def vector(g: Builder, name: str, length: int) -> Value:
    return g.input(name, (length,), gd.float32)


def attention(g: Builder) -> Value:
    q, k, v = (g.input(n, (2, 3, length, 40), gd.float32) for n, length in (("q", 33), ("k", 65), ("v", 65)))
    o = g.attention(q, k, v)
    assert isinstance(o, Value)
    return o


CONVOLUTIONS: dict[str, Callable[[Builder], Value]] = {
    "conv": conv,
    "conv, bias": lambda g: bias(g, conv(g)),
    "conv, bias, relu": lambda g: g.relu(bias(g, conv(g))),
    "conv, bias, residual, relu": lambda g: g.relu(residual(g, bias(g, conv(g)))),
    "conv, silu": lambda g: g.silu(conv(g)),
    "conv 1x1": lambda g: g.relu(bias(g, conv(g, size=1))),
    "conv, deep": lambda g: bias(g, conv(g, (1, 512, 7, 7), 512)),
    "grouped": lambda g: g.relu(bias(g, conv(g, groups=4))),
    "depthwise": lambda g: g.relu(bias(g, conv(g, (2, 24, 16, 15), 24, groups=24))),
    "dilated": lambda g: bias(g, conv(g, dilation=2, padding=2)),
    "strided": lambda g: g.relu(bias(g, conv(g, stride=2))),
    "conv, odd": lambda g: conv(g, (2, 3, 17, 13), 17),
    "conv, odd, residual": lambda g: g.relu(residual(g, conv(g, (2, 3, 17, 13), 17))),
    "conv 3-D": lambda g: conv(g, (2, 16, 6, 9, 7), 24),
    "conv 3-D, bias": lambda g: g.relu(bias(g, conv(g, (2, 16, 6, 9, 7), 24))),
    "transposed": lambda g: g.conv_transpose(given(g, "x", 2, 24, 9, 7), given(g, "w", 24, 16, 3, 3), stride=2),
}
PRODUCTS: dict[str, Callable[[Builder], Value]] = {
    "matmul": matmul,
    "matmul, batched": lambda g: matmul(g, (3, 65, 40), (3, 40, 33)),
    "matmul, bias": lambda g: columns(g, matmul(g)),
    "matmul, bias, relu": lambda g: g.relu(columns(g, matmul(g))),
    "matmul, gelu": lambda g: g.gelu(columns(g, matmul(g))),
    "matmul, residual": lambda g: g.add(matmul(g), g.input("r", (65, 129), gd.float32)),
    "matmul, broadcast": lambda g: matmul(g, (2, 1, 33, 40), (3, 40, 31)),
    "matmul, one row": lambda g: matmul(g, (1, 4096), (4096, 512)),
}
OTHERS: dict[str, Callable[[Builder], Value]] = {
    "layer norm": lambda g: g.layer_norm(given(g, "x", 9, 7, 320), vector(g, "s", 320), vector(g, "t", 320)),
    "rms norm": lambda g: g.rms_norm(given(g, "x", 9, 7, 320), vector(g, "s", 320)),
    "instance norm": lambda g: g.instance_norm(given(g, "x", 2, 24, 9, 7), vector(g, "s", 24), vector(g, "t", 24)),
    "group norm": lambda g: g.group_norm(given(g, "x", 2, 24, 9, 7), vector(g, "s", 24), vector(g, "t", 24), groups=4),
    "softmax": lambda g: g.softmax(given(g, "x", 33, 300)),
    "attention": attention,
    "max pooling": lambda g: g.max_pool(given(g, "x", 2, 24, 17, 13), kernel=3, stride=2, padding=1),
    "mean pooling": lambda g: g.avg_pool(given(g, "x", 2, 24, 17, 13), kernel=3, stride=2, padding=1),
    "sum": lambda g: g.reduce_sum(given(g, "x", 33, 3000), axes=1),
}
FLOAT32 = {**CONVOLUTIONS, **PRODUCTS, **OTHERS}
TAKEN_WHOLE = [n for n in FLOAT32 if n != "attention"]
"""No engine takes float32 attention as it is: its expansion runs."""


def graph_of(name: str) -> gd.Graph:
    g = Builder("float32")
    return g.build({"y": FLOAT32[name](g)})


def measured(device: CudaDevice, name: str, policy: Policy, rng: Rng) -> dict[str, tuple[str, float]]:
    """Of each plan that is offered and builds: what it says to compute in, and its error; all are printed."""
    graph = graph_of(name)
    region = whole(graph, row_major if name in PRODUCTS else spatial_last)
    arrays = drawn(region.graph, rng)
    wanted = gd.evaluate(region.graph, arrays, dtype=gd.float64)["y"]
    found: dict[str, tuple[str, float]] = {}
    with device:
        stage = Stage(device, region, arrays)
        for one in offered(device, region, policy):
            if isinstance(one.plan, Decline):
                print(f"{name:28} {one!s:60} {one.plan}")
                continue
            (array,) = stage.run(one.plan).values()
            error = relative_error(array, wanted)
            found[f"{one.candidate.engine} {one.candidate.name}"] = one.candidate.precision, error
            print(f"{name:28} {one!s:60} {one.candidate.precision:8} {error:.1e}")
    return found


@pytest.mark.parametrize("name", TAKEN_WHOLE)
def test_every_plan_of_ieee_mode_is_exact(name: str, device: CudaDevice, rng: Rng) -> None:
    found = measured(device, name, Policy(), rng)
    assert found, f"no engine offers a plan for {name} that builds"
    rough = {plan: error for plan, (_, error) in found.items() if error > FLOAT32_LIMIT}
    assert not rough, f"{name}: plans of ieee mode with errors above {FLOAT32_LIMIT}: {rough}"
    assert {words for words, _ in found.values()} == {"float32"}


@pytest.mark.parametrize("name", [*CONVOLUTIONS, *PRODUCTS])
def test_plans_of_tf32_mode_say_which_of_them_are_tf32(name: str, device: CudaDevice, rng: Rng) -> None:
    """What calls itself float32 there is; the last line of each region is a row for the table FLOAT32_ERRORS."""
    found = measured(device, name, Policy(precision="tf32"), rng)
    limits = {"float32": FLOAT32_LIMIT, "tf32": TOLERANCE["tf32"]}
    wrong = {plan: error for plan, (words, error) in found.items() if error > limits[words]}
    assert not wrong, f"{name}: {wrong}"
    by_engine: dict[int, float] = {}
    for plan, (_, error) in found.items():
        if plan.startswith("cudnn eng"):
            number = int(plan.removeprefix("cudnn eng").split("_")[0])
            by_engine[number] = max(error, by_engine.get(number, 0.0))
    kind = engine_class(Anatomy(whole(graph_of(name), row_major if name in PRODUCTS else spatial_last)))
    print(f'FLOAT32_ERRORS "{kind}": {{{", ".join(f"{n}: {e:.1e}" for n, e in sorted(by_engine.items()))}}}')


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
@pytest.mark.parametrize("name", FLOAT32)
def test_the_report_says_what_ran(name: str, precision: str, device: CudaDevice, rng: Rng) -> None:
    graph = graph_of(name)
    arrays = drawn(graph, rng)
    options = gd.CompileOptions(precision=precision, cache_dir=str(device.store.directory))
    exe = gd.compile(graph, target="cuda", options=options)
    error = relative_error(exe(arrays)["y"], gd.evaluate(graph, arrays, dtype=gd.float64)["y"])
    ran = {r.precision for r in exe.report.regions}
    print(f"{name:28} {precision}: {', '.join(sorted(ran))} {error:.1e}")
    assert ran <= ({"float32"} if precision == "ieee" else {"float32", "tf32"})
    assert error <= (TOLERANCE["tf32"] if "tf32" in ran else FLOAT32_LIMIT)
