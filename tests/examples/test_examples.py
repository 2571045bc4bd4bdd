"""Every example runs as its own process and says what it is there to say."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))

SAID = {
    "01_fused_block": [r"h200 \(described\): 1 kernel \(unfused 3\)"],
    "02_attention_block": [r"is \d\.\de-0[3-9] of the peak", r"h200 \(described\)"],
    "03_reading_a_report": ["to tf32"],
    "04_resnet50": ["53 conv regions, 49 end in a relu, 16 contain an add"],
    "05_minilm": [
        r"going stale\?\n  0\.\d{3}  (Bread keeps|Store the loaf).*\n  0\.\d{3}  (Bread keeps|Store the loaf)",
        r"region +pattern +engine and plan",
        r"fusion saves [1-9]\d* of \d+ kernels and [1-9]\d*\.\d of \d+\.\d MiB",
    ],
    "06_shapes_that_vary": [
        r"a build for each shape: 12 builds in .* s for 12 requests\nthe sizes rounded up: 2 builds",
        "refused: lambda cannot be padded",
    ],
    "07_symptoms": [
        r"first step on (cpu: .* with 0 entries.*\n  nothing is built for the CPU|(?!cpu).* with [1-9]\d* entries)",
        r"loaded in \d+\.\d\d s; equal bits: True",
        r"12 builds for 12 batches, [2-6] with buckets",
        "axis 0 of x took",
        r"deterministic=True: \d+ runs gave the same bits\n  plans that may differ from run to run: none",
        r"(ruled out: [1-9]\d* plans: |nothing to rule out: the CPU's one plan)",
        r"[1-9]\d* of 1296 results are others",
        "fold did not run",
        r"decided (\d+) of \1 regions; equal bits: True",
        r"workspace_limit=0 rules out [1-9]\d* bytes of scratch for \w+, with which cublaslt is estimated at \d",
        r"memory_limit=0 rules out [1-9]\d* bytes of scratch for \w+, with which cublaslt is estimated at \d",
        r"cublaslt, slower at \d+\.\d us: memory_limit=0 rules out [1-9]\d* bytes of scratch, with which cublaslt",
        "'precision': 'tf32'}: \\['matmul\\+gelu'\\] in 0",
    ],
}
"""Patterns that stand in an example's output; of the others h200."""


def said_by(path: Path) -> str:
    """What an example prints.  Fails where it does not run, or does not say what it is there to say."""
    inherited = os.environ.get("PYTHONPATH")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *([inherited] if inherited else [])])}
    command = [sys.executable, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    for pattern in SAID.get(path.stem, ["h200"]):
        assert re.search(pattern, done.stdout), f"{pattern} is not in\n{done.stdout}"
    return done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_example_runs(path: Path) -> None:
    assert said_by(path)
