"""Lists that no device gave: made by the recorder from engines that do what they are told, with all that can happen."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from graphdnn.answer import Decline
from graphdnn.engines.contract import Candidate, Device, Policy
from graphdnn.ir.region import Region
from graphdnn.runtime.device import HostDevice
from graphdnn.runtime.timing import HostTimer
from tests.engines.scripted import Act, Clock, Scripted
from tests.gpu.record_candidates import Task, document_text, recorded
from tests.recorded.lists import Recording, recording
from tests.recorded.replay import stand_in

MIB = 1 << 20


class Careful(Scripted):
    """Plans whose names begin with "cut" round to TF32, and are offered only where that is allowed."""

    def candidates(self, region: Region, device: Device, policy: Policy) -> Sequence[Candidate] | Decline:
        found = super().candidates(region, device, policy)
        if isinstance(found, Decline):
            return found
        words = {True: "tf32", False: "float32"}
        named = [replace(c, precision=words[c.name.startswith("cut")]) for c in found]
        return [c for c in named if policy.precision != "ieee" or c.precision != "tf32"]


EVERYTHING: dict[str, dict[str, Act]] = {
    "cudnn": {
        "eng1_k2=1": Act(fails="build"),
        "eng1_k2=2": Act(34, workspace=512),
        "eng2": Act(9, workspace=MIB, deterministic=False),
        "eng3": Act(4, factor=1.5),
        "cut_k2=1": Act(7),
        "eng4_k2=1": Act(11, workspace=2 * MIB, is_known=False),
        "eng4_k2=2": Act(900),
        "eng5": Act(fails="run"),
    },
    "cublaslt": {"a": Act(16, workspace=4 * MIB), "b": Act(18)},
    "nvrtc": {"tiled": Act(40)},
}
MANY = {"cudnn": {f"eng0_k1={i}": Act(30 - i, workspace=0 if i % 3 else 4096 * i) for i in range(14)}}
NEEDY = {
    "cudnn": {"eng1": Act(10, workspace=3 * MIB), "eng2": Act(12, workspace=MIB)},
    "nvrtc": {"slow": Act(25, workspace=2 * MIB, deterministic=False)},
}
UNSTEADY = {"cudnn": {"eng1": Act(10, deterministic=False), "eng2": Act(9, deterministic=False)}}
SURPRISING = {"cudnn": {"eng1": Act(300), "eng2": Act(260)}, "nvrtc": {"rows": Act(8)}}
HOPELESS = {
    "cudnn": {"eng0": Act(9, is_known=False), "eng1": Act(10)},
    "cublaslt": {"c": Act(2000, workspace=MIB), "d": Act(2100, is_known=False)},
}

ESTIMATES = {"cudnn": 12.0, "cublaslt": 15.0, "nvrtc": 38.0}
CASES: dict[str, tuple[Mapping[str, Mapping[str, Act]], tuple[str, ...]]] = {
    "made everything": (EVERYTHING, ("ieee", "tf32")),
    "made many": (MANY, ("ieee",)),
    "made needy": (NEEDY, ("ieee",)),
    "made unsteady": (UNSTEADY, ("ieee",)),
    "made surprising": (SURPRISING, ("ieee",)),
    "made hopeless": (HOPELESS, ("ieee",)),
}


def rows(case: str) -> list[dict[str, object]]:
    """The recorder's rows of one case."""
    engines, precisions = CASES[case]
    graph = stand_in()
    region = Region.of(graph, graph.nodes)
    found = []
    for precision in precisions:
        clock = Clock()
        far = 200.0 if case == "made hopeless" else 1.0
        estimates = {**ESTIMATES, "cublaslt": far * ESTIMATES["cublaslt"]}
        offering = [Careful(name, acts, clock, estimates[name]) for name, acts in engines.items()]
        shy = Scripted("shy", {}, clock, takes=())
        task = Task(case, precision)  # type: ignore[arg-type]
        found.append(recorded(task, region, [*offering, shy], HostDevice(), HostTimer(clock)))
    return found


def made() -> list[Recording]:
    """All cases, written as the recorder writes them and read again."""
    text = document_text({"regions": [row for case in CASES for row in rows(case)]})
    return [recording(row) for row in json.loads(text)["regions"]]
