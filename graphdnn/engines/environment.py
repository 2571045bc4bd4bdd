"""What a plan of today depends on beside its region: the device, its driver, the libraries and this package's code.

Plans and answers are kept under this, so that those of another machine or version are never found.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from graphdnn.target import Target

PACKAGE = Path(__file__).parents[1]
GENERATED = "__pycache__"


def environment(target: Target, engine: str, **libraries: str) -> dict[str, str]:
    """The facts by name; `libraries` are versions, as the libraries themselves tell them."""
    return {
        "device": target.name,
        "arch": target.arch,
        "sm_count": str(target.sm_count),
        "driver": target.versions.get("driver", ""),
        "code": code_digest(engine),
        **libraries,
    }


@functools.cache
def code_digest(engine: str) -> str:
    """SHA-256 over the files that decide what an engine makes of a region: its own and those of the graph.

    A version number would stay the same while rules are being changed.
    """
    digest = hashlib.sha256()
    engines = PACKAGE / "engines"
    for path in (*tree(PACKAGE / "ir"), *sorted(engines.glob("*.py")), *tree(engines / engine)):
        digest.update(f"{path.relative_to(PACKAGE).as_posix()}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:32]


def tree(folder: Path) -> list[Path]:
    """Every file below a folder, in order, but those that Python generates."""
    return sorted(p for p in folder.rglob("*") if p.is_file() and GENERATED not in p.parts)
