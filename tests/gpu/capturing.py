"""Builds while a stream is being captured, and again afterwards: `python -m tests.gpu.capturing FOLDER`, a cache.

A capture that can be known of is left as it was.  Of others the driver may end some; what failed for the capture alone
is not remembered, so that the next compilation finds every plan.
"""

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import graphdnn as gd
from graphdnn.ir.types import channels_last

SHAPE = (4, 32, 18, 18)
MODES = ("GLOBAL", "THREAD_LOCAL", "RELAXED")
MARK = 7


def convolution() -> gd.Graph:
    """Two convolutions with an intermediate between them, so that contexts have scratch memory to mix up."""
    rng = np.random.default_rng(3)
    g = gd.GraphBuilder("convolution")
    x = g.input("x", SHAPE, gd.float16, strides=channels_last(SHAPE))
    for _ in range(2):
        w = g.constant((rng.standard_normal((32, 32, 3, 3)) / 17).astype(np.float16))
        x = g.relu(g.conv(x, w, padding=1))
    return g.build({"y": x}, strides={"y": channels_last(SHAPE)})


def good(result: tuple) -> object:
    """The value of a driver call that must work."""
    assert int(result[0]) == 0, result
    return result[1] if len(result) > 1 else None


@contextmanager
def capture(stream: int, mode: str) -> Iterator[list]:
    """A capture of the driver's own: PyTorch's would be left half open by a call that ends it.  The list has the status
    of the end and the graph."""
    from cuda.bindings import driver

    ended: list = []
    good(driver.cuStreamBeginCapture(stream, getattr(driver.CUstreamCaptureMode, f"CU_STREAM_CAPTURE_MODE_{mode}")))
    try:
        yield ended
    finally:
        ended += driver.cuStreamEndCapture(stream)


def refused(build: Callable[[], object]) -> str:
    """What is said to somebody who builds."""
    try:
        build()
    except gd.GraphDnnError as error:
        return str(error)
    raise AssertionError("it was built during a capture")


def check_known(builds: dict[str, Callable[[], object]]) -> None:
    """Every way of building, in every mode, during captures that can be known of: refused, and the capture is good."""
    import torch
    from cuda.bindings import driver

    side = torch.cuda.Stream()
    ordered = int(good(driver.cuStreamCreate(0)))
    streams = {
        "PyTorch's current stream": side.cuda_stream,
        "a stream that is ordered with the default stream": ordered,
        "a stream that is ordered with the default stream, per thread": 2,
    }
    seen = torch.zeros(4, dtype=torch.uint8, device="cuda")
    for name, stream in streams.items():
        for mode in MODES:
            current = side if name.startswith("PyTorch") else torch.cuda.default_stream()
            torch.cuda.synchronize()
            with torch.cuda.stream(current), capture(stream, mode) as ended:
                good(driver.cuMemsetD8Async(seen.data_ptr(), MARK, 4, stream))
                said = {what: refused(build) for what, build in builds.items()}
            for what, text in said.items():
                assert f"is not possible while {name.partition(',')[0]} is being captured" in text, (what, mode, text)
            executable = good(driver.cuGraphInstantiate(good(tuple(ended)), 0))
            seen.zero_()
            torch.cuda.synchronize()
            good(driver.cuGraphLaunch(executable, ordered))
            good(driver.cuStreamSynchronize(ordered))
            assert (seen == MARK).all(), (name, mode)
            print("refused, and the capture is good:", name, mode, *said, flush=True)


def check_unknown(build: Callable[[], gd.Executable], run: Callable[[gd.Executable], None], mode: str) -> None:
    """A stream that nobody named: a clear error, or an executable that is right."""
    import torch

    side = torch.cuda.Stream()
    exe, said = None, ""
    with capture(side.cuda_stream, mode) as ended:
        try:
            exe = build()
        except gd.GraphDnnError as error:
            said = str(error)
    torch.cuda.synchronize()
    if exe is None:
        assert "captur" in said.lower(), said
    else:
        run(exe)
    print("a stream that nobody named:", mode, ended[0], said or "built", flush=True)


def main(folder: str) -> None:
    import torch

    warnings.simplefilter("error")
    graph, file = convolution(), Path(folder) / "saved.gdn"
    x = torch.randn(SHAPE, dtype=torch.float16, device="cuda").contiguous(memory_format=torch.channels_last)
    wanted = gd.evaluate(graph, {"x": x.cpu().numpy()}, gd.float64)["y"]

    def compiled(selection: str) -> gd.Executable:
        options = gd.CompileOptions(cache_dir=f"{folder}/cache", selection=selection, progress=False)
        return gd.compile(graph, target="cuda", options=options)

    def run(exe: gd.Executable) -> None:
        found = torch.from_dlpack(exe({"x": x})["y"]).cpu().numpy()
        assert np.abs(found - wanted).max() <= 5e-3 * np.abs(wanted).max()

    builds: dict[str, Callable[[], object]] = {s: lambda s=s: compiled(s) for s in ("heuristic", "autotune")}
    check_known(builds)
    check_unknown(lambda: compiled("autotune"), run, "GLOBAL")
    exe = compiled("autotune")
    assert all(r.measured_us for r in exe.report.regions), exe.report
    failed = [p.reason for c in exe.report.candidates for p in c.plans if p.verdict == "failed"]
    assert not any("captur" in reason for reason in failed), failed
    compiled("heuristic").save(file)
    run(exe)
    check_known({**builds, "load": lambda: gd.load(file), "bind": lambda: exe.bind({"x": x})})
    for mode in MODES:
        check_unknown(lambda: compiled("heuristic"), run, mode)
    for one in (exe, compiled("heuristic"), gd.load(file)):
        run(one)
    print("all is good", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
