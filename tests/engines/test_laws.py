"""Laws of every engine that the manifest names: they hold of a new one without a line here."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite

import numpy as np
import pytest

from graphdnn.answer import FIXABLE, Decline
from graphdnn.engines.check import Checker, inputs_for
from graphdnn.engines.contract import HostPlan, Policy, Support
from graphdnn.engines.manifest import BY_KIND, MANIFEST, load_engine
from graphdnn.ir.ops.movement import Convert
from graphdnn.ir.region import Region
from graphdnn.passes.layout.assign import assign_layouts
from graphdnn.runtime.device import HostDevice
from graphdnn.target import Target
from tests.ir.samples import SAMPLES, Sample

TARGETS = {"cuda": Target.named("h200"), "cpu": Target.cpu()}
KINDS = {name: kind for kind, names in BY_KIND.items() for name in names}


def regions(sample: Sample, rng: np.random.Generator) -> list[Region]:
    """Each node of a sample as a region of its own, laid out as the compiler would."""
    graph = assign_layouts(sample.graph(rng)).graph
    return [Region.of(graph, [n]) for n in graph.nodes if not isinstance(n.op, Convert)]


def test_every_engine_is_asked_on_some_machine() -> None:
    assert not MANIFEST.keys() - KINDS.keys(), "BY_KIND in engines/manifest.py lacks them"
    assert not KINDS.keys() - MANIFEST.keys(), "MANIFEST in engines/manifest.py lacks them"


@pytest.mark.parametrize("name", MANIFEST)
def test_an_engine_is_called_as_the_manifest_calls_it(name: str) -> None:
    assert load_engine(name).name == name


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
@pytest.mark.parametrize("name", MANIFEST)
def test_answers_are_whole_and_the_same_each_time(name: str, sample: Sample, rng: np.random.Generator) -> None:
    engine, target = load_engine(name), TARGETS[KINDS[name]]
    for region in regions(sample, rng):
        answer = engine.supports(region, target, Policy())
        assert engine.supports(region, target, Policy()) == answer
        if isinstance(answer, Decline):
            assert answer.reason
            assert "\n" not in answer.reason
            assert answer.fix is not None or answer.code not in FIXABLE
            continue
        assert isfinite(answer.estimated_us)
        assert answer.estimated_us >= 0
        assert answer.precision
        assert answer.kernels >= 1
        assert answer.workspace_bytes >= 0
        for source, result in answer.in_place:
            assert region.inputs[source].type.nbytes == region.outputs[result].type.nbytes


@pytest.mark.parametrize("name", MANIFEST)
def test_an_engine_takes_nothing_on_a_machine_that_it_does_not_run_on(name: str, rng: np.random.Generator) -> None:
    others = [target for kind, target in TARGETS.items() if name not in BY_KIND[kind]]
    for region in regions(SAMPLES[0], rng):
        assert all(isinstance(load_engine(name).supports(region, t, Policy()), Decline) for t in others)


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
@pytest.mark.parametrize("name", BY_KIND["cpu"])
def test_plans_in_host_memory_give_the_numbers_of_the_definition_also_when_restored(
    name: str, sample: Sample, rng: np.random.Generator
) -> None:
    engine, device = load_engine(name), HostDevice()
    for region in regions(sample, rng):
        found = engine.candidates(region, device, Policy()) if offers(name, region) else ()
        assert not isinstance(found, Decline)
        inputs = inputs_for(region, rng)
        checker = Checker(region, inputs, Policy(), rng)
        for candidate in found:
            assert engine.named(region, candidate.name, device, Policy()) == candidate
            plan = engine.build(candidate, device)
            assert isinstance(plan, HostPlan)
            content, bare = engine.save(candidate, plan), replace(candidate, recipe=None)
            again = engine.restore(bare, content, device)
            assert isinstance(again, HostPlan)
            for made in (plan, again):
                finding = checker.finding(candidate.name, candidate.precision, made.run(inputs))
                assert checker.by_definition([finding]) == [""]
            assert isinstance(engine.restore(bare, content[:-1], device), Decline)
        assert isinstance(engine.named(region, "no such plan", device, Policy()), Decline)


def offers(name: str, region: Region) -> bool:
    return isinstance(load_engine(name).supports(region, TARGETS["cpu"], Policy()), Support)
