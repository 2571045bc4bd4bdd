"""What a report says of regions and answers is what was decided: by engines whose prices and plans the test gives."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

import graphdnn as gd
from graphdnn.answer import Code, Decline
from graphdnn.engines import manifest
from graphdnn.engines.contract import Candidate, Device, Policy, Support
from graphdnn.ir.region import Region
from graphdnn.report.account import is_preferred
from graphdnn.target import Target
from tests.cases.fake_engine import FakeEngine
from tests.planned import answers, h200_report


class Priced(FakeEngine):
    """Takes the sets of nodes that `COSTS` names at these microseconds."""

    COSTS: ClassVar[dict[frozenset[str], float]] = {}

    def supports(self, region: Region, target: Target, policy: Policy) -> Support | Decline:
        us = self.COSTS.get(frozenset(region.origins))
        if us is None:
            return Decline(Code.PATTERN, f"fake does not take {region.pattern}")
        return Support(us, "float32, or less", kernels=3)

    def candidates(self, region: Region, device: Device, policy: Policy) -> Sequence[Candidate] | Decline:
        made = super().candidates(region, device, policy)
        assert not isinstance(made, Decline)
        return [replace(c, precision="less", deterministic=False) for c in made]


@pytest.fixture
def priced(monkeypatch: pytest.MonkeyPatch) -> type[Priced]:
    """The only engine of the CPU."""
    monkeypatch.setitem(manifest.MANIFEST, "fake", f"{__name__}:Priced")
    monkeypatch.setitem(manifest.BY_KIND, "cpu", ("fake",))
    monkeypatch.setattr(Priced, "COSTS", {})
    return Priced


def crossed() -> gd.Graph:
    """Two values that are both read by two."""
    g = gd.GraphBuilder("crossed")
    x = g.input("x", (3, 5), gd.float32)
    a, b = g.tanh(x, name="a"), g.exp(x, name="b")
    return g.build({"c": g.add(a, b, name="c"), "d": g.mul(a, b, name="d")})


def test_of_two_regions_that_wait_for_each_other_one_is_a_conflict(priced: type[Priced]) -> None:
    """Each would be the cheapest; chosen together they have no order."""
    priced.COSTS.update({frozenset(one): 10.0 for one in "abcd"} | {frozenset("ac"): 1.0, frozenset("bd"): 2.0})
    exe = gd.compile(crossed(), target="cpu")
    found = {nodes: answers(exe.report, "fake", *nodes)[0] for nodes in ("ac", "bd", "b", "a")}
    assert {nodes: c.verdict for nodes, c in found.items()} == {
        "ac": "chosen",
        "bd": "conflict",
        "b": "chosen",
        "a": "slower",
    }
    assert found["bd"].reason == "together with other regions of the cheapest cover it would wait for its own result"
    assert "conflict: fake exp+mul: together with other regions" in exe.explain()


def test_a_region_says_of_itself_what_its_plan_is(priced: type[Priced]) -> None:
    """What the engine said of the region before is less exact."""
    priced.COSTS.update({frozenset("abcd"): 1.0})
    (region,) = gd.compile(crossed(), target="cpu").report.regions
    assert (region.precision, region.deterministic, region.kernels) == ("less", False, 1)


def test_a_described_device_takes_the_engines_word() -> None:
    """A product of few rows, whose sum is split, is two kernels."""
    g = gd.GraphBuilder("split")
    x, w = g.input("x", (64, 4096), gd.float16), g.input("w", (4096, 512), gd.float16)
    report = h200_report(g.build({"y": g.matmul(x, w)}))
    (region,) = report.regions
    assert (region.kernels, report.kernel_count, report.unfused_kernel_count) == (2, 2, 1)
    assert region.workspace_bytes > 0


def test_what_would_move_unfused_is_counted_a_node() -> None:
    """Each operand once a node, each result, and views not at all."""
    g = gd.GraphBuilder("bytes")
    x, b = g.input("x", (3, 5), gd.float32), g.input("b", (5,), gd.float32)
    square = g.mul(x, x)
    report = h200_report(g.build({"y": g.relu(g.reshape(g.add(square, b), (15,)))}))
    assert report.unfused_bytes == (60 + 60) + (60 + 20 + 60) + (60 + 60)
    assert (report.unfused_kernel_count, report.kernel_count) == (3, 1)


@pytest.mark.parametrize("kept", [False, True], ids=["in place", "beside the old value"])
def test_a_slice_of_a_state_moves_its_window_alone_unless_the_old_value_is_read_later(kept: bool) -> None:
    """A cache of 8 MiB is not copied for a token of 2 KiB, and one kernel a node would not copy it either."""
    whole, window = 1 * 8 * 4096 * 128 * 2, 1 * 8 * 1 * 128 * 2
    g = gd.GraphBuilder("cache")
    cache, token = g.state("cache", (1, 8, 4096, 128), gd.float16), g.input("token", (1, 8, 1, 128), gd.float16)
    new = g.write_slice(cache, token, g.input("at", (1,), gd.int32), axis=2)
    outputs = {"y": g.reduce_sum(new, axes=(2, 3))}
    if kept:
        outputs["old"] = cache * g.unsqueeze(outputs["y"], (2, 3))
    report = h200_report(g.build(outputs, updates={"cache": new}))
    (region,) = (r for r in report.regions if r.pattern == "write_slice")
    moved = (whole - window + window + 4, whole) if kept else (window + 4, window)
    assert (region.read_bytes, region.written_bytes) == moved
    assert (region.estimated_us > 6) == kept
    later = whole + 8 * 2 + whole if kept else 0
    assert report.unfused_bytes == sum(moved) + whole + 8 * 2 + later


def test_every_answer_that_overlaps_a_region_is_among_its_alternatives() -> None:
    g = gd.GraphBuilder("block")
    x, w = g.input("x", (64, 128), gd.float16), g.input("w", (128, 96), gd.float16)
    y = g.relu(g.bias(g.matmul(x, w), g.input("b", (96,), gd.float16), axis=-1))
    report = h200_report(g.build({"y": g.softmax(y), "z": g.matmul(y, g.input("v", (96, 40), gd.float16))}))
    assert len(report.regions) >= 3
    for region in report.regions:
        overlapping = {c.id for c in report.candidates if set(c.nodes) & set(region.nodes) and c.verdict != "chosen"}
        assert {c.id for c in region.alternatives} == overlapping


@pytest.mark.parametrize(
    ("precision", "channels", "rival", "preferred"),
    [
        ("float32", 64, True, True),
        ("float32", 64, False, False),
        ("float16 in, float32 accumulate", 64, True, False),
        ("float16 in, float32 accumulate", 3, True, True),
        ("float16 in, float32 accumulate", 3, False, False),
    ],
)
def test_a_plain_kernel_is_preferred_only_where_libraries_lack_their_best(
    precision: str, channels: int, rival: bool, preferred: bool
) -> None:
    """Elsewhere it is a last resort, however cheap it is said to be."""
    g = gd.GraphBuilder("conv")
    x, w = g.input("x", (1, channels, 9, 9), gd.float16), g.input("w", (8, channels, 3, 3), gd.float16)
    graph = g.build({"y": g.relu(g.conv(x, w))})
    region, alone = Region.of(graph, graph.nodes), Region.of(graph, graph.nodes[:1])
    entries: list[tuple[Region, Any]] = [(alone, SimpleNamespace(engine="nvrtc", code=None))]
    entries += [(alone, SimpleNamespace(engine="cudnn", code=None if rival else "dtype"))]
    assert is_preferred(Support(1.0, precision), "nvrtc", region, entries) is preferred
