"""Judging numbers: draws lead nowhere outside, right results pass whatever the op, wrong ones do not."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.engines import check
from graphdnn.engines.check import Checker, difference, index_roles, inputs_for
from graphdnn.engines.contract import Policy
from graphdnn.engines.definition import definition
from graphdnn.engines.reference import ReferencePlan
from graphdnn.ir.region import Region
from graphdnn.ir.types import Array, TensorType
from tests.ir.samples import SAMPLES
from tests.ir.samples.sample import Sample


def whole(graph: gd.Graph) -> Region:
    return Region.of(graph, graph.nodes)


def verdicts(region: Region, rng: np.random.Generator, **results: list[Array]) -> dict[str, str]:
    """Reasons by name, each name being an implementation; the part behind "__" tells plans of one engine apart."""
    inputs = inputs_for(region, np.random.default_rng(0))
    checker = Checker(region, inputs, Policy(), rng)
    findings = [checker.finding(name.split("__")[0], "", arrays) for name, arrays in results.items()]
    return dict(zip(results, checker.judge(findings), strict=True))


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_results_rounded_at_each_node_are_right_and_lost_ones_are_not(sample: Sample, rng: np.random.Generator) -> None:
    """The CPU's plan rounds every intermediate, more than any fused kernel does."""
    region = whole(sample.graph(rng))
    if not region.outputs or not region.inputs:
        return
    inputs = inputs_for(region, rng)
    for value, array in zip(region.inputs, inputs, strict=True):
        assert (array.shape, array.dtype) == (value.type.shape, value.type.dtype.numpy)
        assert array.strides == tuple(s * array.itemsize for s in value.type.layout) or array.size < 2
    checker = Checker(region, inputs, Policy(), rng)
    found = ReferencePlan(region).run(inputs)
    assert checker.judge([checker.finding("cpu", "", found)]) == [""]
    lost = [np.full_like(a, np.nan) if v.type.dtype.is_float else a for a, v in zip(found, region.outputs, strict=True)]
    if any(
        v.type.dtype.is_float and np.isfinite(a.astype(float)).any() for a, v in zip(found, region.outputs, strict=True)
    ):
        assert "not a number" in checker.judge([checker.finding("cpu", "", lost)])[0]


@pytest.mark.parametrize(
    "sample", [s for s in SAMPLES if any(w in str(s) for w in ("gather", "write", "length"))], ids=str
)
def test_indices_stay_inside(sample: Sample, rng: np.random.Generator) -> None:
    region = whole(sample.graph(rng))
    by_value = dict(zip(region.inputs, inputs_for(region, rng), strict=True))
    for node in region.nodes:
        for index, largest in index_roles(node).items():
            if node.operands[index] in by_value:
                array = by_value[node.operands[index]]
                assert 0 <= array.min() <= array.max() <= largest


def test_computed_indices_come_from_zeros(rng: np.random.Generator) -> None:
    g = gd.GraphBuilder()
    table, i = g.input("table", (7, 3), gd.float32), g.input("i", (5,), gd.int32)
    region = whole(g.build({"y": g.gather(table, g.mul(i, i), axis=0)}))
    drawn = dict(zip((v.name for v in region.inputs), inputs_for(region, rng), strict=True))
    assert not drawn["i"].any()
    assert drawn["table"].any()


def product(rows: int = 32, inner: int = 64, dtype: gd.DType = gd.float16) -> Region:
    g = gd.GraphBuilder()
    a, b = g.input("a", (rows, inner), dtype), g.input("b", (inner, 24), dtype)
    return whole(g.build({"y": g.gelu(g.matmul(a, b))}))


def right(region: Region) -> list[Array]:
    inputs = inputs_for(region, np.random.default_rng(0))
    return [a.astype(v.type.dtype.numpy) for a, v in zip(definition(region, inputs), region.outputs, strict=True)]


def test_products_are_drawn_of_about_one(rng: np.random.Generator) -> None:
    """So that what follows them is neither saturated nor linear."""
    (y,) = right(product(300, 4096))
    assert 2 < np.abs(y.astype(float)).max() < 10


