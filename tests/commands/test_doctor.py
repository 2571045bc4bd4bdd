"""What the doctor finds in folders with libraries that are missing, broken, or there twice."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from graphdnn.commands import cli, doctor
from graphdnn.commands.doctor import LIBRARIES, PACKAGES, Finding, Library, healthy
from graphdnn.runtime import driver

CUDNN = next(x for x in LIBRARIES if x.name == "cuDNN")
NVRTC = next(x for x in LIBRARIES if x.name == "NVRTC")
DRIVER = LIBRARIES[0]


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two folders, and nothing else, that are searched."""
    made = [tmp_path / name / "lib" for name in ("first", "second")]
    for folder in made:
        folder.mkdir(parents=True)
    monkeypatch.setattr(doctor, "search_folders", lambda: iter(made))
    return made


def found(name: str) -> Finding:
    (finding,) = [f for f in doctor.examine() if f.name == name]
    return finding


def answered(monkeypatch: pytest.MonkeyPatch, **answers: str) -> None:
    """What a child process would say of the copy in each folder."""
    monkeypatch.setattr(doctor, "attempt", lambda library, path: answers[path.parent.parent.name])


def test_nothing_there_names_library_and_package(folders: list[Path]) -> None:
    for library in LIBRARIES:
        finding = found(library.name)
        assert finding.status == "missing"
        assert library.stem in finding.detail
        assert finding.cure.endswith(f"graphdnn[cuda13]' brings {library.package}" if library.package else "driver")
    assert not healthy(doctor.examine())


def test_every_library_and_package_is_looked_for(folders: list[Path]) -> None:
    names = [f.name for f in doctor.examine()]
    assert names[: len(LIBRARIES)] == [x.name for x in LIBRARIES]
    assert {name for name, *_ in PACKAGES} <= set(names)


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        ("CUDA 13.0, 2 devices", "ok", "2 devices"),
        ("CUDA 13.0, 1 device", "ok", "1 device"),
        ("CUDA 13.0, 0 devices, error 100", "missing", "there is none here: the driver sees no device"),
        ("failed: no such file", "missing", "there is none here: no device is seen without a driver"),
    ],
)
def test_without_a_gpu_it_is_said_what_works(
    answer: str, status: str, said: str, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folders[0] / DRIVER.stem).touch()
    answered(monkeypatch, first=answer)
    finding = found("GPU")
    assert (finding.status, finding.detail) == (status, said)
    assert ('target="cpu" runs every graph' in str(finding)) == (status == "missing")
    assert ('gd.Target.named("h200") plans and explains' in str(finding)) == (status == "missing")


