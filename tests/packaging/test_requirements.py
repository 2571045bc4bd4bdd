"""What an install asks for on each platform, and that all of it fits together and beside a CUDA build of PyTorch."""

import re
import tomllib
from collections import defaultdict
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]

PURE = {"numpy", "scipy", "ml_dtypes", "networkx", "pydantic", "rich"}
CUDA = {"cuda-python", "cuda-core", "nvidia-cudnn-frontend"}
LIBRARIES = {"nvidia-cudnn-cu13", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "nvidia-cublas", "nvmath-python"}

PLATFORMS = {
    "linux x86_64": ("linux", "x86_64", "3.11", True),
    "linux aarch64": ("linux", "aarch64", "3.14", True),
    "windows": ("win32", "AMD64", "3.12", True),
    "windows on arm": ("win32", "ARM64", "3.12", False),
    "mac": ("darwin", "arm64", "3.13", False),
    "mac on intel": ("darwin", "x86_64", "3.11", False),
    "linux armv7l": ("linux", "armv7l", "3.11", False),
    "linux ppc64le": ("linux", "ppc64le", "3.11", False),
    "linux riscv64": ("linux", "riscv64", "3.13", False),
    "a Python without wheels": ("linux", "x86_64", "3.15", False),
}
"""sys_platform, platform_machine, the Python, and whether every CUDA package has a wheel for it."""

TORCH = {
    "2.11.0": {
        "nvidia-cudnn-cu13": "==9.19.0.56",
        "nvidia-cublas": "==13.1.0.3",
        "nvidia-cuda-nvrtc": "==13.0.88",
        "nvidia-cuda-runtime": "==13.0.96",
        "cuda-python": ">=13.0.3,<14",
        "networkx": ">=2.5.1",
    },
    "2.12.0": {
        "nvidia-cudnn-cu13": "==9.20.0.48",
        "nvidia-cublas": "==13.1.1.3",
        "nvidia-cuda-nvrtc": "==13.0.88",
        "nvidia-cuda-runtime": "==13.0.96",
        "cuda-python": ">=13.0.3,<14",
        "networkx": ">=2.5.1",
    },
    "2.13.0": {
        "nvidia-cudnn-cu13": "==9.20.0.48",
        "nvidia-cublas": "==13.1.1.3",
        "nvidia-cuda-nvrtc": "==13.0.88",
        "nvidia-cuda-runtime": "==13.0.96",
        "cuda-python": ">=13.0.3,<14",
        "networkx": ">=2.5.1",
    },
}
"""What a CUDA build of torch asks for, read off its wheel for Linux on PyPI (Requires-Dist): cuDNN by itself, in 2.12
cuBLAS too, the rest through cuda-toolkit[cublas,cudart,nvrtc]==13.0.2 (13.0.3 in 2.13), whose wheel pins each library.
It asks for cuda-bindings, which cuda-python takes in its own version."""


def required(lines: list[str], sys_platform: str, machine: str, python: str) -> set[str]:
    """Names of what has to be installed there."""
    environment = {
        "sys_platform": sys_platform,
        "platform_machine": machine,
        "python_version": python,
        "python_full_version": f"{python}.0",
        "extra": "",
    }
    return {r.name for r in map(Requirement, lines) if r.marker is None or r.marker.evaluate(environment)}


@pytest.mark.parametrize(("sys_platform", "machine", "python", "has_wheels"), PLATFORMS.values(), ids=PLATFORMS)
def test_cuda_is_asked_for_where_it_has_wheels(sys_platform: str, machine: str, python: str, has_wheels: bool) -> None:
    place = (sys_platform, machine, python)
    assert required(PROJECT["dependencies"], *place) == (PURE | CUDA if has_wheels else PURE)
    assert required(EXTRAS["cuda13"], *place) == (LIBRARIES if has_wheels else set())
    for name in ("examples", "test", "dev"):
        assert required(EXTRAS[name], *place) == {Requirement(line).name for line in EXTRAS[name]}, name


def test_the_extras_are_those_that_are_promised() -> None:
    assert set(EXTRAS) == {"cuda13", "examples", "test", "dev"}
    assert PROJECT["requires-python"] == ">=3.11"


def ranges() -> dict[str, list[SpecifierSet]]:
    """What is asked of each package, by all that ask."""
    found = defaultdict(list)
    for requirement in map(Requirement, chain(PROJECT["dependencies"], *EXTRAS.values())):
        found[requirement.name].append(requirement.specifier)
    return dict(found)


def overlap(ranges: list[SpecifierSet]) -> bool:
    """Whether a version lies in all of them: if any does, so does the largest lower bound, which one of them names."""
    named = {Version(one.version.removesuffix(".*")) for specifiers in ranges for one in specifiers}
    return any(all(version in specifiers for specifiers in ranges) for version in named)


def test_ranges_that_exclude_one_another_are_seen() -> None:
    assert overlap([SpecifierSet(">=9.19,<9.21"), SpecifierSet("==9.20.0.48")])
    assert not overlap([SpecifierSet(">=9.19,<9.21"), SpecifierSet("==9.21.0")])
    assert not overlap([SpecifierSet(">=3,<4"), SpecifierSet(">=1,<3")])


@pytest.mark.parametrize(("name", "asked"), ranges().items(), ids=ranges())
def test_ranges_of_the_dependencies_and_extras_overlap(name: str, asked: list[SpecifierSet]) -> None:
    assert overlap(asked), f"{name}: {' and '.join(map(str, asked))}"


@pytest.mark.parametrize("name", ranges())
def test_every_range_ends(name: str) -> None:
    """What was not tried is not taken unasked."""
    for specifiers in ranges()[name]:
        assert {one.operator for one in specifiers} & {"<", "=="}, f"{name}{specifiers}"


@pytest.mark.parametrize("release", TORCH)
def test_every_range_holds_what_a_cuda_build_of_torch_pins(release: str) -> None:
    asked = ranges()
    assert all(Version(release) in one for one in asked["torch"])
    for name, wanted in TORCH[release].items():
        assert overlap([*asked[name], SpecifierSet(wanted)]), f"torch {release} asks for {name}{wanted}"


def test_the_table_has_the_torch_that_is_tested_against() -> None:
    (tested,) = re.findall(r"^TORCH \?= torch==(\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert tested in TORCH


def test_the_table_of_torch_has_every_library_that_it_brings() -> None:
    shared = LIBRARIES - {"nvmath-python"}
    assert all(shared <= pins.keys() for pins in TORCH.values())
