"""Saved plans of the cublaslt engine, on the stand-in for the library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.answer import Code, Decline
from graphdnn.engines.contract import Candidate, Policy
from graphdnn.engines.cublaslt import engine as engine_module
from graphdnn.engines.cublaslt.engine import CublasLtEngine
from graphdnn.engines.cublaslt.plan import CublasLtPlan
from graphdnn.engines.cublaslt.problem import Problem, describe
from graphdnn.engines.cublaslt.serialization import decode_algorithms
from graphdnn.engines.serialization import unpack
from graphdnn.ir.region import Region
from tests.engines.cublaslt.fake import Fake
from tests.engines.cublaslt.product import TAILS, product
from tests.engines.cublaslt.test_plan import CASES, H200, STOCK, built, candidates_of, run

SIZE = 64


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake(list(STOCK))
    library = made.library()
    monkeypatch.setattr(engine_module, "open_library", lambda: library)
    return made


@pytest.fixture
def region() -> Region:
    return product(*CASES["one"], gd.float16, TAILS["bias residual gelu"])


def bare(region: Region, name: str) -> Candidate:
    return Candidate("cublaslt", region, name, 0, "")


@pytest.mark.parametrize(("dtype", "precision"), [(gd.float16, "ieee"), (gd.float32, "ieee"), (gd.float32, "tf32")])
def test_a_restored_plan_runs_the_same_algorithms(
    fake: Fake, dtype: gd.DType, precision: str, rng: np.random.Generator
) -> None:
    region = product(*CASES["one"], dtype, TAILS["bias residual gelu"])
    plan = built(region, precision=precision)
    content = CublasLtEngine().save(bare(region, plan.name), plan)
    asked = len(fake.preferences)
    again = CublasLtEngine().restore(bare(region, plan.name), content, H200())
    assert isinstance(again, CublasLtPlan)
    assert len(fake.preferences) == asked
    assert (again.algorithms, again.compute, again.workspace_bytes) == (
        plan.algorithms,
        plan.compute,
        plan.workspace_bytes,
    )
    assert run(region, again, rng) <= 2e-3
    first = fake.calls[-1].id
    assert run(region, plan, rng) <= 2e-3
    assert fake.calls[-1].id == first
    if len(plan.algorithms) > 1:
        assert run(region, again, rng, offset=8) <= 2e-3
        assert fake.calls[-1].id == 72
    assert CublasLtEngine().save(bare(region, plan.name), again) == content


def test_a_restored_plan_makes_the_same_calls(fake: Fake, rng: np.random.Generator) -> None:
    region = product(*CASES["several calls"], gd.float16)
    plan = built(region)
    again = CublasLtEngine().restore(
        bare(region, plan.name), CublasLtEngine().save(bare(region, plan.name), plan), H200()
    )
    assert isinstance(again, CublasLtPlan)
    assert run(region, again, rng) <= 2e-3
    assert len(fake.calls) == 2
    assert run(region, plan, rng) <= 2e-3
    assert fake.calls[2:] == fake.calls[:2]


def test_damaged_or_foreign_bytes_never_reach_the_library(
    fake: Fake, region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = built(region)
    engine, one = CublasLtEngine(), bare(region, plan.name)
    content = engine.save(one, plan)
    monkeypatch.setattr(engine_module, "prepared", lambda *_: pytest.fail("prepared"))
    spoilt = [content[:size] for size in range(0, len(content), 5)]
    for position in range(len(content)):
        flipped = bytearray(content)
        flipped[position] ^= 1 << position % 8
        spoilt.append(bytes(flipped))
    assert all(isinstance(engine.restore(one, x, H200()), Decline) for x in spoilt)
    other = H200()
    other.target = replace(other.target, sm_count=16)
    for candidate, device in (
        (one, other),
        (bare(region, "algo1"), H200()),
        (bare(product(*CASES["one"]), "a"), H200()),
    ):
        answer = engine.restore(candidate, content, device)
        assert isinstance(answer, Decline)
        assert answer.code == Code.VERSION


def test_another_version_of_the_library_is_refused(fake: Fake, region: Region, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = built(region)
    content = CublasLtEngine().save(bare(region, plan.name), plan)
    library = engine_module.open_library()
    assert not isinstance(library, Decline)
    monkeypatch.setattr(library, "version", 140000)
    answer = CublasLtEngine().restore(bare(region, plan.name), content, H200())
    assert isinstance(answer, Decline)
    assert "cublaslt '130000'" in answer.reason


HEAD = b'{"compute": "COMPUTE_32F", "algorithms": [%s]}'
ROW = b'{"name": "a", "workspace_bytes": 0, "split_k": 1, "reduction": 0, "flags": 0, "waves": 1.0}'


@pytest.mark.parametrize(
    "parts",
    [
        (),
        (HEAD % b"",),
        (HEAD % b"", bytes(SIZE)),
        (HEAD % ROW, bytes(SIZE - 1)),
        (HEAD % ROW, bytes(SIZE), bytes(SIZE)),
        (HEAD % ROW.replace(b"0, ", b"-1, ", 1), bytes(SIZE)),
        (HEAD % ROW.replace(b"1.0", b"true"), bytes(SIZE)),
        (HEAD % ROW.replace(b'"a"', b"7"), bytes(SIZE)),
        (HEAD % b"[]", bytes(SIZE)),
        (HEAD.replace(b"32F", b"32F_FAST_TF32") % ROW, bytes(SIZE)),
        (HEAD.replace(b'"COMPUTE_32F"', b"[]") % ROW, bytes(SIZE)),
        (b"\xff", bytes(SIZE)),
    ],
)
def test_sound_bytes_that_describe_no_algorithm_are_refused(region: Region, parts: Sequence[bytes]) -> None:
    problem = describe(region)
    assert isinstance(problem, Problem)
    assert not isinstance(decode_algorithms((HEAD % ROW, bytes(SIZE)), problem, SIZE), Decline)
    assert isinstance(decode_algorithms(parts, problem, SIZE), Decline)


def test_an_algorithm_is_found_by_its_name(fake: Fake, region: Region) -> None:
    for one in candidates_of(region):
        assert CublasLtEngine().named(region, one.name, H200(), Policy()) == one
    assert isinstance(CublasLtEngine().named(region, "algo1", H200(), Policy()), Decline)


def test_contents_have_the_size_of_the_library_s(fake: Fake, region: Region) -> None:
    plan = built(region)
    assert {len(a.content) for a in plan.algorithms} == {SIZE}
    parts = unpack(CublasLtEngine().save(bare(region, plan.name), plan), plan.identity)
    assert not isinstance(parts, Decline)
    assert len(parts) == 1 + len(plan.algorithms)
