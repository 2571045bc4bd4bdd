"""The documentation's code runs and prints what the page says, and what checks it finds pages that are wrong."""

import re
from pathlib import Path

import pytest

from tests.examples.pages import Printed, played, rewritten

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["README.md", "docs/symptoms.md"])
def test_a_page_prints_what_it_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRAPHDNN_CACHE_DIR", str(tmp_path / "own"))
    blocks = list(played((ROOT / name).read_text()))
    assert blocks
    for block in blocks:
        assert block.printed, f"{name} shows an empty block for what prints nothing, such as an error that is no more"
        assert block.is_true, f"run python -m tests.examples.pages {name}, which now prints:\n{block.printed}"


FILE = re.compile(r"\b(?:tests|graphdnn|benchmarks|examples|docs)/[\w/.-]*[a-z0-9](?!\w)|\btest_\w+\.py\b")
DECISION = re.compile(r"\b[2-9]-[a-z]+(?:-[a-z0-9]+)+\b")


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))], ids=lambda p: p.stem)
def test_the_files_that_a_page_names_are_there(page: Path) -> None:
    text, tests = page.read_text(), {path.name for path in (ROOT / "tests").rglob("*.py")}
    missing = [file for file in FILE.findall(text) if not ((ROOT / file).exists() if "/" in file else file in tests)]
    missing += [name for name in DECISION.findall(text) if not (ROOT / "docs" / "decisions" / f"{name}.md").exists()]
    assert not missing


PAGE = """
```python
x = 6
```
```python
print(7 * x)
```
```text
41
```
```console
$ graphdnn cache list --dir none
1 entries, 0 B, in none, which is not there
```
```console
make test
```
"""


def test_a_wrong_page_is_found_and_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert [block.is_true for block in played(PAGE)] == [False, False]
    assert rewritten(PAGE) == PAGE.replace("41", "42").replace("1 entries", "0 entries")
    assert [block.is_true for block in played(rewritten(PAGE))] == [True, True]


def test_what_is_printed_and_not_shown_is_found() -> None:
    with pytest.raises(AssertionError, match="stands nowhere"):
        list(played("```python\nprint(1)\n```\nwords\n"))


@pytest.mark.parametrize(
    ("how", "printed", "is_true"),
    [
        ("", "ran  in 5 us", True),
        ("", "ran in 6 us", False),
        ("varies", "ran in 61.5 us", True),
        ("varies", "failed in 5 us", False),
        ("elsewhere", "failed", True),
    ],
)
def test_numbers_may_differ_where_the_page_says_so(how: str, printed: str, is_true: bool) -> None:
    assert Printed("ran in 5 us", (0, 0), printed, how).is_true is is_true
