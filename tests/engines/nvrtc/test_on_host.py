"""Kernels with movement inside, run on the host against the definition."""

from pathlib import Path

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.answer import Decline
from graphdnn.engines.nvrtc.engine import family_of
from graphdnn.engines.nvrtc.recipe import Kernel
from graphdnn.ir.region import Region
from graphdnn.target import Target
from tests.engines.nvrtc.host_kernels import HostKernels
from tests.engines.nvrtc.moving_regions import MOVING, Moving
from tests.numbers import TOLERANCE, relative_error

H200 = Target.named("h200")


def kernel_of(region: Region) -> Kernel:
    family = family_of(region)
    assert not isinstance(family, Decline), family
    (kernel,) = family.generate(region, H200).kernels
    return kernel


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
    for name, value in region.graph.outputs.items():
        dtype = value.type.dtype
        if not dtype.is_float:
            np.testing.assert_array_equal(found[value], wanted[name])
            continue
        assert relative_error(found[value], wanted[name]) <= TOLERANCE[dtype.name]
