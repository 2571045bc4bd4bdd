"""The documentation's code runs and prints what the page says, and what checks it finds pages that are wrong."""

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
