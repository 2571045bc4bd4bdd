"""Answers of engines as one entry of a cache: the JSON format, and the checks when it is read.

Texts and answers are stored once each, in tables: a network asks a thousand questions and gets a few hundred different
answers.  A row is five indices into them: the engine that was asked, target and policy, the region's key, the region's
wording (see `AnswerKey`), and the answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from graphdnn.answer import Code, Decline
from graphdnn.engines.contract import Support
from graphdnn.engines.json_fields import count, counts, flag, microseconds, optional_microseconds, pairs, text, texts

Answer = Support | Decline

Question = tuple[str, str, str]
"""The method that is asked, by its qualified name, target and policy as text, and the region's key."""

AnswerKey = tuple[str, str, str, str]
"""A question, and the region's names, which its answer mentions (`Region.wording`).  They are empty for a "yes", which
mentions none and so holds for every region with the same key."""

FORMAT = 2

UNCACHED = frozenset({Code.SETUP, Code.TRANSIENT})
"""Codes of refusals that are never cached: a missing package may be installed, a transient failure may not recur."""

TABLES = ("who", "circumstances", "regions", "wordings")
"""Tables of texts that a row has indices into, in its order; the index of the answer comes last."""

PARTS = frozenset({"format", *TABLES, "answers", "rows"})
WIDTH = len(TABLES) + 1

WRITER = json.JSONEncoder(default=repr)
"""Values that JSON lacks become text, which `comes_back` finds unequal, so that such answers are left out."""

UNREADABLE = (ValueError, KeyError, TypeError, RecursionError)
"""Errors that reading an entry of another form raises."""


def encode_answers(answers: Mapping[AnswerKey, Answer]) -> bytes:
    """The answers as JSON, without those that would not be read as equal ones."""
    tables: list[dict[str, int]] = [{} for _ in TABLES]
    numbers: dict[str, int] = {}
    is_sound: dict[str, bool] = {}
    rows: list[int] = []
    for key, answer in answers.items():
        written = WRITER.encode(row_of(answer))
        if written not in is_sound:
            is_sound[written] = comes_back(written, answer)
        if is_sound[written]:
            rows += [table.setdefault(word, len(table)) for table, word in zip(tables, key, strict=True)]
            rows.append(numbers.setdefault(written, len(numbers)))
    words = ", ".join(f'"{name}": {json.dumps(list(table))}' for name, table in zip(TABLES, tables, strict=True))
    return f'{{"format": {FORMAT}, {words}, "answers": [{", ".join(numbers)}], "rows": {json.dumps(rows)}}}'.encode()


def row_of(answer: Answer) -> list[Any]:
    """A "yes" is what Support has, in its order; a "no" its own row."""
    return [getattr(answer, name) for name in FIELDS] if isinstance(answer, Support) else answer.row


def comes_back(written: str, answer: Answer) -> bool:
    """Whether what was written of an answer is read as an equal one."""
    try:
        return answer_of(json.loads(written)) == answer
    except UNREADABLE:
        return False


def decode_answers(content: bytes) -> dict[AnswerKey, Answer] | None:
    """The answers of an entry; None where anything in it is not as `encode_answers` writes it."""
    try:
        found = json.loads(content)
        if type(found) is not dict or found.keys() != PARTS or found["format"] != FORMAT:
            return None
        tables = [texts(found[name]) for name in TABLES]
        answers = [answer_of(row) for row in found["answers"]]
        return answers_by_key(counts(found["rows"]), tables, answers)
    except UNREADABLE:
        return None


def answers_by_key(rows: list[int], tables: list[tuple[str, ...]], answers: list[Answer]) -> dict[AnswerKey, Answer]:
    """The answers by key.  Raises ValueError for an index beyond its table, and for a wording where none belongs."""
    columns = [rows[i::WIDTH] for i in range(WIDTH)]
    sizes = [*map(len, tables), len(answers)]
    if len(rows) % WIDTH or any(max(c, default=-1) >= size for c, size in zip(columns, sizes, strict=True)):
        raise ValueError("a row points at nothing")
    words = [[table[i] for i in column] for table, column in zip(tables, columns, strict=False)]
    said = [answers[i] for i in columns[-1]]
    if any(bool(wording) is isinstance(a, Support) for wording, a in zip(words[-1], said, strict=True)):
        raise ValueError("a yes is in no words, a no in those of a region")
    return dict(zip(zip(*words, strict=True), said, strict=True))


def answer_of(row: Any) -> Answer:
    """An answer as `row_of` writes it.  Raises ValueError or TypeError for anything else."""
    if not isinstance(row, list):
        raise TypeError("an answer is a list")
    if len(row) == len(FIELDS):
        return Support(*[read(value) for read, value in zip(FIELDS.values(), row, strict=True)])
    decline = Decline.of_row(texts(row))
    if decline.code in UNCACHED:
        raise ValueError(decline.code)
    return decline


FIELDS: dict[str, Callable[[Any], Any]] = {
    "estimated_us": microseconds,
    "precision": text,
    "kernels": count,
    "workspace_bytes": count,
    "deterministic": flag,
    "last_resort": flag,
    "notes": texts,
    "in_place": pairs,
    "untimed_us": optional_microseconds,
    "in_place_us": optional_microseconds,
}
"""How each field of Support is read, in the order in which it has them."""
