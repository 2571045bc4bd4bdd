"""The command `graphdnn cache`: what the disk cache holds, whether it is sound, and how to empty it."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from graphdnn.errors import GraphDnnError
from graphdnn.spelling import byte_count, counted, hint, quoted

if TYPE_CHECKING:
    from pathlib import Path

    from graphdnn.runtime.cache import DiskStore, Entry

Answer = tuple[list[str], int]
"""Lines to print, and the exit status."""

LABEL = 24
"""Characters of a key that is no JSON object."""


def add_cache(commands: argparse._SubParsersAction[Any], run: Callable[[argparse.Namespace], int]) -> None:
    """Adds the command and its three parts; `run` prints what `options.answer(options)` gives and exits with its
    status."""
    parts = commands.add_parser("cache", help="look at the disk cache, check it or empty it").add_subparsers(
        required=True, metavar="PART"
    )
    for name, answer, help in (
        ("list", listed, "print every entry: kind, size, last use, and what it is of"),
        (
            "verify",
            verified,
            "read every entry and remove what is damaged; the status is 1 where something was, or cannot be read",
        ),
        ("clear", cleared, "remove every entry; the status is 1 where one cannot be removed"),
    ):
        part = parts.add_parser(name, help=help)
        part.add_argument("--dir", metavar="DIRECTORY", help="the cache's directory, where it is not the default one")
        part.set_defaults(run=run, answer=answer)
        if name != "verify":
            part.add_argument("--kind", help="entries of this kind only, such as cubin or cudnn-plan")


def store_of(options: argparse.Namespace) -> DiskStore:
    """The cache that is meant.  Raises GraphDnnError for what is no folder, OSError for one that cannot be read."""
    from graphdnn.runtime.cache import DiskStore, default_directory

    if options.dir == "":
        raise GraphDnnError("cache: --dir is empty; a folder is needed")
    store = DiskStore(default_directory() if options.dir is None else options.dir)
    if store.directory.exists():
        if not store.directory.is_dir():
            raise GraphDnnError(f"cache: {store.directory} is no folder; a folder is needed")
        for folder in (store.directory, *(f for f in store.directory.iterdir() if is_kind(f))):
            next(folder.iterdir(), None)  # looking for entries passes over what cannot be read
    return store


def is_kind(folder: Path) -> bool:
    """Whether a folder is one of the cache's, by its name; others are not looked into."""
    from graphdnn.runtime.cache import KIND

    return KIND.fullmatch(folder.name) is not None and folder.is_dir() and not folder.is_symlink()


def place(store: DiskStore) -> str:
    """The folder, as the last words of a line."""
    return str(store.directory) if store.directory.exists() else f"{store.directory}, which is not there"


def no_such_kind(kind: str | None, entries: Sequence[Entry]) -> list[str]:
    """A line where there are entries and none is of the kind that was asked for."""
    kinds = sorted({e.kind for e in entries})
    if kind is None or not kinds or kind in kinds:
        return []
    return [f"there is no entry of kind {quoted(kind)}{hint(kind, kinds)} (kinds here are {', '.join(kinds)})"]


def listed(options: argparse.Namespace) -> Answer:
    store = store_of(options)
    every = store.entries()
    entries = [e for e in reversed(every) if options.kind in (None, e.kind)]
    width = max((len(e.kind) for e in entries), default=0)
    lines = no_such_kind(options.kind, every)
    for entry in entries:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        lines.append(f"{entry.kind:{width}}  {byte_count(entry.nbytes):>10}  {used}  {label(entry)}")
    total = byte_count(sum(e.nbytes for e in entries))
    return [*lines, f"{counted(len(entries), 'entry')}, {total}, in {place(store)}"], 0


def verified(options: argparse.Namespace) -> Answer:
    from graphdnn.runtime.cache import Check

    said = {
        Check.REMOVED: "removed {}: it has the name of an entry and is damaged or none",
        Check.STUCK: "{} has the name of an entry and is damaged or none, and cannot be removed",
        Check.UNREAD: "{} cannot be read",
    }
    store = store_of(options)
    found = list(store.verify())
    lines = [said[check].format(entry.path) for entry, check in found if check in said]
    sound = len(found) - len(lines)
    verb = "is" if sound == 1 else "are"
    total = f"{sound} of {counted(len(found), 'entry')} {verb} sound, in {place(store)}"
    return [*lines, total], 1 if lines else 0


def cleared(options: argparse.Namespace) -> Answer:
    """The status is 1 where an entry cannot be removed."""
    store = store_of(options)
    lines = no_such_kind(options.kind, store.entries())
    found = store.clear(options.kind)
    stuck = [f"{entry.path} cannot be removed" for entry, is_gone in found if not is_gone]
    total = f"removed {counted(len(found) - len(stuck), 'entry')} from {place(store)}"
    return [*lines, *stuck, total], 1 if stuck else 0


def label(entry: Entry) -> str:
    """What an entry is of, in one line of printable text: plan, region, graph and device where its key tells them."""
    key = entry.key()
    if key is None:
        return "(damaged)"
    try:
        facts = json.loads(key)
    except (ValueError, RecursionError):
        facts = None
    words = [key[:LABEL]]
    if isinstance(facts, dict):
        known = {name: str(facts[name]) for name in ("engine", "plan", "region", "graph", "device") if name in facts}
        words = [f"{name} {value[:12] if name == 'region' else value}" for name, value in known.items()]
    return "".join(c if c.isprintable() else "?" for c in ", ".join(words))
