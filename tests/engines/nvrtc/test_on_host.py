"""Kernels with movement inside, and depthwise convolutions in every cut, run on the host against the definition."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.engines.nvrtc import depthwise, pointwise
from graphdnn.engines.nvrtc.engine import family_of
from graphdnn.engines.nvrtc.epilogue import anchor_with_epilogue
from graphdnn.engines.nvrtc.recipe import Anchored, Kernel
from graphdnn.ir.ops.movement import Convert
from graphdnn.ir.region import Region
from graphdnn.ir.types import DType, channels_last, row_major
from graphdnn.passes.layout.assign import assign_layouts
from graphdnn.target import Target
from tests.engines.cudnn.layouts import whole
from tests.engines.nvrtc.host_kernels import HostKernels, check_outputs, kernel_of
from tests.engines.nvrtc.moving_regions import MOVING, Moving
from tests.engines.nvrtc.random_moving import moving_graph
from tests.ir.samples import draw
from tests.numbers import TOLERANCE, relative_error

H200 = Target.named("h200")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> HostKernels:
    folder: Path = tmp_path_factory.mktemp("kernels")
    return HostKernels({case.name: kernel_of(case.region()) for case in MOVING}, folder)


@pytest.mark.parametrize("elements", [0, 1])
@pytest.mark.parametrize("case", MOVING, ids=str)
def test_movement_inside_a_kernel(case: Moving, elements: int, compiled: HostKernels, rng: np.random.Generator) -> None:
    """At addresses that allow vectors, and one element beside them."""
    region = case.region()
    arrays = case.arrays(region, rng)
    shift = elements * max(v.type.dtype.itemsize for v in (*region.inputs, *region.outputs))
    found = compiled.run(case.name, region, arrays, shift)
    wanted = gd.evaluate(region.graph, arrays, dtype=gd.float64)
    check_outputs(region, found, wanted, case.name)


@pytest.mark.parametrize("count", [60, pytest.param(600, marks=pytest.mark.slow)])
def test_random_movement_inside_a_kernel(count: int, tmp_path: Path, rng: np.random.Generator) -> None:
    """Laid out by hand, so that every view is written out, and by the pass, so that views are views."""
    regions: dict[str, Region] = {}
    for number in range(count):
        graph = moving_graph(rng)
        region = whole(graph, row_major) if number % 2 else laid_out_whole(graph)
        if family_of(region) is pointwise.FAMILY:
            regions[str(number)] = region
    assert len(regions) > count / 3
    kernels = HostKernels({name: kernel_of(region) for name, region in regions.items()}, tmp_path)
    for name, region in regions.items():
        arrays = {n: draw(v.type, rng) for n, v in region.graph.inputs.items()}
        found = kernels.run(name, region, arrays, 4 * int(rng.integers(2)))
        wanted = gd.evaluate(region.graph, arrays, dtype=gd.float64)
        for output, value in region.graph.outputs.items():
            dtype = value.type.dtype
            made = value if value in found else region.graph.producer[value].operands[0]
            error = relative_error(found[made], wanted[output])
            assert error <= (TOLERANCE[dtype.name] if dtype.is_float else 0), f"{region.graph}"


def laid_out_whole(graph: gd.Graph) -> Region:
    """All that computes; conversions at the graph's end copy what it wrote."""
    placed = assign_layouts(graph).graph
    return Region.of(placed, [n for n in placed.nodes if not isinstance(n.op, Convert)])


Shape = tuple[int, ...]

DEPTHWISE: dict[str, tuple[Shape, Shape, DType, dict[str, Any]]] = {
    "7x7": ((2, 24, 15, 14), (24, 1, 7, 7), gd.float16, {"padding": 3}),
    "stride_2": ((1, 66, 13, 17), (66, 1, 3, 3), gd.bfloat16, {"padding": 1, "stride": 2}),
    "odd_channels": ((3, 23, 7, 9), (23, 1, 5, 5), gd.float16, {"padding": 2}),
    "dilated": ((1, 20, 9, 9), (20, 1, 3, 3), gd.float32, {"padding": ((0, 2), (3, 1)), "dilation": (2, 3)}),
    "dilated_columns": ((1, 20, 9, 9), (20, 1, 3, 3), gd.float16, {"padding": ((1, 1), (2, 2)), "dilation": (1, 2)}),
    "skipping": ((1, 8, 9, 9), (8, 1, 2, 2), gd.float16, {"stride": 4}),
    "double": ((1, 4, 5, 6), (4, 1, 3, 3), gd.float64, {"padding": 1}),
}


def convolved(name: str) -> Region:
    x, w, dtype, attributes = DEPTHWISE[name]
    g = gd.GraphBuilder(name)
    y = g.conv(g.input("x", x, dtype, strides=channels_last(x)), g.input("w", w, dtype), groups=x[1], **attributes)
    y = g.relu(g.bias(y, g.input("b", (x[1],), dtype), axis=1))
    return whole(g.build({"y": y}))


def cuts(region: Region) -> dict[str, Kernel]:
    """Some of the ways to cut a depthwise convolution, every number of channels, rows and columns among them."""
    parts = anchor_with_epilogue(region)
    assert isinstance(parts, Anchored)
    recipes = [depthwise.recipe(region, parts, s) for s in [*depthwise.choices(parts)][::7]]
    return {r.name: r.kernels[0] for r in recipes}


@pytest.fixture(scope="module")
def convolutions(tmp_path_factory: pytest.TempPathFactory) -> HostKernels:
    folder: Path = tmp_path_factory.mktemp("convolutions")
    return HostKernels({f"{n} {c}": k for n in DEPTHWISE for c, k in cuts(convolved(n)).items()}, folder)


@pytest.mark.parametrize("name", DEPTHWISE)
def test_depthwise_in_every_cut(name: str, convolutions: HostKernels, rng: np.random.Generator) -> None:
    region = convolved(name)
    arrays = {n: draw(v.type, rng) for n, v in region.graph.inputs.items()}
    wanted = gd.evaluate(region.graph, arrays, dtype=gd.float64)["y"]
    (y,) = region.outputs
    for cut in cuts(region):
        for elements in (0, 1):
            found = convolutions.run(f"{name} {cut}", region, arrays, elements * y.type.dtype.itemsize)[y]
            assert relative_error(found, wanted, 1.0) <= TOLERANCE[y.type.dtype.name], cut
