"""The README's lines about files run as they stand."""

import os
import subprocess
import sys
from pathlib import Path

from tests.examples.test_examples import ROOT, readme_blocks


def test_the_readme_keeps_what_was_decided(tmp_path: Path) -> None:
    graph, files = readme_blocks("python")[:2]
    assert "exe.save(" in files
    setup = graph.split("\nprint(")[0]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error::RuntimeWarning"}
    subprocess.run([sys.executable, "-c", setup + files], check=True, cwd=tmp_path, env=environment, timeout=300)
    assert {p.name for p in tmp_path.iterdir()} == {"mlp.gdn", "mlp.lock.json"}
