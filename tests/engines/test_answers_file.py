"""Answers as an entry of a cache: everything comes back as it was, and what somebody else wrote is not believed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphdnn.answer import Code, Decline, Fix
from graphdnn.engines.answers_file import FIELDS, FORMAT, UNCACHED, Answer, AnswerKey, decode_answers, encode_answers
from graphdnn.engines.contract import Support

YES = Support(
    0.1 + 0.2,
    "float16 in, float32 accumulate",
    kernels=2,
    workspace_bytes=1 << 40,
    deterministic=False,
    last_resort=True,
    notes=("tile 8", 'ü "quoted" \ud800\n'),
    in_place=((0, 1), (2, 0)),
    untimed_us=1e-300,
    in_place_us=2.5,
)
NO = Decline(Code.ALIGNMENT, "%y starts at 2", Fix("y", "alignment", "2", "16"))


def place(number: int, answer: Answer) -> AnswerKey:
    return "engine", "h200", f"region {number}", "" if isinstance(answer, Support) else f"words {number}"


def entry(*answers: Answer) -> dict[AnswerKey, Answer]:
    return {place(i, a): a for i, a in enumerate(answers)}


def exactly(found: dict[AnswerKey, Answer] | None) -> str:
    """Equal where types are too: 1 is no 1.0, and 0.0 no -0.0."""
    return repr(found)


def test_every_field_is_written_down() -> None:
    assert list(FIELDS) == [f.name for f in fields(Support)]
    defaults = Support(1.0, "")
    assert all(getattr(YES, name) != getattr(defaults, name) for name in FIELDS)


def test_answers_come_back_as_they_were() -> None:
    answers = entry(YES, NO, Support(0.0, ""), Support(-0.0, ""), Decline(Code.OP, ""), YES)
    answers["other engine", "h100", "region 0", ""] = YES
    assert exactly(decode_answers(encode_answers(answers))) == exactly(answers)
    assert decode_answers(encode_answers({})) == {}


TEXT = st.text(st.characters(exclude_categories=()), max_size=8)
COUNT = st.integers(0, 1 << 70)
US = st.floats(0, allow_infinity=False)
YESES = st.builds(
    Support,
    US,
    TEXT,
    COUNT,
    COUNT,
    st.booleans(),
    st.booleans(),
    st.lists(TEXT, max_size=3).map(tuple),
    st.lists(st.tuples(COUNT, COUNT), max_size=2).map(tuple),
    st.none() | US,
)
NOS = st.builds(
    Decline,
    st.sampled_from([c for c in Code if c not in UNCACHED]),
    TEXT,
    st.none() | st.builds(Fix, TEXT, TEXT, TEXT, TEXT),
)


@given(st.lists(YESES | NOS, max_size=6))
def test_any_answers_come_back(answers: list[Answer]) -> None:
    assert exactly(decode_answers(encode_answers(entry(*answers)))) == exactly(entry(*answers))


@pytest.mark.parametrize(
    "answer",
    [
        replace(YES, estimated_us=math.inf),
        replace(YES, estimated_us=math.nan),
        replace(YES, estimated_us=-1.0),
        replace(YES, estimated_us=3),
        replace(YES, untimed_us=math.inf),
        replace(YES, workspace_bytes=np.int64(3)),
        replace(YES, workspace_bytes=-1),
        replace(YES, kernels=True),
        replace(YES, notes=("a", 3)),
        replace(YES, notes=["a"]),
        replace(YES, in_place=((0, 1, 2),)),
        replace(YES, precision=b"float16"),
        replace(NO, reason=None),
        Decline(Code.OP, "", Fix("y", "dtype", 1, "x")),  # type: ignore[arg-type]
        *[Decline(code, "of the moment") for code in sorted(UNCACHED)],
    ],
    ids=repr,
)
def test_what_would_not_come_back_is_left_out(answer: Answer) -> None:
    assert decode_answers(encode_answers(entry(YES, answer, NO))) == {
        key: value for key, value in entry(YES, answer, NO).items() if value is not answer
    }


def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    read = json.loads(encode_answers(entry(YES, NO)))
    change(read)
    return json.dumps(read).encode()


def put(where: str, value: Any) -> Callable[[dict[str, Any]], object]:
    """Sets what stands at a path such as "answers.0.3"."""

    def change(read: Any) -> None:
        *path, last = where.split(".")
        for step in path:
            read = read[int(step) if isinstance(read, list) else step]
        read[int(last) if isinstance(read, list) else last] = value

    return change


SPOILT: dict[str, Callable[[dict[str, Any]], object]] = {
    "another format": put("format", FORMAT + 1),
    "a part more": put("more", []),
    "a part less": lambda read: read.pop("who"),
    "no table": put("who", "engine"),
    "a number among texts": put("regions", ["region 0", 1]),
    "no answers": put("answers", {}),
    "an answer that is none": put("answers.0", 3),
    "an answer of texts that are none": put("answers.1", ["op", 3]),
    "no code": put("answers.1.0", "nonsense"),
    "a code of the moment": put("answers.1.0", "setup"),
    "half a fix": lambda read: read["answers"][1].pop(),
    "half an answer": lambda read: read["answers"][0].pop(),
    "a time that is none": put("answers.0.0", "3"),
    "a whole number for a time": put("answers.0.0", 3),
    "infinity": put("answers.0.0", math.inf),
    "nan": put("answers.0.0", math.nan),
    "a negative time": put("answers.0.0", -1.0),
    "a number for a truth": put("answers.0.4", 1),
    "a truth for a number": put("answers.0.2", True),
    "a text for notes": put("answers.0.6", "tile 8"),
    "three in a pair": put("answers.0.7", [[0, 1, 2]]),
    "a text for a pair": put("answers.0.7", ["01"]),
    "rows that are none": put("rows", "0"),
    "a row too short": lambda read: read["rows"].pop(),
    "a row beyond its table": put("rows.0", 1),
    "a row beyond the answers": put("rows.4", 2),
    "a negative place": put("rows.0", -1),
    "a fraction for a place": put("rows.0", 0.0),
    "a truth for a place": put("rows.0", False),
    "a yes in words": put("rows.4", 1),
    "a no in none": put("rows.9", 0),
}


@pytest.mark.parametrize("name", SPOILT)
def test_what_somebody_else_wrote_is_not_believed(name: str) -> None:
    assert decode_answers(changed(lambda read: None)) == entry(YES, NO)
    assert decode_answers(changed(SPOILT[name])) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]",
        b"3",
        b'"format"',
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b"\0" * 64,
        b'{"format": 1' + b"0" * 5000,
    ],
    ids=lambda c: repr(c[:12]),
)
def test_what_is_no_entry_is_not_believed(content: bytes) -> None:
    assert decode_answers(content) is None


@given(st.data())
def test_damage_is_noticed_or_does_no_harm(data: st.DataObject) -> None:
    """A checksum stands before this; without it, whatever is read still has the types of answers."""
    raw = bytearray(encode_answers(entry(YES, NO, Support(2.0, "float32"))))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    found = decode_answers(bytes(raw))
    if found is not None:
        assert exactly(decode_answers(encode_answers(found))) == exactly(found)
