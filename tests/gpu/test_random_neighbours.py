"""Random pointwise graphs around convolutions and products, and alone, by every engine of cuDNN that is offered."""

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.answer import Decline
from graphdnn.engines.contract import DevicePlan, Policy
from graphdnn.engines.cudnn.engine import CudnnEngine
from graphdnn.ir.graph import Graph
from graphdnn.ir.region import Region
from graphdnn.runtime.device import CudaDevice
from tests.engines.cudnn.random_neighbours import ANCHORS, IN_TF32, random_region, rounding_operands
from tests.gpu.test_cudnn import chosen, drawn, run
from tests.numbers import TOLERANCE, relative_error

pytestmark = pytest.mark.gpu

DRAWS = 40
"""Regions drawn until one is taken and some plan of it builds: the others have tests of their own."""


@pytest.mark.parametrize("number", range(12))
@pytest.mark.parametrize("kind", ANCHORS)
@pytest.mark.parametrize("dtype", [gd.float16, gd.bfloat16, gd.float32], ids=str)
def test_what_stands_around_a_product(
    dtype: gd.DType, kind: str, number: int, device: CudaDevice, rng: np.random.Generator
) -> None:
    """Against the largest value on the way, since sums cancel.

    What stands behind a product may raise the error of operands that are rounded to TF32, along each way to an output:
    there a plan is held to the exact result or to that of rounded operands.
    """
    tf32 = dtype == gd.float32 and kind in IN_TF32
    with device:
        region, everything, plans = drawn_plans(device, dtype, kind, Policy(precision="tf32" if tf32 else "ieee"), rng)
        arrays = drawn(region.graph, rng)
        wanted = gd.evaluate(region.graph, arrays, dtype=gd.float64)
        scale = max(float(np.abs(a).max()) for a in gd.evaluate(everything, arrays, dtype=gd.float64).values())
        limit = TOLERANCE["tf32" if tf32 else dtype.name]
        references = [wanted]
        if tf32:
            references.append(gd.evaluate(rounding_operands(region.graph), arrays, dtype=gd.float64))
        wrong = {}
        for name, plan in plans.items():
            found = run(device, region, plan, arrays)
            errors = {o: min(relative_error(found[o], reference[o], scale) for reference in references) for o in found}
            if max(errors.values()) > limit:
                wrong[name] = errors
    assert not wrong, f"{wrong}\n{region.graph}"


def drawn_plans(
    device: CudaDevice, dtype: gd.DType, kind: str, policy: Policy, rng: np.random.Generator
) -> tuple[Region, Graph, dict[str, DevicePlan]]:
    """A random region, its graph with all values as outputs, and the plans to try by name."""
    engine = CudnnEngine()
    for _ in range(DRAWS):
        region, everything = random_region(rng, dtype, kind)
        candidates = engine.candidates(region, device, policy)
        if isinstance(candidates, Decline):
            continue
        built = {one.name: engine.build(one, device) for one in chosen(tuple(candidates))}
        plans = {name: plan for name, plan in built.items() if not isinstance(plan, Decline)}
        if plans:
            return region, everything, plans
    pytest.fail(f"cuDNN takes none of {DRAWS} regions")
