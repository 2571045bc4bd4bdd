"""Every example runs as its own process, and the README's code prints what the README says."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_example_runs(path: Path) -> None:
    assert "h200" in run(str(path)) or path.stem.startswith(("03", "04"))


def readme_blocks(language: str) -> list[str]:
    """Fenced blocks of one language in README.md."""
    parts = (ROOT / "README.md").read_text().split("```")[1::2]
    return [p.removeprefix(language).lstrip("\n") for p in parts if p.startswith(f"{language}\n")]


def test_readme_example_prints_what_the_readme_says(tmp_path: Path) -> None:
    code, printed = readme_blocks("python")[0], readme_blocks("text")[0]
    script = tmp_path / "readme.py"
    script.write_text(code)
    assert run(str(script)).split() == printed.split()
