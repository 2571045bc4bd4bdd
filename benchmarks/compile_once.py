"""One compilation in a process of its own, timed: what compile_time starts again for every figure.

Whatever an earlier compilation left in a process (answers of our engines, kernels that libraries hold) would make a
"cold" figure lukewarm.  PyTorch is not imported.  `python -m benchmarks.compile_once WAY BATCH FOLDER` prints seconds,
what the report says of options, and its estimate, as JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from cuda.core import Device

import graphdnn as gd
from examples.models import resnet
from examples.models.convolutional import half_rounded

WAYS = {
    "cold": "a heuristic compile with an empty cache",
    "warm": "the same with a full one",
    "autotune": "plans timed, with an empty cache",
    "load": "a saved executable, its file read from memory",
}

SAVED = "model.gdn"
"""The saved executable in the folder of a "load"."""


def network(batch: int) -> gd.Graph:
    """ResNet-50 in float16, images channels-last."""
    return resnet.build(half_rounded(resnet.random_parameters(0)), batch, gd.float16, 224, is_channels_last=True)


def small() -> gd.Graph:
    """Something for each engine, nothing of it like a part of the network."""
    g = gd.GraphBuilder("small")
    x = g.input("x", (1, 8, 8, 8), gd.float16)
    w = g.constant(np.ones((8, 8, 3, 3), np.float16))
    return g.build({"y": g.softmax(g.conv(x, w, padding=1), axis=3), "z": g.matmul(x, x)})


def work(way: str, graph: gd.Graph, folder: Path) -> Callable[[], gd.Executable]:
    """What is timed: a compile whose cache is `folder`, or a load of what was saved there."""
    if way not in WAYS:
        raise ValueError(f"{way} is no way to come to an executable; one of {', '.join(WAYS)} is needed")
    if way == "load":
        path = folder / SAVED
        path.read_bytes()  # into the page cache: reading from disk is not what is measured
        return partial(gd.load, path, rebuild=False)
    selection = "autotune" if way == "autotune" else "heuristic"
    options = gd.CompileOptions(cache_dir=str(folder), progress=False, selection=selection)
    return partial(gd.compile, graph, "cuda", options)


def once(way: str, batch: int, folder: Path) -> dict[str, object]:
    """Seconds of one compile or load, with context and handles there; "warm" and "load" find the folder filled.

    Beside those of a load stands what reading its file takes.
    """
    timed = work(way, network(batch), folder)
    with tempfile.TemporaryDirectory(prefix="graphdnn-") as other:
        gd.compile(small(), "cuda", gd.CompileOptions(cache_dir=other, progress=False))
    device = Device()
    device.set_current()
    started = time.perf_counter()
    exe = timed()
    device.sync()
    seconds = time.perf_counter() - started
    found = {"seconds": seconds, "effects": exe.report.effects, "estimated_us": exe.report.estimated_us}
    return found | {"reading_seconds": reading_seconds(folder)} if way == "load" else found


def reading_seconds(folder: Path) -> float:
    """Of the saved executable's file, from the page cache."""
    started = time.perf_counter()
    (folder / SAVED).read_bytes()
    return time.perf_counter() - started


if __name__ == "__main__":
    print(json.dumps(once(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))))
