"""Fields of JSON that another process wrote, read strictly: a value of any other type is refused, never converted.

Each function returns the value it is given; it raises TypeError for another type, ValueError for a number out of range.
"""

from __future__ import annotations

import math
from typing import Any


def text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(value)
    return value


def texts(value: Any) -> tuple[str, ...]:
    if type(value) is not list or any(type(entry) is not str for entry in value):
        raise TypeError(value)
    return tuple(value)


def flag(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError(value)
    return value


def counts(value: Any) -> list[int]:
    """Whole numbers, none of them negative."""
    if type(value) is not list or any(type(entry) is not int or entry < 0 for entry in value):
        raise TypeError(value)
    return value


def count(value: Any) -> int:
    return counts([value])[0]


def pairs(value: Any) -> tuple[tuple[int, int], ...]:
    if type(value) is not list or any(len(counts(pair)) != 2 for pair in value):
        raise TypeError(value)
    return tuple([(first, second) for first, second in value])


def microseconds(value: Any) -> float:
    if type(value) is not float:
        raise TypeError(value)
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(value)
    return value


def optional_microseconds(value: Any) -> float | None:
    return None if value is None else microseconds(value)