def test_a_machine_without_driver_is_told_what_works(folders: list[Path], capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert 'missing  GPU: there is none here: no device is seen without a driver; target="cpu" runs every graph' in out


def test_a_file_that_is_no_library_is_told_from_a_missing_one(folders: list[Path]) -> None:
    """The child process really tries it, and the loader's own words are passed on."""
    path = folders[0] / CUDNN.stem
    path.write_text("not a shared object")
    finding = found("cuDNN")
    assert finding.status == "missing"
    assert str(path) in finding.detail
    assert "failed" in finding.detail
    assert "OSError" in finding.detail
    assert CUDNN.package in finding.cure


def test_copies_of_different_versions_are_a_warning(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in folders:
        (folder / CUDNN.stem).touch()
    answered(monkeypatch, first="9.19.0", second="9.20.0")
    finding = found("cuDNN")
    assert finding.status == "warning"
    for word in ("9.19.0", "9.20.0", *map(str, folders)):
        assert word in finding.detail
    assert "keep one" in finding.cure


def test_copies_of_one_version_are_well(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in folders:
        (folder / CUDNN.stem).touch()
    answered(monkeypatch, first="9.19.0", second="9.19.0")
    assert found("cuDNN") == Finding("cuDNN", "ok", f"version 9.19.0 at {folders[0] / CUDNN.stem}")


def test_a_broken_copy_does_not_hide_a_good_one(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in folders:
        (folder / CUDNN.stem).touch()
    answered(monkeypatch, first="failed: file too short", second="9.19.0")
    finding = found("cuDNN")
    assert finding.status in ("ok", "warning")
    assert str(folders[1]) in finding.detail


def test_a_link_to_the_same_file_is_no_second_copy(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    (folders[0] / CUDNN.stem).touch()
    (folders[1] / CUDNN.stem).symlink_to(folders[0] / CUDNN.stem)
    tried = []
    monkeypatch.setattr(doctor, "attempt", lambda library, path: tried.append(path) or "9.19.0")
    assert found("cuDNN").status == "ok"
    assert tried == [folders[0] / CUDNN.stem]


def test_a_library_that_takes_too_long_is_given_up(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    (folders[0] / NVRTC.stem).touch()

    def slow(*arguments: object, **options: object) -> None:
        raise subprocess.TimeoutExpired("python", doctor.TRY_SECONDS)

    monkeypatch.setattr(subprocess, "run", slow)
    assert f"over {doctor.TRY_SECONDS} s" in found("NVRTC").detail


def test_a_library_that_kills_the_process_kills_only_the_child(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folders[0] / DRIVER.stem).touch()
    monkeypatch.setattr(doctor, "TRIAL", "import os; os.abort()")
    finding = found(DRIVER.name)
    assert finding.status == "missing"
    assert "exit status -6" in finding.detail


STAND_IN = """
import ctypes, types

def put(value, *places):
    for number, place in zip(value, places):
        place._obj.value = number
    return 0

ctypes.CDLL = lambda path: types.SimpleNamespace(
    cudnnGetVersion=lambda: 91900,
    cublasLtGetVersion=lambda: 130102,
    nvrtcVersion=lambda *places: put((13, 5), *places),
    cuDriverGetVersion=lambda place: put((13020,), place),
    cuInit=lambda flags: 0,
    cuDeviceGetCount=lambda place: put((3,), place),
)
"""
"""The libraries as the child sees them, each function with the meaning that its header gives."""

VERSIONS = {
    "cuDNN": "9.19.0",
    "NVRTC": "13.5",
    "CUDA driver": "CUDA 13.2, 3 devices, release unknown",
    "cuBLASLt": "13.1.2",
}


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda x: x.name)
def test_versions_are_read_as_each_library_tells_them(
    library: Library, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folders[0] / library.stem
    path.touch()
    monkeypatch.setattr(driver, "KERNEL_MODULE", folders[0] / "none")
    monkeypatch.setattr(doctor, "TRIAL", STAND_IN + doctor.TRIAL)
    expected = f"version {VERSIONS[library.name]} at {path}"
    assert found(library.name) == Finding(library.name, "ok", expected)


def test_the_drivers_release_is_told(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    (folders[0] / "libcuda.so.580.95.05").touch()
    (folders[0] / "libcuda.so.1").symlink_to("libcuda.so.580.95.05")
    monkeypatch.setattr(doctor, "TRIAL", STAND_IN + doctor.TRIAL)
    assert "CUDA 13.2, 3 devices, release 580.95.05 at " in found("CUDA driver").detail
    assert doctor.check_devices(found("CUDA driver")).status == "ok"


def test_packages_are_told_by_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "version", lambda name: "1.30.0")
    finding = doctor.check_package("nvidia-cudnn-frontend", (1, 22), (1, 24), "lowering")
    assert finding.status == "warning"
    assert "1.30.0" in finding.detail
    assert finding.cure == "pip install 'nvidia-cudnn-frontend>=1.22,<1.24'"
    assert doctor.check_package("nvidia-cudnn-frontend", (1, 30), (1, 31), "lowering").status == "ok"
    assert doctor.check_package("cuda-core", (0, 6), (2,), "streams").status == "ok"
    assert doctor.check_package("cuda-core", (1, 31), (2,), "streams").status == "warning"


def test_packages_are_wanted_as_the_project_wants_them() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    required = [*project["dependencies"], *project["optional-dependencies"]["cuda13"]]
    for name, least, end, _ in PACKAGES:
        (line,) = [r for r in required if re.match(rf"{name}[<>=]", r)]
        low, high = (".".join(map(str, v)) for v in (least, end))
        assert line.startswith((f"{name}>={low},<{high};", f"{name}=={low}.*;"))


def test_a_package_that_is_not_installed_names_the_extra() -> None:
    finding = doctor.check_package("no-such-package-here", (1,), (2,), "nothing")
    assert finding.status == "missing"
    assert "graphdnn[cuda13]" in finding.cure


def test_search_folders_are_real_and_listed_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wheel = tmp_path / "site" / "nvidia" / "cudnn" / "lib"
    loader = tmp_path / "loader"
    for folder in (wheel, loader):
        folder.mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), str(tmp_path / "site")])
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{loader}:{tmp_path / 'gone'}:{loader}")
    listed = list(doctor.search_folders())
    assert listed[:2] == [wheel, loader]
    assert len({f.resolve() for f in listed}) == len(listed)


def test_a_finding_is_one_line() -> None:
    assert str(Finding("NVRTC", "missing", "nowhere", "pip install x")) == "missing  NVRTC: nowhere; pip install x"
    assert str(Finding("NVRTC", "ok", "version 13.5")) == "ok       NVRTC: version 13.5"
