"""How one layer tells another "no": a falsy answer that carries its reason, so that no refusal is lost."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

NAME_ALONE = re.compile(r"\w(?:[\w.]*\w)?")
NAME = re.compile(f"%({NAME_ALONE.pattern})")
"""A node's or value's name, and as sentences write it."""


class Code(StrEnum):
    """Why an engine or a pass said no. A code in `FIXABLE` always comes with a fix."""

    DTYPE = "dtype"
    LAYOUT = "layout"
    SHAPE = "shape"
    RANK = "rank"
    ALIGNMENT = "alignment"
    BROADCAST = "broadcast"
    PATTERN = "pattern"
    OP = "op"
    ATTRIBUTE = "attribute"
    PRECISION = "precision"
    SIZE = "size"
    ARCHITECTURE = "architecture"
    VERSION = "version"
    SETUP = "setup"
    ESCAPE = "escape"
    OPTION = "option"
    BUILD = "build"
    RUN = "run"
    NUMBERS = "numbers"
    TRANSIENT = "transient"
    """Says nothing of the plan: out of memory, a child process that could not start.  Another time it may work."""


FIXABLE = frozenset({Code.DTYPE, Code.ALIGNMENT, Code.PRECISION, Code.SETUP, Code.OPTION})
"""Codes whose declines always name the nearest change that would be accepted."""


OVERRULED = frozenset({Code.OPTION, Code.BUILD, Code.RUN, Code.NUMBERS, Code.TRANSIENT})
"""Codes of the compiler's own refusals: an engine takes the region, but an option forbids it or its plans failed."""


@dataclass(frozen=True)
class Fix:
    """The nearest change that would be accepted: set `attribute` of `target` from `before` to `after`."""

    target: str
    attribute: str
    before: str
    after: str

    def __str__(self) -> str:
        if self.target == "environment":
            return f"install {self.after}"
        return f"change {self.attribute} of {self.target} from {self.before} to {self.after}"


@dataclass(frozen=True)
class Decline:
    """A "no" with its reason in the user's words; falsy, so that `if not answer` reads well."""

    code: Code
    reason: str
    fix: Fix | None = None

    @classmethod
    def of_row(cls, row: Sequence[str]) -> Self:
        """The decline that a `row` is.  Raises ValueError or TypeError where these texts are none."""
        code, reason, *fix = row
        return cls(Code(code), reason, Fix(*fix) if fix else None)

    @property
    def row(self) -> list[str]:
        """Code, reason and the four fields of the fix, if there is one: a decline in caches and messages."""
        fix = self.fix
        return [self.code.value, self.reason, *((fix.target, fix.attribute, fix.before, fix.after) if fix else ())]

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"{self.reason}; {self.fix}" if self.fix else self.reason


def missing(package: str, what: str) -> Decline:
    """The decline for a library that is not there, naming the package that brings it."""
    return Decline(Code.SETUP, f"{what}; {package} brings it", Fix("environment", "package", "missing", package))


def renamed(sentence: str, names: Mapping[str, str]) -> str:
    """The sentence with each `%name` that `names` knows exchanged."""
    return NAME.sub(lambda found: f"%{names.get(found[1], found[1])}", sentence)
