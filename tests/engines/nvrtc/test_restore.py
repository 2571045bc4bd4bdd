"""Saved plans of the nvrtc engine, with a stand-in for the driver that loads them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import graphdnn as gd
from graphdnn.answer import Code, Decline
from graphdnn.engines.contract import Candidate, Policy
from graphdnn.engines.nvrtc import compile as compiler
from graphdnn.engines.nvrtc import engine as module
from graphdnn.engines.nvrtc.engine import NvrtcEngine
from graphdnn.engines.nvrtc.launch import NvrtcPlan
from graphdnn.engines.nvrtc.recipe import Recipe
from graphdnn.engines.serialization import pack
from graphdnn.ir.region import Region
from graphdnn.target import Target
from tests.engines.cudnn.layouts import whole
from tests.engines.shelf import Shelf


def relu(columns: int = 6) -> Region:
    g = gd.GraphBuilder()
    return whole(g.build({"y": g.relu(g.input("x", (4, columns), gd.float16))}))


def machine(name: str = "h200") -> Any:
    target = Target.named("h200")
    return SimpleNamespace(
        target=target if name == "h200" else gd.Target(**{**vars(target), "name": name}), store=Shelf()
    )


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, ...]]:
    """What was loaded, plan by plan."""
    found: list[tuple[bytes, ...]] = []

    def load(recipe: Recipe, cubins: Any, identity: Any, target: gd.Target) -> NvrtcPlan:
        found.append(tuple(cubins))
        return NvrtcPlan(recipe, cubins, identity, (), ())

    monkeypatch.setattr(module, "load_plan", load)
    return found


def built(region: Region, device: Any) -> tuple[Candidate, NvrtcPlan]:
    found = NvrtcEngine().candidates(region, device, Policy())
    assert not isinstance(found, Decline)
    plan = NvrtcEngine().build(found[0], device)
    assert isinstance(plan, NvrtcPlan)
    return Candidate("nvrtc", region, found[0].name, 0, ""), plan


def test_a_restored_plan_has_the_same_kernels_and_needs_no_compiler(
    loaded: list[tuple[bytes, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    device, engine = machine(), NvrtcEngine()
    bare, plan = built(relu(), device)
    content = engine.save(bare, plan)
    monkeypatch.setattr(compiler, "run_compiler", lambda *_: pytest.fail("compiled"))
    monkeypatch.setattr(compiler, "compiler_version", lambda: pytest.fail("the compiler was asked for"))
    again = engine.restore(bare, content, machine())
    assert isinstance(again, NvrtcPlan)
    assert loaded[0] == loaded[1]
    assert loaded[0][0].startswith(b"\x7fELF")
    assert (again.name, again.workspace_bytes, again.in_place) == (plan.name, plan.workspace_bytes, plan.in_place)
    assert engine.save(bare, again) == content


def test_damaged_or_foreign_bytes_never_reach_the_driver(loaded: list[tuple[bytes, ...]]) -> None:
    device, engine = machine(), NvrtcEngine()
    bare, plan = built(relu(), device)
    content = engine.save(bare, plan)
    loaded.clear()
    for size in range(0, len(content), 97):
        assert isinstance(engine.restore(bare, content[:size], device), Decline)
    for position in range(0, len(content), 41):
        flipped = bytearray(content)
        flipped[position] ^= 1 << position % 8
        assert isinstance(engine.restore(bare, bytes(flipped), device), Decline)
    for candidate, where in ((bare, machine("h100")), (Candidate("nvrtc", relu(8), bare.name, 0, ""), device)):
        answer = engine.restore(candidate, content, where)
        assert isinstance(answer, Decline)
        assert answer.code == Code.VERSION
    for parts in ((), (*plan.cubins, b"one more")):
        answer = engine.restore(bare, pack(plan.identity, *parts), device)
        assert isinstance(answer, Decline)
        assert answer.code == Code.BUILD
    assert not loaded


def test_the_one_plan_of_a_region_is_found_by_its_name(loaded: list[tuple[bytes, ...]]) -> None:
    device = machine()
    bare, _ = built(relu(), device)
    found = NvrtcEngine().named(relu(), bare.name, device, Policy())
    assert isinstance(found, Candidate)
    assert NvrtcEngine().build(found, device)
    assert isinstance(NvrtcEngine().named(relu(), "other", device, Policy()), Decline)


class Driver:
    """Takes no cubin but those that begin as one, or none at all, for a reason with this code."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, code: Code = Code.BUILD, takes: bool = True) -> None:
        self.code, self.takes = code, takes
        self.compiled = 0
        real = compiler.run_compiler
        monkeypatch.setattr(compiler, "run_compiler", lambda *given: self.compile(real, *given))
        monkeypatch.setattr(module, "load_plan", self.load)

    def compile(self, real: Any, *given: Any) -> Any:
        self.compiled += 1
        return real(*given)

    def load(self, recipe: Recipe, cubins: Any, identity: Any, target: gd.Target) -> NvrtcPlan | Decline:
        if self.takes and all(cubin.startswith(b"\x7fELF") for cubin in cubins):
            return NvrtcPlan(recipe, cubins, identity, (), ())
        return Decline(self.code, "the driver failed to load it: CUDA_ERROR_INVALID_IMAGE")


def first(device: Any) -> Candidate:
    found = NvrtcEngine().candidates(relu(), device, Policy())
    assert not isinstance(found, Decline)
    return found[0]


def test_a_kept_kernel_that_the_driver_does_not_take_is_dropped_and_compiled_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver, device = Driver(monkeypatch), machine()
    wanted = NvrtcEngine().build(first(device), device)
    assert isinstance(wanted, NvrtcPlan)
    ((kept, cubin),) = device.store.kept.items()
    device.store.kept[kept] = b"noise under a right checksum"
    with pytest.warns(RuntimeWarning, match="cached kernels of relu are dropped and compiled anew: .*INVALID_IMAGE"):
        again = NvrtcEngine().build(first(device), device)
    assert isinstance(again, NvrtcPlan)
    assert again.cubins == wanted.cubins == (cubin,)
    assert device.store.kept == {kept: cubin}
    assert driver.compiled == 2


@pytest.mark.parametrize(("code", "compiled"), [(Code.BUILD, 2), (Code.TRANSIENT, 1)])
def test_a_kernel_that_is_refused_however_it_comes_is_declined_without_a_warning(
    code: Code, compiled: int, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    driver, device = Driver(monkeypatch, code, takes=False), machine()
    answer = NvrtcEngine().build(first(device), device)
    assert isinstance(answer, Decline)
    assert answer.code is code
    assert driver.compiled == compiled
    assert not recwarn.list
