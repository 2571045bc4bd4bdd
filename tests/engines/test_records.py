"""Timings of earlier processes: an entry comes back as it was kept, and one that anybody else wrote is not believed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

import graphdnn as gd
from graphdnn.answer import Code, Decline, Fix
from graphdnn.engines.contract import Candidate, Policy
from graphdnn.engines.records import TuningRecord, TuningRecords
from graphdnn.engines.trial import Limits, Tried
from graphdnn.ir.region import Region
from graphdnn.target import Target
from tests.engines.shelf import Shelf


class Memory:
    """A store in memory that keeps one entry."""

    content: bytes | None = None

    def get(self, kind: str, key: str) -> bytes | None:
        return self.content

    def put(self, kind: str, key: str, content: bytes) -> None:
        self.content = content

    def drop(self, kind: str, key: str) -> None:
        self.content = None


def region(width: int = 3) -> Region:
    g = gd.GraphBuilder("g")
    graph = g.build({"y": g.relu(g.input("x", (2, width), gd.float32))})
    return Region.of(graph, list(graph.nodes))


def kept() -> tuple[TuningRecords, Memory, Region, TuningRecord]:
    one, store = region(), Memory()
    plans = (
        Tried(Candidate("one", one, "a", 64, "float32", notes=("quick",)), "slower", measured_us=2.5),
        Tried(Candidate("one", one, "b", 0, "tf32", deterministic=False), "wrong", "3 of 6 elements differ"),
    )
    fix = Fix("x", "dtype", "float32", "float16")
    found = TuningRecord({"one": plans}, {"one": Decline(Code.DTYPE, "no plan", fix)}, "a remark")
    records = TuningRecords(store, Target.cpu(), Policy(), Limits())
    records.keep(one, found)
    return records, store, one, found


def test_an_entry_comes_back_as_it_was() -> None:
    records, _, one, found = kept()
    assert records.recall(one, ["one"]) == found


HERE = replace(Target.named("h200"), versions={"cudnn": "9.19.0", "driver": "13.0", "driver_release": "580.95.05"})


@pytest.mark.parametrize(
    "change",
    [
        {"target": {"name": "h100"}},
        {"target": {"sm_count": 16}},
        {"target": {"compute_capability": (10, 0)}},
        *({"target": {"versions": {**HERE.versions, name: "0"}}} for name in HERE.versions),
        {"policy": {"precision": "tf32"}},
        {"policy": {"deterministic": True}},
        {"policy": {"workspace_limit": 0}},
        {"limits": {"disabled": ("one:a",)}},
        {"limits": {"scratch": 100}},
        {"tuning_memory": 1 << 20},
        {"width": 4},
    ],
    ids=str,
)
def test_what_was_found_elsewhere_or_otherwise_is_not_recalled(change: dict[str, Any]) -> None:
    shelf = Shelf()

    def records(target: Any = (), policy: Any = (), limits: Any = (), tuning_memory: int | None = None) -> Any:
        machine = replace(HERE, **dict(target))
        return TuningRecords(shelf, machine, Policy(**dict(policy)), Limits(**dict(limits)), tuning_memory)

    other = {name: value for name, value in change.items() if name != "width"}
    _, _, one, found = kept()
    records().keep(one, found)
    records().keep_whole("graph", ["one"], {"plain": 5.0})
    assert records({"ordinal": 3}).recall(one, ["one"]) == found
    assert records(**other).recall(region(change.get("width", 3)), ["one"]) is None
    assert records().recall(one, ["one", "other"]) is None
    assert records().recall_whole("graph", ["one"]) == {"plain": 5.0}
    assert records().recall_whole("another", ["one"]) is None
    assert (records(**other).recall_whole("graph", ["one"]) is None) == bool(other)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("deterministic", "False"),
        ("deterministic", 0),
        ("workspace", 64.5),
        ("workspace", "64"),
        ("workspace", -1),
        ("name", 7),
        ("precision", None),
        ("notes", "quick"),
        ("reason", ["too slow"]),
        ("us", "2.5"),
        ("us", 0.0),
        ("us", True),
        ("verdict", "chosen"),
    ],
)
def test_a_field_of_another_type_is_not_converted(field: str, value: object) -> None:
    records, store, one, _ = kept()
    assert store.content is not None
    entry: dict[str, Any] = json.loads(store.content)
    entry["engines"]["one"][0][field] = value
    store.content = json.dumps(entry).encode()
    with pytest.warns(RuntimeWarning, match="a cached timing of relu is dropped"):
        assert records.recall(one, ["one"]) is None
    assert store.content is None


def test_a_refusal_or_a_remark_that_is_no_text_is_not_converted() -> None:
    records, store, one, _ = kept()
    assert store.content is not None
    for change in ({"note": 5}, {"refused": {"one": ["dtype", 5]}}, {"refused": {"one": ["colour", "no plan"]}}):
        entry = {**json.loads(store.content), **change}
        changed = Memory()
        changed.content = json.dumps(entry).encode()
        with pytest.warns(RuntimeWarning, match="a cached timing of relu is dropped"):
            assert TuningRecords(changed, Target.cpu(), Policy(), Limits()).recall(one, ["one"]) is None
    assert records.recall(one, ["one"]) is not None
