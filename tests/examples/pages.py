"""Pages of the documentation as programs: Python blocks and commands run in order, each beside what it prints.

`python -m tests.examples.pages FILE` writes into a page what its blocks print now.
"""

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from graphdnn.commands.cli import main

FENCE = re.compile(r"^```(\w+)(?: (\w+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\d+(\.\d+)?")


@dataclass(frozen=True)
class Printed:
    """What a block of text in a page says, where that stands, and what was printed when the page was run.

    `how` is empty where they must be equal but for spaces, "varies" where numbers may differ, "elsewhere" for what
    another machine printed.
    """

    page: str
    place: tuple[int, int]
    printed: str
    how: str

    @property
    def is_true(self) -> bool:
        said, found = self.page.split(), self.printed.split()
        if self.how == "varies":
            said, found = ([NUMBER.sub("#", word) for word in words] for words in (said, found))
        return self.how == "elsewhere" or said == found


def played(page: str) -> Iterator[Printed]:
    """Every block of a page that is printed, the page run in the current folder.  Raises what a block raises."""
    names: dict[str, Any] = {}
    blocks = list(FENCE.finditer(page))
    for block, after in pairwise((*blocks, None)):
        assert block is not None
        language, how, text = block[1], block[2] or "", block[3]
        if language == "python":
            printed = output(lambda text=text: exec(compile(text, text.partition("\n")[0], "exec"), names))
            if after is not None and after[1] == "text":
                yield Printed(after[3], after.span(3), printed, after[2] or "")
            else:
                assert not printed, f"{printed!r} is printed and stands nowhere"
        elif language == "console" and text.startswith("$ "):
            lines = [line for line in text.splitlines() if line.startswith("$ ")]
            yield Printed(text, block.span(3), "".join(map(commanded, lines)), how)


def commanded(line: str) -> str:
    """One command of a console, run in this process, and what it prints below it."""
    program, *arguments = shlex.split(line.removeprefix("$ "))
    assert program == "graphdnn", line
    return f"{line}\n{output(lambda: main(arguments))}"


def output(run: Any) -> str:
    """What is printed meanwhile, on either stream."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        run()
    return out.getvalue()


def rewritten(page: str) -> str:
    """The page with what its blocks print now, where that is not what it says."""
    for one in reversed(list(played(page))):
        if not one.is_true:
            start, end = one.place
            page = page[:start] + one.printed + page[end:]
    return page


if __name__ == "__main__":
    file = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        file.write_text(rewritten(file.read_text()))
