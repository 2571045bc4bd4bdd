"""What the tables of engines say, and that the cuDNN engine acts on it."""

from dataclasses import replace

import pytest

import graphdnn as gd
from graphdnn.answer import Code, Decline
from graphdnn.engines.contract import Candidate, Policy
from graphdnn.engines.cudnn import engine, tables
from graphdnn.engines.cudnn.anatomy import Anatomy
from graphdnn.engines.cudnn.estimate import engine_class
from graphdnn.engines.cudnn.plans import PlanName, Proposal
from graphdnn.engines.cudnn.tables import FLOAT32_ERRORS, FLOAT32_LIMIT, IEEE, KNOWN, WRONG, is_known
from graphdnn.target import Target
from tests.engines.cudnn.regions import beside, bias, convolution, product, without_exact_plan

H200 = replace(Target.named("h200"), present=True)


def offered(number: int, dtype: gd.DType = gd.float32, policy: Policy | None = None, **notes: object) -> Candidate:
    """The candidate that the engine makes of a proposal for a convolution with a bias."""
    anatomy = Anatomy(convolution(dtype=dtype, finish=bias))
    assert engine_class(anatomy) == "conv+bias"
    proposal = Proposal(PlanName(number, ()), 0, (), bool(notes.get("deterministic", True)))
    (made,) = engine.as_candidates(anatomy, [proposal], H200, policy or Policy())
    return made


def test_engines_are_either_exact_or_far_off() -> None:
    """Nothing lies near the limit, so that another region does not change sides."""
    for errors in FLOAT32_ERRORS.values():
        assert all(error < FLOAT32_LIMIT / 3 or error > 10 * FLOAT32_LIMIT for error in errors.values())
        assert any(error < FLOAT32_LIMIT / 3 for error in errors.values())


def test_what_was_measured_has_run() -> None:
    for kind, errors in FLOAT32_ERRORS.items():
        assert errors.keys() <= KNOWN["sm_90", "9.19"][kind]
    for kind, number in WRONG:
        assert is_known(H200, kind, number)


@pytest.mark.parametrize("version", ["9.19.0", "9.19.1"])
def test_runs_count_for_their_version(version: str) -> None:
    assert is_known(replace(H200, versions={"cudnn": version}), "conv", 0)


@pytest.mark.parametrize(
    "other",
    [replace(H200, versions={"cudnn": "9.20.0"}), replace(H200, versions={}), replace(H200, compute_capability=(8, 0))],
    ids=["version", "no version", "architecture"],
)
def test_elsewhere_no_engine_is_known(other: Target) -> None:
    assert not is_known(other, "conv", 0)
    assert not is_known(H200, "conv", 999)
    assert not is_known(H200, "conv+nothing", 0)


def test_unknown_plans_say_so() -> None:
    assert offered(11).is_known
    assert not offered(999).is_known
    assert any("committed run" in note for note in offered(999).notes)


@pytest.mark.parametrize("precision", ["tf32", "reduced"])
def test_the_precision_is_that_of_the_engine(precision: str) -> None:
    policy = Policy(precision=precision)
    exact, rough = min(IEEE["conv+bias"]), 51
    assert offered(exact, policy=policy).precision == "float32"
    assert offered(rough, policy=policy).precision == "tf32"
    assert offered(exact, gd.float16, policy).precision == "float16 in, float32 accumulate"


def test_products_in_tf32_are_called_that() -> None:
    anatomy = Anatomy(product(dtype=gd.float32))
    (made,) = engine.as_candidates(anatomy, [Proposal(PlanName(0, ()), 0, (), True)], H200, Policy(precision="tf32"))
    assert made.precision == "tf32"


def test_plans_that_cut_float32_off_are_not_offered() -> None:
    def names(dtype: gd.DType) -> list[str]:
        anatomy = Anatomy(convolution(dtype=dtype, finish=lambda g, y: g.silu(y)))
        assert engine_class(anatomy) == "conv+pointwise"
        found = [Proposal(PlanName.parse(n), 0, (), True) for n in ("eng7_k24=29", "eng7_k24=22", "eng4_k24=29")]
        kept = engine.trusted(anatomy, found, H200, Policy(precision="tf32"))
        assert not isinstance(kept, Decline)
        return [candidate.name for candidate in kept]

    assert names(gd.float32) == ["eng7_k24=22", "eng4_k24=29"]
    assert names(gd.float16) == ["eng7_k24=29", "eng7_k24=22", "eng4_k24=29"]


def test_nothing_is_left_of_plans_that_all_cut_float32_off() -> None:
    anatomy = Anatomy(convolution(dtype=gd.float32, finish=lambda g, y: g.silu(y)))
    found = [Proposal(PlanName.parse("eng7_k24=29"), 0, (), True)]
    refusal = engine.trusted(anatomy, found, H200, Policy(precision="tf32"))
    assert isinstance(refusal, Decline)
    assert "computes it wrongly" in refusal.reason


@pytest.mark.parametrize("name", [n for n in beside() if "conv, " in n])
def test_engines_that_read_a_side_branch_elsewhere_are_left_out(name: str) -> None:
    anatomy = Anatomy(beside()[name])
    found = [Proposal(PlanName.parse(n), 0, (), True) for n in ("eng8", "eng4_k24=29")]
    kept = engine.trusted(anatomy, found, H200, Policy())
    right = {
        "conv, sigmoid of another input, float32": ["eng8"],
        "conv, cast and relu": ["eng8", "eng4_k24=29"],
        "conv, gradient of another input": ["eng8", "eng4_k24=29"],
        "conv, GELU's gradient at another input, float32": ["eng8"],
    }
    names = [] if isinstance(kept, Decline) else [candidate.name for candidate in kept]
    assert names == right.get(name, ["eng4_k24=29"])


@pytest.mark.parametrize("name", without_exact_plan())
def test_a_gradient_that_no_float32_engine_computes_rightly_is_left_to_tf32(name: str) -> None:
    anatomy = Anatomy(without_exact_plan()[name])
    found = [Proposal(PlanName.parse(n), 0, (), True) for n in ("eng8", "eng4_k24=29")]
    refusal = engine.trusted(anatomy, found, H200, Policy())
    assert isinstance(refusal, Decline)
    assert refusal.code == Code.PRECISION
    assert refusal.fix is not None
    assert (refusal.fix.attribute, refusal.fix.after) == ("precision", "tf32")
    kept = engine.trusted(anatomy, found, H200, Policy(precision="tf32"))
    assert not isinstance(kept, Decline)
    assert [candidate.name for candidate in kept] == ["eng4_k24=29"]


def test_an_engine_that_was_seen_to_vary_is_not_deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    assert offered(11).deterministic
    assert not offered(11, deterministic=False).deterministic
    monkeypatch.setitem(tables.VARYING, "conv+bias", frozenset({11}))
    assert not offered(11).deterministic
    assert offered(12).deterministic
