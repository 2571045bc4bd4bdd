"""Constants are written to the device once, when a graph is loaded, by libraries' plans and generated kernels alike."""

import numpy as np
import pytest
import torch

import graphdnn as gd
from graphdnn.runtime.device import CudaDevice
from tests.numbers import relative_error
from tests.runtime.fake import loaded
from tests.runtime.written import watch_writes

pytestmark = pytest.mark.gpu

WIDTH = 64


def graph_with_shared_weights(rng: np.random.Generator) -> gd.Graph:
    """One matrix that two products read, and one scale that two norms read."""
    g = gd.GraphBuilder("shared_weights")
    x = g.input("x", (128, WIDTH), gd.float16)
    w = g.constant((rng.standard_normal((WIDTH, WIDTH)) / 8).astype(np.float16), name="w")
    scale = g.constant(rng.uniform(0.5, 2, WIDTH).astype(np.float16), name="scale")
    h = g.rms_norm(g.matmul(x, w), scale)
    return g.build({"y": g.rms_norm(g.matmul(g.softmax(h), w), scale)})


def test_no_call_writes_constants_again(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    written = watch_writes(CudaDevice, monkeypatch)
    graph = graph_with_shared_weights(rng)
    exe = gd.compile(graph, target="cuda")
    assert sum("matmul" in region.pattern for region in exe.report.regions) == 2
    memory = loaded(exe._program).constants
    before, loaded_then = written.into(memory), written.loads()
    loads = [(at, n) for how, at, n in before if how == "write"]  # trials may have filled this memory before
    assert [n for _, n in loads].count(WIDTH * WIDTH * 2) == 1
    assert len({at for at, _ in loads}) == len(loads)
    x = rng.standard_normal((128, WIDTH)).astype(np.float16)
    wanted = gd.evaluate(graph, {"x": x}, gd.float64)["y"]
    on_device = torch.from_numpy(x).cuda()
    contexts = [exe, exe.context(), exe.context()]
    for own in contexts:
        bound = own.bind({"x": on_device})
        for _ in range(3):
            for found in (own({"x": x}), own({"x": on_device}), bound()):
                y = found["y"]
                array = y if isinstance(y, np.ndarray) else y.numpy()
                assert relative_error(array, wanted) <= 4e-3
        assert loaded(own._program).constants is memory
    assert written.into(memory) == before
    assert written.loads() == loaded_then
    assert len(written.spans) > len(before), "numpy inputs were copied to the device meanwhile"
