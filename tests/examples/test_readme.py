"""The README's tables are whole: every option, command and part that there is, and none that there is not."""

import argparse
import re
from pathlib import Path

import graphdnn as gd
from graphdnn.commands.cli import parser
from graphdnn.engines.manifest import MANIFEST
from graphdnn.passes.pipeline import OPTIONAL_PASSES

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def section(title: str) -> str:
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(title: str) -> list[list[str]]:
    """Cells of a section's table, its head left out."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def test_every_option_stands_there_with_its_default() -> None:
    told = {row[0].strip("`"): row[1].strip("`").replace('"', "'") for row in rows("Options")}
    assert told == {name: repr(value) for name, value in gd.CompileOptions()}
    words = section("Options")
    for name in (*OPTIONAL_PASSES, *MANIFEST):
        assert f"`{name}`" in words, name


def commands(of: argparse.ArgumentParser, words: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every command and part of one."""
    found = [a.choices for a in of._actions if isinstance(a, argparse._SubParsersAction)]
    deeper = [c for choices in found for name, sub in choices.items() for c in commands(sub, (*words, name))]
    return deeper or [words]


def test_every_command_stands_there() -> None:
    told = " ".join(row[0] for row in rows("Commands"))
    for words in commands(parser()):
        assert f"graphdnn {words[0]}" in told, words
        for word in words[1:]:
            assert re.search(rf"\b{word}\b", told), words


def test_every_flag_that_is_told_exists() -> None:
    (choices,) = (a.choices for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    for row in rows("Commands"):
        flags = re.findall(r"--[a-z]+[a-z-]*", " ".join(row))
        known = choices[row[0].split()[1].strip("`")].format_help()
        for flag in flags:
            assert flag in known, f"{flag} of {row[0]}"


def test_the_map_has_every_part_and_no_other() -> None:
    told = {name for row in rows("Map") for name in re.findall(r"`([\w/]+(?:\.py)?)`", " ".join(row))}
    parts = {p.name for p in (ROOT / "graphdnn").iterdir() if p.is_dir() or p.suffix == ".py"}
    missing = parts - told - {"__init__.py", "__pycache__", "py.typed"}
    assert not missing, f"the map lacks {', '.join(sorted(missing))}"
    modules = {p.name for p in (ROOT / "graphdnn").rglob("*.py")}
    unknown = {name for name in told if name.endswith(".py") and name.split("/")[-1] not in modules}
    assert not unknown, f"there is no {', '.join(sorted(unknown))}"
    runtime = {p.name for p in (ROOT / "graphdnn" / "runtime").glob("*.py")} - {"__init__.py", "describe.py"}
    assert runtime <= told, f"the map lacks runtime/{', '.join(sorted(runtime - told))}"


def test_links_and_folders_that_are_named_exist() -> None:
    for page in (ROOT / "README.md", ROOT / "docs" / "symptoms.md"):
        text = page.read_text()
        headings = {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in re.findall(r"^#+ (.*)$", text, re.M)}
        for link in re.findall(r"\]\(([^)]+)\)", text):
            assert link[1:] in headings if link.startswith("#") else (page.parent / link).exists(), link
        for name in re.findall(r"`((?:docs|examples|tests)/[\w./]+)`", text):
            assert (ROOT / name).exists(), name
