"""A graph that cannot run: the user's node is named, what is missing, and what would let it run."""

import re
from dataclasses import replace

import numpy as np
import pytest
from cuda.bindings import nvrtc

import graphdnn as gd
from graphdnn.config import CompileOptions
from graphdnn.engines.choose import Selector
from graphdnn.engines.contract import Policy
from graphdnn.engines.manifest import load_engine
from graphdnn.engines.nvrtc import compile as nvrtc_compile
from graphdnn.planning.planner import Problem, planned
from tests.planned import H200


def layer_norm() -> gd.Graph:
    g = gd.GraphBuilder("rows")
    x = g.relu(g.input("x", (3, 65), gd.float16), name="before")
    return g.build({"y": g.layer_norm(x, name="norm")})


def attention() -> gd.Graph:
    g = gd.GraphBuilder("heads")
    q, k, v = (g.input(n, (1, 2, 33, 36), gd.float32) for n in "qkv")
    return g.build({"y": g.attention(q, k, v, causal="top_left", name="att")})


def batch_norm() -> gd.Graph:
    g = gd.GraphBuilder("images")
    x = g.input("x", (4, 6, 9, 9), gd.float16)
    parameters = [g.constant(np.linspace(0.5, 1.0 + i, 6), name=f"p{i}") for i in range(4)]
    return g.build({"y": g.batch_norm(x, *parameters, name="norm")})


def refusal(graph: gd.Graph, *disabled: str) -> str:
    with pytest.raises(gd.CompileError) as caught:
        gd.compile(graph, target=H200, options=gd.CompileOptions(disabled_engines=disabled))
    return str(caught.value)


@pytest.mark.parametrize("graph", [layer_norm(), attention(), batch_norm()], ids=lambda g: g.name)
@pytest.mark.parametrize("disabled", [("nvrtc",), ("cudnn", "cublaslt", "nvrtc")], ids="+".join)
def test_only_names_of_the_user_are_named(graph: gd.Graph, disabled: tuple[str, ...]) -> None:
    said = refusal(graph, *disabled)
    known = {*graph.inputs, *graph.constants, *(n.name for n in graph.nodes)}
    assert set(re.findall(r"%([\w.]*\w)", said)) <= known
    assert "\n" not in said


def test_the_part_of_an_op_is_told_with_the_op() -> None:
    said = refusal(layer_norm(), "nvrtc")
    assert said.startswith("no engine takes reduce_mean, a part of layer_norm %norm, on h200 (described): cudnn: ")
    assert said.endswith("; nvrtc, left out by disabled_engines, takes it")


def test_every_engine_that_would_do_is_named() -> None:
    g = gd.GraphBuilder("product")
    x, w = g.input("x", (64, 64), gd.float16), g.input("w", (64, 64), gd.float16)
    said = refusal(g.build({"y": g.matmul(x, w, name="p")}), "cudnn", "cublaslt", "nvrtc")
    assert said == (
        "no engine takes matmul %p on h200 (described): no engine is enabled; "
        "cudnn and cublaslt and nvrtc, left out by disabled_engines, take it"
    )


def test_a_missing_library_comes_first_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden() -> object:
        raise RuntimeError("Failure finding libnvrtc.so: No such file: libnvrtc.so.*")

    monkeypatch.setattr(nvrtc, "nvrtcVersion", hidden)
    nvrtc_compile.compiler_version.cache_clear()
    selector = Selector([load_engine(e) for e in ("cudnn", "nvrtc")], replace(H200, present=True), Policy())
    with pytest.raises(gd.SetupError) as caught:
        planned(Problem(layer_norm(), selector, None, CompileOptions()))
    nvrtc_compile.compiler_version.cache_clear()
    said = str(caught.value)
    assert re.match(r"no engine takes \w+, a part of layer_norm %norm, on h200: nvrtc: .*libnvrtc", said)
    assert "; install nvidia-cuda-nvrtc" in said
    assert "left out" not in said
