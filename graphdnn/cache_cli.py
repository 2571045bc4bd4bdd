"""The command `graphdnn cache`: what the disk cache holds, whether it is sound, and how to empty it."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphdnn.spelling import counted

if TYPE_CHECKING:
    from graphdnn.runtime.cache import DiskStore, Entry

UNITS = ("B", "KiB", "MiB", "GiB")
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
        ("verify", verified, "read every entry and remove what is damaged; the status is 1 where something was"),
        ("clear", cleared, "remove every entry"),
    ):
        part = parts.add_parser(name, help=help)
        part.add_argument("--dir", metavar="DIRECTORY", help="the cache's directory, where it is not the default one")
        part.set_defaults(run=run, answer=answer)
        if name != "verify":
            part.add_argument("--kind", help="entries of this kind only, such as cubin or cudnn-plan")


def store_of(options: argparse.Namespace) -> DiskStore:
    from graphdnn.runtime.cache import DiskStore, default_directory

    return DiskStore(Path(options.dir) if options.dir else default_directory())


def listed(options: argparse.Namespace) -> Answer:
    store = store_of(options)
    entries = [e for e in reversed(store.entries()) if options.kind in (None, e.kind)]
    width = max((len(e.kind) for e in entries), default=0)
    lines = []
    for entry in entries:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        lines.append(f"{entry.kind:{width}}  {size(entry.nbytes):>10}  {used}  {label(entry)}")
    total = size(sum(e.nbytes for e in entries))
    return [*lines, f"{counted(len(entries), 'entry')}, {total}, in {store.directory}"], 0


def verified(options: argparse.Namespace) -> Answer:
    store = store_of(options)
    found = list(store.verify())
    damaged = [entry.path for entry, sound in found if not sound]
    lines = [f"removed {path}: it was damaged or is no entry of this cache" for path in damaged]
    sound = len(found) - len(damaged)
    verb = "is" if sound == 1 else "are"
    total = f"{sound} of {counted(len(found), 'entry')} {verb} sound, in {store.directory}"
    return [*lines, total], 1 if damaged else 0


def cleared(options: argparse.Namespace) -> Answer:
    store = store_of(options)
    return [f"removed {counted(store.clear(options.kind), 'entry')} from {store.directory}"], 0


def size(nbytes: int) -> str:
    """Bytes with a unit."""
    amount, unit = float(nbytes), 0
    while amount >= 1024 and unit < len(UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.0f} {UNITS[unit]}" if unit == 0 else f"{amount:.1f} {UNITS[unit]}"


def label(entry: Entry) -> str:
    """What an entry is of, in one line of printable text: plan, region and device where its key tells them."""
    key = entry.key()
    if key is None:
        return "(damaged)"
    try:
        facts = json.loads(key)
    except (ValueError, RecursionError):
        facts = None
    words = [key[:LABEL]]
    if isinstance(facts, dict):
        known = {name: str(facts[name]) for name in ("engine", "plan", "region", "device") if name in facts}
        words = [f"{name} {value[:12] if name == 'region' else value}" for name, value in known.items()]
    return "".join(c if c.isprintable() else "?" for c in ", ".join(words))
