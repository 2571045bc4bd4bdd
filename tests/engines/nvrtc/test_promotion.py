"""What the builder promotes, in generated kernels: run on the host against the definition, and compiled for devices."""

from pathlib import Path

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.engines.nvrtc.compile import compile_cubin
from graphdnn.ir.types import DTYPES, DType
from tests.engines.nvrtc.host_kernels import HostKernels, check_outputs, kernel_of
from tests.engines.nvrtc.promoted_regions import ONE, TWO, arrays, regions


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> HostKernels:
    made = {name: region for dtype in DTYPES.values() for name, region in regions(dtype).items()}
    folder: Path = tmp_path_factory.mktemp("kernels")
    return HostKernels({name: kernel_of(region) for name, region in made.items()}, folder)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_kernels_promote_as_the_definition(dtype: DType, compiled: HostKernels, rng: np.random.Generator) -> None:
    for case, region in regions(dtype).items():
        given = arrays(region, rng)
        found = compiled.run(case, region, given)
        wanted = gd.evaluate(region.graph, given, dtype=gd.float64)
        check_outputs(region, found, wanted, case)


def test_no_function_is_refused_everywhere() -> None:
    made = {name for dtype in DTYPES.values() for region in regions(dtype).values() for name in region.graph.outputs}
    assert made == {*ONE, *TWO}


@pytest.mark.parametrize("case", ["bool", "int64", "bool_bool", "int8_bool", "bool_float16", "int32_uint8"])
def test_they_compile_for_devices(case: str) -> None:
    region = regions(DTYPES[case.split("_")[0]])[case]
    cubin = compile_cubin(kernel_of(region).source, "sm_90")
    assert isinstance(cubin, bytes), cubin
