"""What a plan depends on beside its region."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from graphdnn.engines import environment as module
from graphdnn.engines.environment import code_digest, environment
from graphdnn.target import Target

H200 = Target.named("h200")


@pytest.mark.parametrize(
    "change", [{"name": "h100"}, {"sm_count": 16}, {"compute_capability": (10, 0)}, {"versions": {"driver": "590.2"}}]
)
def test_machines_that_differ_have_different_environments(change: dict[str, object]) -> None:
    assert environment(replace(H200, **change), "nvrtc") != environment(H200, "nvrtc")  # type: ignore[arg-type]


def test_libraries_count_and_the_ordinal_does_not() -> None:
    assert environment(H200, "nvrtc", cudnn="1") != environment(H200, "nvrtc", cudnn="2")
    assert environment(replace(H200, ordinal=3), "nvrtc") == environment(H200, "nvrtc")


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package copied to where it may be changed."""
    package = tmp_path / "graphdnn"
    for part in ("ir", "engines"):
        shutil.copytree(module.PACKAGE / part, package / part)
    monkeypatch.setattr(module, "PACKAGE", package)
    code_digest.cache_clear()
    yield package
    code_digest.cache_clear()


@pytest.mark.parametrize("path", ["ir/region.py", "engines/contract.py", "engines/cudnn/rules/norm.py"])
def test_a_rule_that_changes_is_noticed(copy: Path, path: str) -> None:
    before = code_digest("cudnn")
    code_digest.cache_clear()
    assert code_digest("cudnn") == before
    with open(copy / path, "a") as file:
        file.write("# changed\n")
    code_digest.cache_clear()
    assert code_digest("cudnn") != before


@pytest.mark.parametrize("path", ["engines/nvrtc/conv.py", "ir/__pycache__/region.cpython-311.pyc"])
def test_what_has_no_part_in_it_is_left_out(copy: Path, path: str) -> None:
    before = code_digest("cudnn")
    (copy / path).parent.mkdir(exist_ok=True)
    with open(copy / path, "ab") as file:
        file.write(b"# changed\n")
    code_digest.cache_clear()
    assert code_digest("cudnn") == before
