"""What a script prints in fresh processes whose hashes, and with them the order of sets, differ."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def said_by_every_process(script: str) -> str:
    """What `script` prints under each of two hash seeds; fails where it is not the same."""
    said = {
        subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1
    return said.pop()
