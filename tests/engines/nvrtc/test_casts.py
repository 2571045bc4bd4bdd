"""Casts of floats that an integer type does not hold, in generated kernels run on the host."""

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.ir.region import Region
from graphdnn.ir.types import DTYPES, DType
from tests.engines.nvrtc.host_kernels import HostKernels, kernel_of

FLOATS = {t.name: t for t in DTYPES.values() if t.is_float}
INTEGERS = {t.name: t for t in DTYPES.values() if t.is_integer}
POWERS = [2.0**n for n in (7, 8, 15, 31, 32, 63, 64)]
NUMBERS = [*POWERS, *(-p for p in POWERS), -0.9, 300.5, np.inf, -np.inf, np.nan]


def region_of(source: DType) -> Region:
    g = gd.GraphBuilder()
    x = g.input("x", (len(NUMBERS),), source)
    graph = g.build({name: g.cast(x, dtype) for name, dtype in INTEGERS.items()})
    return Region(graph, graph.nodes)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> HostKernels:
    kernels = {name: kernel_of(region_of(source)) for name, source in FLOATS.items()}
    return HostKernels(kernels, tmp_path_factory.mktemp("kernels"))


@pytest.mark.parametrize("source", FLOATS)
def test_floats_are_held_within_integer_types(source: str, compiled: HostKernels) -> None:
    region = region_of(FLOATS[source])
    with np.errstate(over="ignore"):
        x = np.array(NUMBERS).astype(FLOATS[source].numpy)
    found = compiled.run(source, region, {"x": x})
    wanted = gd.evaluate(region.graph, {"x": x})
    by_name = {v.name: array for v, array in found.items()}
    for name, value in region.graph.outputs.items():
        assert by_name[value.name].tolist() == wanted[name].tolist(), name
