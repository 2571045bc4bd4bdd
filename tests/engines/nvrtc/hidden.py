"""A Python on a machine without NVRTC: this one's packages, linked file by file, but for the compiler's library."""

import os
import subprocess
import sys
import venv
from pathlib import Path

from tests.processes import ROOT

LOADER = """
import sys

def hide(event, arguments):
    if event == "ctypes.dlopen" and "libnvrtc" in str(arguments[0]):
        raise OSError(f"{arguments[0]}: cannot open shared object file: No such file or directory")

sys.addaudithook(hide)
"""
"""What each of its processes begins with, for copies that the system's loader would find in folders of its own."""

ELSEWHERE = ("CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH", "CUDNN_PATH", "PYTHONHOME")
"""Variables that lead to other folders with libraries, or packages."""


def python_without_nvrtc(folder: Path) -> Path:
    """Makes such an environment in a folder; its interpreter."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "without_nvrtc.py").write_text(LOADER)
    (site / "without_nvrtc.pth").write_text("import without_nvrtc\n")
    for packages in package_folders():
        for found in packages.iterdir():
            if found.name == "nvidia":
                link_files(found, site / "nvidia")
            elif "nvrtc" not in found.name and not (site / found.name).exists():
                (site / found.name).symlink_to(found)
    assert not list(site.rglob("libnvrtc*"))
    return folder / "bin" / "python"


def package_folders() -> list[Path]:
    """Where this Python has its packages from: the installed ones, and folders that it was told of."""
    told = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    installed = [entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
    return [folder for folder in map(Path, [*told, *installed]) if folder.is_dir() and folder.resolve() != ROOT]


def link_files(source: Path, target: Path) -> None:
    """Folders anew and files as links: libraries look for one another beside the name they were opened by."""
    for found in source.rglob("*"):
        if found.is_file() and "nvrtc" not in found.name and "__pycache__" not in found.parts:
            link = target / found.relative_to(source)
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.exists():
                link.symlink_to(found)


def said(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What a process of that Python prints, with graphdnn from this checkout."""
    environment = {name: value for name, value in os.environ.items() if name not in ELSEWHERE}
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    environment["LD_LIBRARY_PATH"] = os.pathsep.join(f for f in folders if f and not list(Path(f).glob("libnvrtc*")))
    environment["PYTHONPATH"] = str(ROOT)
    return subprocess.run([str(python), *arguments], capture_output=True, text=True, env=environment, cwd=ROOT)
