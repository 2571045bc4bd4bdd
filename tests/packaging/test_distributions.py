"""The wheel and the source distribution: built here without the network, read, installed elsewhere and used."""

import email
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import dataclass
from email.message import Message
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from graphdnn import __version__
from tests.processes import ROOT

NAME = f"graphdnn-{__version__}"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@dataclass(frozen=True)
class Built:
    """Where the distributions are."""

    sdist: Path
    unpacked: Path
    wheel: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The source distribution of this checkout, and the wheel made from what is in it, as pip would."""
    out = tmp_path_factory.mktemp("dist")
    sdist = out / hook("build_sdist", ROOT, out)
    subprocess.run(["tar", "xf", str(sdist), "-C", str(out)], check=True)
    unpacked = out / NAME
    return Built(sdist, unpacked, out / hook("build_wheel", unpacked, out))


def hook(name: str, source: Path, out: Path) -> str:
    """Calls the build backend that pyproject.toml names, in the environment that is here; the name of what it made."""
    backend = tomllib.loads((source / "pyproject.toml").read_text())["build-system"]["build-backend"]
    code = f"import {backend} as backend, sys; print(backend.{name}(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", code, str(out)], capture_output=True, text=True, cwd=source)
    assert not done.returncode, done.stderr
    return done.stdout.splitlines()[-1]


def sources(root: Path, *folders: str) -> set[str]:
    """Files of a checkout by their path in it, without caches and what editors leave."""
    files = (p.relative_to(root) for folder in folders for p in (root / folder).rglob("*") if p.is_file())
    return {p.as_posix() for p in files if not any(part.startswith((".", "__pycache__")) for part in p.parts)}


@pytest.fixture(scope="module")
def wheel_names(built: Built) -> list[str]:
    with zipfile.ZipFile(built.wheel) as archive:
        assert archive.testzip() is None
        return archive.namelist()


@pytest.fixture(scope="module")
def metadata(built: Built) -> Message:
    with zipfile.ZipFile(built.wheel) as archive:
        return email.message_from_string(archive.read(f"{NAME}.dist-info/METADATA").decode())


def test_the_wheel_holds_the_package_and_nothing_else(wheel_names: list[str]) -> None:
    about = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}
    expected = sources(ROOT, "graphdnn") | {f"{NAME}.dist-info/{name}" for name in about}
    assert set(wheel_names) == expected
    assert len(wheel_names) == len(expected)


def test_the_wheel_has_what_no_import_would_miss(wheel_names: list[str]) -> None:
    """Typing marker, device descriptions, templates of kernels."""
    assert "graphdnn/py.typed" in wheel_names
    assert "graphdnn/devices/h200.json" in wheel_names
    assert [name for name in wheel_names if "/nvrtc/templates/" in name]
    packages = {p.parent.relative_to(ROOT).as_posix() for p in (ROOT / "graphdnn").rglob("__init__.py")}
    assert packages <= {os.path.dirname(name) for name in wheel_names}


def test_the_wheel_is_for_every_platform(built: Built) -> None:
    assert built.wheel.name == f"{NAME}-py3-none-any.whl"
    with zipfile.ZipFile(built.wheel) as archive:
        assert archive.read(f"{NAME}.dist-info/entry_points.txt").decode().split() == [
            "[console_scripts]",
            "graphdnn",
            "=",
            "graphdnn.commands.cli:main",
        ]
        assert archive.read(f"{NAME}.dist-info/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()


def test_the_metadata_says_what_the_project_says(metadata: Message) -> None:
    assert (metadata["Name"], metadata["Version"]) == ("graphdnn", __version__)
    assert metadata["Requires-Python"] == ">=3.11"
    assert (metadata["License-Expression"], metadata["License-File"]) == ("Apache-2.0", "LICENSE")
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert set(metadata.get_all("Provides-Extra", [])) == {"cuda13", "examples", "test", "dev"}


def test_the_metadata_asks_for_every_dependency_with_its_range_and_marker(metadata: Message) -> None:
    lines = list(PROJECT["dependencies"])
    for extra, more in PROJECT["optional-dependencies"].items():
        for requirement in map(Requirement, more):
            own = f"({requirement.marker}) and " if requirement.marker else ""
            lines.append(f"{requirement.name}{requirement.specifier}; {own}extra == '{extra}'")
    asked = metadata.get_all("Requires-Dist", [])
    assert set(map(told, asked)) == set(map(told, lines))
    assert len(asked) == len(lines)


def told(line: str) -> tuple[str, str, str]:
    """Name, range and marker of a requirement, each in one spelling."""
    requirement = Requirement(line)
    return requirement.name.replace("_", "-"), str(requirement.specifier), str(requirement.marker or "")


def test_the_source_distribution_holds_what_the_tests_need(built: Built) -> None:
    folders = ("graphdnn", "tests", "examples", "docs", "benchmarks")
    files = sources(built.unpacked, ".")
    assert sources(ROOT, *folders) <= files
    beside = {name for name in files if name.partition("/")[0] not in folders}
    assert beside == {"pyproject.toml", "Makefile", "README.md", "LICENSE", "PKG-INFO"}


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel in a folder of its own, its dependencies those of this environment."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--no-compile", "--quiet"]
    done = subprocess.run([*pip, "--target", str(folder), str(built.wheel)], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return folder


def said(command: list[str], installed: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """What a command prints in an empty folder where the package is the installed one."""
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)


def test_the_installed_package_runs_the_example_of_its_own_readme(
    installed: Path, metadata: Message, tmp_path: Path
) -> None:
    page = metadata.get_payload()
    assert isinstance(page, str)
    found = re.search(r"^```python\n(.*?)^```$.*?^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert found is not None
    where = "\nimport sys; print(gd.__file__, file=sys.stderr)"
    done = said([sys.executable, "-c", found[1] + where], installed, tmp_path)
    assert done.returncode == 0, done.stderr
    assert Path(done.stderr.strip()).is_relative_to(installed)
    assert done.stdout.split() == found[2].split()
    assert not list(tmp_path.iterdir())


def test_the_installed_command_tells_its_version_and_looks_at_the_machine(installed: Path, tmp_path: Path) -> None:
    command = str(installed / "bin" / "graphdnn")
    done = said([command, "--version"], installed, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"graphdnn {__version__}\n", "")
    done = said([command, "doctor"], installed, tmp_path)
    assert done.returncode in (0, 1), done.stderr
    assert bool(done.returncode) == ("\nmissing " in f"\n{done.stdout}")
    for name in ("CUDA driver", "cuDNN", "NVRTC", "cuBLASLt", "GPU", "cuda-python", "nvmath-python"):
        assert f" {name}: " in done.stdout
