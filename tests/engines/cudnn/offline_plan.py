"""Builds a plan with the real cuDNN for a described H200, keeps it in a directory and prints what came of it, as JSON.

Run as a module in a child process: a library that cuDNN misses ends the process.
"""

import json
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cudnn

from graphdnn.answer import Decline
from graphdnn.engines.contract import Policy
from graphdnn.engines.cudnn import engine, plans
from graphdnn.engines.cudnn.anatomy import Anatomy
from graphdnn.engines.cudnn.lower import Lowering, lower
from graphdnn.engines.cudnn.plans import CudnnPlan, PlanName
from graphdnn.ir.region import Region
from graphdnn.runtime.cache import DiskStore
from graphdnn.target import Target
from tests.engines.cudnn.layouts import whole
from tests.engines.cudnn.offline import PROPERTIES
from tests.engines.cudnn.surface_graphs import GRAPHS

NO_HANDLE = SimpleNamespace(on=lambda ordinal, stream: 0)


def main(directory: str) -> None:
    properties = cudnn.create_device_properties(PROPERTIES.read_text())

    def lowered(region: Region, device: Any) -> Lowering | Decline:
        frame = Anatomy(region).frame
        assert not isinstance(frame, Decline)
        return lower(region, frame, device_property=properties, sm_version=90)

    engine.lowered = lowered
    plans.HANDLES = NO_HANDLE  # type: ignore[assignment]
    plans.begin_capture = lambda stream: None
    plans.end_capture = lambda stream: True
    region = whole(GRAPHS["conv_bias_relu"]())
    store = DiskStore(directory)
    device: Any = SimpleNamespace(
        target=Target.named("h200"),
        stream=0,
        store=store,
        allocate=lambda nbytes: SimpleNamespace(close=lambda: None),
        capturing=lambda: nullcontext(0),
    )
    found = engine.CudnnEngine().candidates(region, device, Policy())
    assert not isinstance(found, Decline), found
    candidate = next(c for c in found if c.name.startswith("eng41"))
    first = engine.CudnnEngine().build(candidate, device)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        second = engine.CudnnEngine().build(candidate, device)
    assert isinstance(first, CudnnPlan)
    assert isinstance(second, CudnnPlan)

    def make() -> Lowering | Decline:
        return lowered(region, device)

    names = [PlanName.parse(c.name) for c in found]
    alone = [plans.proposal(cudnn, make, n) for n in names]
    at_once = plans.workspaces(cudnn, make, [PlanName(999, ()), *names])
    told = {
        "workspace": first.workspace_bytes,
        "proposed": candidate.workspace_bytes,
        "same": [first.content == second.content, first.bindings == second.bindings],
        "bytes": len(first.content),
        "warning": str(caught[0].message),
        "entries": sorted(e.kind for e in store.entries()),
        "workspaces": [c.workspace_bytes for c in found],
        "by name": [a.workspace for a in alone if not isinstance(a, Decline)],
        "at once": [at_once[n] for n in names],
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(str(Path(sys.argv[1])))
