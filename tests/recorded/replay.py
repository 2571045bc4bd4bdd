"""Recorded lists of plans replayed: engines that offer them, and a device on which a plan takes its recorded time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

import graphdnn as gd
from graphdnn import compiler
from graphdnn.answer import Code, Decline
from graphdnn.engines import manifest
from graphdnn.engines.contract import Bench, Candidate, Device, DevicePlan, HostPlan, Policy, Support, Timing
from graphdnn.engines.serialization import unknown_plan
from graphdnn.ir.region import Region
from graphdnn.ir.types import Array
from graphdnn.planning import session
from graphdnn.report.model import CompileReport, PlanReport
from graphdnn.runtime.buffers import host_view
from graphdnn.runtime.timing import CudaTimer
from graphdnn.target import Target
from tests.recorded.lists import Offer, Plan, Recording
from tests.runtime.clocked import ClockedDevice

X = np.arange(15, dtype=np.float32).reshape(3, 5) - 7

ROOM = 1 << 10
"""Bytes of the replaying device's L2, so that the stand-in's tensors come in few sets."""

Factor = Callable[[], float]
"""What the recorded time of one run is multiplied by."""


def stand_in() -> gd.Graph:
    """A region small enough to be computed for each run; choosing looks at times, limits and numbers only."""
    g = gd.GraphBuilder("stand_in")
    return g.build({"y": g.mul(g.input("x", X.shape, gd.float32), 2.0, name="double")})


class ReplayedPlan:
    """Computes the stand-in, wrongly where that was recorded, and with other last bits at each run where its bits are
    not the same; takes its recorded time."""

    def __init__(self, plan: Plan, region: Region, device: ClockedDevice, factor: Factor) -> None:
        self.workspace_bytes = plan.workspace
        self.runs = 0
        self._plan = plan
        self._types = [v.type for v in (*region.inputs, *region.outputs)]
        self._device = device
        self._factor = factor

    def __str__(self) -> str:
        return f"{self._plan.engine} {self._plan.name}"

    def enqueue(self, addresses: Sequence[int], stream: int, workspace: int) -> None:
        x, y = (host_view(a, t, None) for a, t in zip(addresses, self._types, strict=True))
        self._device.kernels += 1
        self._device.enqueue(stream, lambda: self._run(x, y))

    def _run(self, x: Any, y: Any) -> None:
        assert self._plan.us is not None
        self.runs += 1
        scale = 3.0 if self._plan.verdict == "wrong" else 2.0
        np.multiply(x, scale, out=y)
        if not self._plan.deterministic and self.runs % 2:
            np.nextafter(y, np.inf, out=y)
        self._device.now += self._plan.us * self._factor()


@dataclass
class Replayed:
    """An engine that offers what was recorded of it, by precision; `built` are the plans that were built."""

    name: str
    offers: dict[str, Offer]
    device: ClockedDevice
    factor: Factor
    built: list[str] = field(default_factory=list)

    def _offer(self, policy: Policy) -> Offer:
        return self.offers.get(policy.precision) or next(iter(self.offers.values()))

    def supports(self, region: Region, target: Target, policy: Policy) -> Support | Decline:
        offer = self._offer(policy)
        if offer.estimated_us is None:
            return Decline(Code.PATTERN, offer.refusal or "it was not asked")
        least = min((p.workspace for p in offer.plans), default=0)
        steady = any(p.deterministic for p in offer.plans)
        words = next((p.precision for p in offer.plans if p.precision), "float32")
        return Support(offer.estimated_us, words, 1, least, steady, untimed_us=offer.untimed_us)

    def candidates(self, region: Region, device: Device, policy: Policy) -> Sequence[Candidate] | Decline:
        offer = self._offer(policy)
        if not offer.plans:
            return Decline(Code.PATTERN, offer.refusal or "it proposed none")
        return [candidate(region, p) for p in offer.plans]

    def named(self, region: Region, name: str, device: Device, policy: Policy) -> Candidate | Decline:
        found = (candidate(region, p) for p in self._offer(policy).plans if p.name == name)
        return next(found, unknown_plan(self.name, name, region))

    def build(self, candidate: Candidate, device: Device) -> DevicePlan | HostPlan | Decline:
        self.built.append(candidate.name)
        plan: Plan = candidate.recipe
        if plan.verdict == "failed":
            return Decline(Code.BUILD, plan.reason)
        if plan.us is None:
            return Decline(Code.BUILD, "nobody ran it when the list was recorded")
        return ReplayedPlan(plan, candidate.region, self.device, self.factor)

    def save(self, candidate: Candidate, plan: DevicePlan | HostPlan) -> bytes:
        return b""

    def restore(self, candidate: Candidate, content: bytes, device: Device) -> DevicePlan | HostPlan | Decline:
        return self.build(candidate, device)


def candidate(region: Region, plan: Plan) -> Candidate:
    return Candidate(
        plan.engine,
        region,
        plan.name,
        plan.workspace,
        plan.precision,
        plan.deterministic,
        plan.notes,
        plan,
        plan.is_known is not False,
    )


class Probes:
    """Stands for the child process that tries unknown plans first, and notes which."""

    asked: list[str]

    def __init__(self) -> None:
        self.asked = []

    def __call__(self, *_: object) -> Probes:
        return self

    def probe(
        self, region: Region, engine: str, plan: str, is_over: Callable[[], bool] | None = None
    ) -> Decline | None:
        self.asked.append(f"{engine} {plan}")
        return None

    def __enter__(self) -> Probes:
        return self

    def __exit__(self, *_: object) -> None: ...


class NotedBench:
    """A bench of the real timer; `dropped` are plans that it gave up early."""

    def __init__(self, bench: Bench, dropped: set[str]) -> None:
        self._bench = bench
        self._dropped = dropped
        self.results = bench.results
        self.close = bench.close

    def measure(self, plan: DevicePlan | HostPlan, best_us: float) -> Timing:
        assert isinstance(plan, ReplayedPlan)
        timing = self._bench.measure(plan, best_us)
        if timing.is_dropped:
            self._dropped.add(str(plan))
        return timing


class NotedTimer(CudaTimer):
    """The real timer, which notes what it gave up early."""

    def __init__(self, device: Any, dropped: set[str]) -> None:
        super().__init__(device)
        self._dropped = dropped

    def bench(self, region: Region, inputs: Sequence[Array]) -> Bench | Decline:
        bench = super().bench(region, inputs)
        return bench if isinstance(bench, Decline) else NotedBench(bench, self._dropped)


class Machine:
    """A described H200 that replays: `compiled` gives the stand-in's executable with the recorded engines."""

    def __init__(self, *recordings: Recording, factor: Factor = lambda: 1.0) -> None:
        self.device = ClockedDevice()
        self.device.target = replace(self.device.target, l2_bytes=ROOM)
        self.probes = Probes()
        self.dropped: set[str] = set()
        names = dict.fromkeys(o.engine for r in recordings for o in r.offers)
        self.engines = {
            name: Replayed(name, offers_of(name, recordings), self.device, factor)
            for name in manifest.BY_KIND["cuda"]
            if name in names
        }

    @contextmanager
    def _here(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(manifest, "load_engine", self.engines.__getitem__)
            patch.setitem(manifest.BY_KIND, "cuda", tuple(self.engines))
            patch.setattr(compiler, "device_for", lambda *_: self.device)
            patch.setattr(compiler, "ChildProber", self.probes)
            patch.setattr(session, "timer_for", lambda device, memory: NotedTimer(device, self.dropped))
            yield

    def compiled(self, selection: str = "autotune", lock: Any = None, **options: Any) -> gd.Executable:
        """The stand-in compiled.  Raises CompileError as compile does."""
        with self._here():
            chosen = gd.CompileOptions(selection=selection, progress=False, **options)
            return gd.compile(stand_in(), "cuda", chosen, lock=lock)

    @property
    def built(self) -> list[str]:
        return [f"{e.name} {plan}" for e in self.engines.values() for plan in e.built]


def offers_of(engine: str, recordings: Sequence[Recording]) -> dict[str, Offer]:
    """An engine's offers by precision."""
    return {r.precision: o for r in recordings for o in r.offers if o.engine == engine}


def reported(report: CompileReport) -> dict[tuple[str, str], PlanReport]:
    """What the report says of every plan, by engine and name."""
    return {(c.engine, p.name): p for c in report.candidates for p in c.plans}


def chosen(report: CompileReport) -> tuple[str, str]:
    """Engine and plan of the one region."""
    (region,) = report.regions
    return region.engine, region.plan
