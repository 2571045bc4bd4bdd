"""Restoring plans of a device, on one that is not there: each runs once before a capture may meet it."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.answer import Code, Decline
from graphdnn.compiler import compile_for
from graphdnn.engines import manifest
from graphdnn.engines.choose import Selector
from graphdnn.engines.contract import Candidate, Device, DevicePlan, HostPlan, Policy, Support
from graphdnn.engines.serialization import identity_of, pack, unpack
from graphdnn.engines.trial import Limits, TrialMemory
from graphdnn.ir.region import Region
from graphdnn.serialization import container, load
from graphdnn.target import Target
from tests.runtime.fake import FakeDevice, FakePlan


class Lazy(FakePlan):
    """A plan that loads its kernels at its first run, which no capture survives."""

    is_loaded = False

    def enqueue(self, addresses: Sequence[int], stream: int, workspace: int) -> None:
        assert self.is_loaded or stream not in self._device.capturing, "loaded within a capture"
        self.is_loaded = True
        super().enqueue(addresses, stream, workspace)


class LazyEngine:
    """Takes everything on the fake device; what `RESTORED` names goes wrong."""

    name = "lazy"
    RESTORED: ClassVar[list[str]] = []
    SCRATCH: ClassVar[int] = 512

    def supports(self, region: Region, target: Target, policy: Policy) -> Support | Decline:
        return Support(1.0, "float32", workspace_bytes=512)

    def candidates(self, region: Region, device: Device, policy: Policy) -> Sequence[Candidate] | Decline:
        return [Candidate(self.name, region, "first", 512, "float32")]

    def build(self, candidate: Candidate, device: FakeDevice) -> DevicePlan | HostPlan | Decline:
        return Lazy(candidate.region, device, self.SCRATCH, in_place=True)

    def named(self, region: Region, name: str, device: Device, policy: Policy) -> Candidate | Decline:
        (only,) = self.candidates(region, device, policy)  # type: ignore[misc]
        return only

    def save(self, candidate: Candidate, plan: DevicePlan | HostPlan) -> bytes:
        return pack(identity_of(candidate, {}), b"cubin")

    def restore(self, candidate: Candidate, content: bytes, device: FakeDevice) -> DevicePlan | HostPlan | Decline:
        parts = unpack(content, identity_of(candidate, {}))
        if isinstance(parts, Decline):
            return parts
        self.RESTORED.append(candidate.region.pattern)
        return self.build(candidate, device)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    device = FakeDevice()
    monkeypatch.setitem(manifest.MANIFEST, "lazy", f"{__name__}:LazyEngine")
    monkeypatch.setitem(manifest.BY_KIND, "cuda", ("lazy",))
    monkeypatch.setattr(load, "resolve", lambda who, target, options: (device.target, device))
    monkeypatch.setattr(LazyEngine, "RESTORED", [])
    return device


def graph() -> gd.Graph:
    g = gd.GraphBuilder("layers")
    x = g.input("x", (3, 8), gd.float32)
    y = x
    for _ in range(3):  # equal regions, which share one plan
        y = g.softmax(g.relu(g.matmul(y, g.constant(np.full((8, 8), 0.25, np.float32)))), axis=-1)
    total = g.state("total", (3, 8), gd.float32)
    more = g.add(total, y)
    return g.build({"y": y, "more": more}, updates={"total": more})


@pytest.fixture
def made(device: FakeDevice, tmp_path: Path) -> gd.Executable:
    options = gd.CompileOptions(disabled_passes=("fuse",))
    exe = compile_for(graph(), device.target, device, options)  # type: ignore[arg-type]
    exe.save(tmp_path / "model.gdn")
    return exe


X = {"x": np.arange(24, dtype=np.float32).reshape(3, 8) / 7}


def test_restored_plans_run_and_may_be_captured_at_once(made: gd.Executable, tmp_path: Path) -> None:
    again = gd.load(tmp_path / "model.gdn", rebuild=False)
    found, wanted = again.bind(X)(), made(X)
    assert all(np.array_equal(found[n], wanted[n]) for n in wanted)
    assert again.report == made.report


def test_equal_regions_share_one_restored_plan(made: gd.Executable, tmp_path: Path) -> None:
    again = gd.load(tmp_path / "model.gdn", rebuild=False)
    assert len(again.compilation.picks) > len(LazyEngine.RESTORED)
    assert len({id(p.chosen.plan) for p in again.compilation.picks if p.chosen}) == len(LazyEngine.RESTORED)


def test_scratch_is_what_the_restored_plan_asks_for(
    made: gd.Executable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The arena is laid out for the plans that are there, not for what the file says of them."""
    monkeypatch.setattr(LazyEngine, "SCRATCH", 4096)
    again = gd.load(tmp_path / "model.gdn", rebuild=False)
    assert {p.chosen.candidate.workspace_bytes for p in again.compilation.picks if p.chosen} == {4096}
    assert again._present().schedule.arena_bytes >= 4096
    found, wanted = again(X), made(X)
    assert all(np.array_equal(found[n], wanted[n]) for n in wanted)


def test_a_plan_that_fails_at_its_first_run_is_not_taken(
    made: gd.Executable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise gd.ExecutionError("an illegal memory access")

    monkeypatch.setattr(Lazy, "enqueue", fail)
    with pytest.raises(gd.SavedFileError, match=r"plan 'first' of lazy was not restored .*illegal memory access"):
        gd.load(tmp_path / "model.gdn", rebuild=False)


@pytest.mark.parametrize(
    ("option", "fix"),
    [
        ({"workspace_limit": 512}, "change workspace_limit of options from 512 to 4096"),
        ({"disabled_plans": ("lazy:first",)}, "change disabled_plans of options from ('lazy:first',) to ()"),
    ],
)
def test_a_plan_that_an_option_rules_out_is_declined_by_that_option(
    option: dict[str, object], fix: str, made: gd.Executable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is nobody's failure to build."""
    options = gd.CompileOptions(**option)
    target = made.compilation.target
    selector = Selector((), target, options.policy(), limits=Limits(disabled=options.disabled_plans))
    pick = next(p.chosen for p in made.compilation.picks if p.chosen)
    candidate = replace(pick.candidate, engine="lazy")
    plan = Lazy(candidate.region, FakeDevice(), 4096, in_place=True)
    with TrialMemory(FakeDevice()) as memory:
        answer = load.tried(candidate, plan, 1, selector, memory)
    assert isinstance(answer, Decline)
    assert answer.code is Code.OPTION
    assert str(answer.fix) == fix


def test_disabled_plans_of_the_file_are_not_restored(made: gd.Executable, tmp_path: Path) -> None:
    """A file that says that it was compiled without a plan, and has it, is not believed."""
    sections = {name: s.tobytes() for name, s in container.read(tmp_path / "model.gdn").items()}
    manifest = json.loads(sections["manifest"])
    manifest["options"]["disabled_plans"] = ["lazy:first"]
    container.write(tmp_path / "other.gdn", {**sections, "manifest": json.dumps(manifest).encode()})
    with pytest.raises(gd.SavedFileError, match=r"not restored \(ruled out by disabled_plans="):
        gd.load(tmp_path / "other.gdn", rebuild=False)
