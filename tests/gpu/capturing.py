"""Compiles while a stream is being captured, and again afterwards: `python -m tests.gpu.capturing FOLDER`, a cache.

What failed for the capture alone is not remembered, so that the second compilation finds every plan.
"""

import sys
import warnings

import numpy as np

import graphdnn as gd
from graphdnn.ir.types import channels_last

SHAPE = (4, 32, 18, 18)


def convolution() -> gd.Graph:
    """Two convolutions with an intermediate between them, so that contexts have scratch memory to mix up."""
    rng = np.random.default_rng(3)
    g = gd.GraphBuilder("convolution")
    x = g.input("x", SHAPE, gd.float16, strides=channels_last(SHAPE))
    for _ in range(2):
        w = g.constant((rng.standard_normal((32, 32, 3, 3)) / 17).astype(np.float16))
        x = g.relu(g.conv(x, w, padding=1))
    return g.build({"y": x}, strides={"y": channels_last(SHAPE)})


def main(folder: str) -> None:
    import torch
    from cuda.bindings import driver

    warnings.simplefilter("error")
    options = gd.CompileOptions(cache_dir=folder, selection="autotune", progress=False)
    graph, side = convolution(), torch.cuda.Stream()
    # The driver's own capture: PyTorch's would be left half open by a call that is not permitted and ends it.
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
    print("begin", driver.cuStreamBeginCapture(side.cuda_stream, mode), flush=True)
    try:
        gd.compile(graph, target="cuda", options=options)
        raise AssertionError("it compiled inside a capture")
    except gd.GraphDnnError as error:
        print(error, flush=True)
    finally:
        print("end", driver.cuStreamEndCapture(side.cuda_stream), flush=True)
    torch.cuda.synchronize()
    report = gd.compile(graph, target="cuda", options=options).report
    assert all(r.measured_us for r in report.regions), report
    failed = [p.reason for c in report.candidates for p in c.plans if p.verdict == "failed"]
    assert not any("captur" in reason for reason in failed), failed


if __name__ == "__main__":
    main(sys.argv[1])
