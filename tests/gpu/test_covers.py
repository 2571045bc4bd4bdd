"""Covers that are kept, on the device: a second compilation proposes nothing, and gives the same bits and report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphdnn as gd
from examples.models import bert, llama, mobilenet, resnet
from graphdnn.planning import planner
from graphdnn.planning.covers import KIND
from graphdnn.runtime.cache import DiskStore

pytestmark = pytest.mark.gpu

BERT = bert.Config(hidden=256, heads=4, layers=1, inner=1024)


def bert_layer() -> gd.Graph:
    return bert.bert_layer(bert.random_layer_weights(0, BERT, gd.float16), 3, 48, BERT, gd.float16)


def llama_layer() -> gd.Graph:
    config = llama.Config(hidden=256, heads=4, kv_heads=2, head_dim=64, inner=512)
    return llama.layer(llama.random_weights(0, config, gd.bfloat16), 1, 96, config, gd.bfloat16)


GRAPHS: dict[str, Callable[[], gd.Graph]] = {
    "resnet50": lambda: resnet.build(resnet.random_parameters(seed=0), 2, gd.float16, 64),
    "mobilenet": lambda: mobilenet.build(mobilenet.random_parameters(seed=0), 2, gd.float16, 64),
    "bert": bert_layer,
    "llama": llama_layer,
}


def drawn(graph: gd.Graph, rng: np.random.Generator) -> dict[str, Any]:
    return {n: rng.standard_normal(v.type.shape).astype(v.type.dtype.numpy) for n, v in graph.inputs.items()}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("options", [{}, {"deterministic": True}], ids=str)
def test_a_recalled_compilation_is_the_same(
    name: str, options: dict[str, Any], tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = GRAPHS[name]()
    settings = gd.CompileOptions(cache_dir=str(tmp_path), **options)
    cold = gd.compile(graph, "cuda", settings)
    smooth = all(p.chosen and p.chosen.tried[0].verdict == "chosen" for p in cold.compilation.picks)
    assert bool([e for e in DiskStore(tmp_path).entries() if e.kind == KIND]) == smooth
    proposed: list[str] = []
    real = planner.propose
    monkeypatch.setattr(planner, "propose", lambda g: (proposed.append(g.name), real(g))[1])
    warm = gd.compile(graph, "cuda", settings)
    assert (not proposed) == smooth
    arrays = drawn(graph, rng)
    first, second = cold(arrays), warm(arrays)
    if all(r.deterministic for r in cold.report.regions):
        assert all(first[n].tobytes() == second[n].tobytes() for n in first)
    assert warm.report == cold.report
    if not options:
        assert smooth, "nothing stood in the way of a plain compilation"