WRONG = {
    "off by a factor": lambda y: y * 1.01,
    "a tile is missing": lambda y: np.concatenate([y[:8] * np.nan, y[8:]]),
    "a row is missing": lambda y: np.concatenate([y[:-1], 0 * y[-1:]]),
    "rows swapped": lambda y: y[::-1],
    "infinite": lambda y: y / 0,
    "another gelu": lambda y: y + np.where(np.abs(y) < 0.5, 0.02, 0),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_wrong_results_are_found(name: str, rng: np.random.Generator) -> None:
    region = product()
    (y,) = right(region)
    reasons = verdicts(region, rng, good=[y], bad=[np.asarray(WRONG[name](y))])
    assert not reasons["good"]
    assert reasons["bad"]


def test_of_several_outputs_the_wrong_one_is_numbered(rng: np.random.Generator) -> None:
    """By no name: regions of equal structure share the sentence."""
    g = gd.GraphBuilder()
    y = g.tanh(g.input("x", (7, 5), gd.float32), name="first")
    region = whole(g.build({"y": y, "z": g.exp(y, name="second")}))
    first, second = right(region)
    reasons = verdicts(region, rng, good=[first, second], bad=[first, second * 2], worse=[first * 2, second])
    assert reasons["good"] == ""
    assert reasons["bad"].startswith("output 2 of 2: 35 of 35 elements are off, by up to 1 of the peak")
    assert reasons["worse"].startswith("output 1 of 2: 35 of 35 elements are off")


def test_tf32_is_wrong_where_float32_is_asked_for(rng: np.random.Generator) -> None:
    region = product(dtype=gd.float32)
    inputs = inputs_for(region, np.random.default_rng(0))
    rounded = [(a.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for a in inputs]
    found = [a.astype(np.float32) for a in definition(region, rounded)]
    for policy, precision, is_right in (
        (Policy(), "float32", False), (Policy("tf32"), "tf32", True), (Policy("reduced"), "tf32", True)
    ):  # fmt: skip
        checker = Checker(region, inputs, policy, rng)
        assert (not checker.judge([checker.finding("v", precision, found)])[0]) is is_right


class TestLarge:
    """Regions that are too large for the definition: here every region is."""

    @pytest.fixture(autouse=True)
    def everything_is_large(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(check, "AT_ONCE_S", -1.0)

    def test_the_largest_group_of_engines_that_agree_is_trusted(
        self, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(check, "DISPUTE_S", -1.0)
        region = product()
        (y,) = right(region)
        near = [(y * 1.0005).astype(y.dtype)]
        # Many plans of one engine share its faults: they are one implementation.
        many = {f"bad__{i}": [y * 2] for i in range(5)}
        reasons = verdicts(region, rng, one=[y], two=near, **many)
        assert [n for n, r in reasons.items() if r] == list(many)

    def test_exact_plans_are_not_wrong_where_most_round_to_tf32(self, rng: np.random.Generator) -> None:
        region = product(dtype=gd.float32)
        inputs = inputs_for(region, np.random.default_rng(0))
        exact = [a.astype(np.float32) for a in definition(region, inputs)]
        cut = [(a.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for a in inputs]
        rounded = [a.astype(np.float32) for a in definition(region, cut)]
        checker = Checker(region, inputs, Policy("tf32"), rng)
        found = [checker.finding(name, "tf32", rounded) for name in ("one", "two")]
        found += [checker.finding("three", "float32", a) for a in (exact, [2 * a for a in exact])]
        assert [bool(reason) for reason in checker.judge(found)] == [False, False, False, True]
        # Among exact plans, the same difference is a fault.
        found = [checker.finding(v, "float32", a) for v, a in (("one", exact), ("two", exact), ("three", rounded))]
        assert [bool(reason) for reason in checker.judge(found)] == [False, False, True]

    def test_a_tie_is_settled_by_the_definition(self, rng: np.random.Generator) -> None:
        region = product()
        (y,) = right(region)
        reasons = verdicts(region, rng, bad=[y * 2], good=[y])
        assert (bool(reasons["bad"]), reasons["good"]) == (True, "")
        reasons = verdicts(region, rng, bad=[y * 2], worse=[y * 3])
        assert all(reasons.values())

    def test_outputs_are_compared_at_places_drawn_at_random(
        self, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(check, "COMPARED", 4096)
        region = product(3000)
        (y,) = right(region)
        torn = y.copy()
        torn[128:192] = np.nan
        reasons = verdicts(region, rng, one=[y], two=[y], bad=[torn])
        assert [n for n, r in reasons.items() if r] == ["bad"]
        assert "of 4096 elements" in reasons["bad"]

    def test_a_part_of_the_batch_settles_what_is_too_large(
        self, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(check, "COMPARED", 4096)
        monkeypatch.setattr(check, "PART_S", 1e-4)
        region = product(3000)
        (y,) = right(region)
        parts: list[slice | None] = []

        def told(region: Region, inputs: list[Array], block: slice | None = None) -> list[Array]:
            parts.append(block)
            return definition(region, inputs, block)

        monkeypatch.setattr(check, "definition", told)
        assert not verdicts(region, rng, one=[y])["one"]
        torn = y.copy()
        torn[-64:] = 0
        reasons = verdicts(region, rng, bad=[torn], good=[y])
        assert (bool(reasons["bad"]), reasons["good"]) == (True, "")
        (part,) = parts
        assert part is not None
        assert 0 < part.start < part.stop == 3000

    @pytest.mark.parametrize("order", list(permutations(["bad", "one", "two"])), ids="".join)
    def test_what_nobody_wrote_is_wrong_whoever_is_asked_first(
        self, order: tuple[str, ...], rng: np.random.Generator
    ) -> None:
        """Memory is poisoned with NaN before each run, and a plan that leaves some of it is no measure for others."""
        region = product(300)
        (y,) = right(region)
        torn = y.copy()
        torn[:, -3:] = np.nan
        results = {"bad": [torn], "one": [y], "two": [y]}
        reasons = verdicts(region, rng, **{name: results[name] for name in order})
        assert [n for n, r in reasons.items() if r] == ["bad"]
        assert "900 are not a number" in reasons["bad"]

    @pytest.mark.parametrize("names", [("bad", "good"), ("eng__bad", "eng__good")], ids="".join)
    @pytest.mark.parametrize("rows", [slice(0, 64), slice(1400, 1500), slice(2990, 3000)], ids=str)
    def test_the_part_is_where_plans_contradict_each_other(
        self, rows: slice, names: tuple[str, str], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whether they are of two implementations or of one, which is held against the definition alone."""
        monkeypatch.setattr(check, "COMPARED", 4096)
        monkeypatch.setattr(check, "PART_S", 1e-4)
        region = product(3000)
        (y,) = right(region)
        torn = y.copy()
        torn[rows] = 0
        checker = Checker(region, inputs_for(region, np.random.default_rng(0)), Policy(), rng)
        findings = [checker.finding(n.split("__")[0], "", [a]) for n, a in zip(names, (torn, y), strict=True)]
        judge = checker.judge if len({f.implementation for f in findings}) > 1 else checker.by_definition
        assert [bool(reason) for reason in judge(findings)] == [True, False]
        assert [bool(reason) for reason in judge(findings[::-1])] == [False, True]


@pytest.mark.parametrize("view", ["plain", "turned", "reversed", "repeated", "every other"])
def test_elements_are_found_wherever_they_lie(view: str, rng: np.random.Generator) -> None:
    base = rng.standard_normal((6, 5, 4)).astype(np.float16)
    array = {
        "plain": base,
        "turned": base.transpose(2, 0, 1),
        "reversed": base[:, ::-1],
        "repeated": np.broadcast_to(base[:1], (7, 5, 4)),
        "every other": base[::2, :, 1::2],
    }[view]
    places = tuple(rng.integers(0, n, 50) for n in array.shape)
    np.testing.assert_array_equal(check.at(array, places), array[places])


def test_a_sum_that_is_zero_by_chance_is_measured_against_its_terms(rng: np.random.Generator) -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (1 << 16,), gd.float32)
    region = whole(g.build({"y": g.reduce_sum(x, axes=0)}))
    inputs = [np.where(np.arange(1 << 16) % 2, 1, -1).astype(np.float32)]
    checker = Checker(region, inputs, Policy(), rng)
    reasons = checker.judge([checker.finding("v", "", [np.asarray(np.float32(e))]) for e in (0.01, 60.0)])
    assert (reasons[0], bool(reasons[1])) == ("", True)


def test_roundings_that_jump_may_miss_a_few_elements(rng: np.random.Generator) -> None:
    wanted = np.zeros(10_000)
    found = wanted.copy()
    found[:5] = 1
    type = TensorType((10_000,), gd.float32)
    assert difference(found, wanted, type, 1e-5, 1.0, 0.0)
    assert not difference(found, wanted, type, 1e-5, 1.0, check.SHARP_SHARE)
    found[:50] = 1
    assert difference(found, wanted, type, 1e-5, 1.0, check.SHARP_SHARE)
