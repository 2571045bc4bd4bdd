"""What a plan depends on beside its region."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from graphdnn.engines import environment as module
from graphdnn.engines.environment import SHARED, code_digest, environment, is_as_loaded, sources
from graphdnn.ir import LOADED
from graphdnn.target import Target
from tests.architecture.test_structure import imports

H200 = Target.named("h200")


@pytest.mark.parametrize(
    "change",
    [
        {"name": "h100"},
        {"sm_count": 16},
        {"compute_capability": (10, 0)},
        {"versions": {"driver": "13.1"}},
        {"versions": {"driver_release": "590.2"}},
    ],
)
def test_machines_that_differ_have_different_environments(change: dict[str, object]) -> None:
    assert environment(replace(H200, **change), "nvrtc") != environment(H200, "nvrtc")  # type: ignore[arg-type]


def test_libraries_count_and_the_ordinal_does_not() -> None:
    assert environment(H200, "nvrtc", cudnn="1") != environment(H200, "nvrtc", cudnn="2")
    assert environment(replace(H200, ordinal=3), "nvrtc") == environment(H200, "nvrtc")


def look_anew() -> None:
    sources.cache_clear()
    code_digest.cache_clear()


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package copied to where it may be changed, older than this process."""
    package = tmp_path / "graphdnn"
    for part in ("ir", "engines", "passes", "planning"):
        shutil.copytree(module.PACKAGE / part, package / part)
    for part in SHARED:
        shutil.copy2(module.PACKAGE / part, package / part)
    for path in package.rglob("*"):
        os.utime(path, (LOADED - 1, LOADED - 1))
    monkeypatch.setattr(module, "PACKAGE", package)
    look_anew()
    yield package
    look_anew()


@pytest.mark.parametrize(
    "path", ["ir/region.py", "target.py", "engines/contract.py", "engines/cudnn/rules/norm.py", "ir/ops/new.py"]
)
def test_a_rule_that_changes_is_noticed(copy: Path, path: str) -> None:
    before, all_before = code_digest("cudnn"), code_digest()
    here = environment(H200, "cudnn")
    look_anew()
    assert (code_digest("cudnn"), code_digest()) == (before, all_before)
    assert is_as_loaded()
    with open(copy / path, "a") as file:
        file.write("# changed\n")
    os.utime(copy / path, (LOADED - 1, LOADED - 1))
    look_anew()
    assert code_digest("cudnn") != before
    assert code_digest() != all_before
    assert environment(H200, "cudnn") != here
    assert is_as_loaded()


@pytest.mark.parametrize(
    "path",
    [
        "engines/nvrtc/conv.py",
        "passes/fuse.py",
        "passes/rules/folding.py",
        "planning/planner.py",
        "planning/covers.py",
        "ir/__pycache__/region.cpython-311.pyc",
    ],
)
def test_what_has_no_part_in_it_is_left_out(copy: Path, path: str) -> None:
    before, all_before = code_digest("cudnn"), code_digest()
    here = environment(H200, "cudnn")
    (copy / path).parent.mkdir(exist_ok=True)
    with open(copy / path, "ab") as file:
        file.write(b"# changed\n")
    look_anew()
    assert code_digest("cudnn") == before
    assert environment(H200, "cudnn") == here
    assert (code_digest() == all_before) == path.endswith(".pyc")


@pytest.mark.parametrize("path", ["answer.py", "ir/graph.py", "engines/nvrtc/templates/tile_loop.cu"])
def test_what_was_written_since_is_not_what_runs(copy: Path, path: str) -> None:
    assert is_as_loaded()
    os.utime(copy / path, (LOADED + 1, LOADED + 1))
    look_anew()
    assert not is_as_loaded()


def test_without_sources_nobody_knows_what_runs(copy: Path) -> None:
    shutil.rmtree(copy)
    look_anew()
    assert not is_as_loaded()


def test_an_editors_file_may_vanish(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = code_digest()
    look_anew()
    monkeypatch.setattr(module, "tree", lambda *a, real=module.tree: (*real(*a), str(copy / "ir/.graph.py.swp")))
    assert code_digest() == before


def test_all_that_engines_import_counts() -> None:
    """Files of the package outside its folders `ir`, `engines` and `passes`, as far as these need them."""
    package = module.PACKAGE
    needed: set[str] = set()
    waiting = [*package.glob("ir/**/*.py"), *package.glob("engines/**/*.py"), *package.glob("passes/**/*.py")]
    while waiting:
        for name in imports(waiting.pop()):
            path = package.parent / f"{name.replace('.', '/')}.py"
            if path.parent == package and path.name not in needed and path.exists():
                needed.add(path.name)
                waiting.append(path)
    assert needed == set(SHARED)
