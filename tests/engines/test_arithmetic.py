"""The report names the arithmetic that runs, and no engine computes in less than the graph says."""

import pytest

import graphdnn as gd
from graphdnn.engines.arithmetic import COMPUTES
from graphdnn.engines.cudnn.engine import CudnnEngine
from graphdnn.ir.op import OPS
from tests.engines.cudnn.test_support import MOVES_DATA
from tests.planned import answers, h200_report

WORDS = {
    "cast, then exp": (lambda g, x: g.exp(g.cast(x, gd.float64)), gd.float32, "float64"),
    "exp, then cast": (lambda g, x: g.cast(g.exp(x), gd.float64), gd.float32, "float32"),
    "on both sides of a cast": (lambda g, x: g.sin(g.cast(g.exp(x), gd.float64)), gd.float32, "float64 and float32"),
    "half, on both sides": (
        lambda g, x: g.sin(g.cast(g.exp(x), gd.float64)),
        gd.float16,
        "float16 in, float64 and float32 arithmetic",
    ),
    "meets float64": (lambda g, x: g.exp(x + g.input("y", (4,), gd.float64)), gd.float32, "float64"),
    "half": (lambda g, x: g.exp(x), gd.float16, "float16 in, float32 arithmetic"),
    "half summed in float64": (lambda g, x: g.reduce_sum(g.cast(x, gd.float64), axes=1), gd.float16, "float64"),
    "narrowed": (lambda g, x: g.cast(g.exp(x), gd.float16), gd.float64, "float64"),
    "integers": (lambda g, x: x * x, gd.int32, "int32"),
    "integers, then floats": (lambda g, x: g.exp(g.cast(x * x, gd.float32)), gd.int32, "float32"),
    "compared": (lambda g, x: g.less(x, 0.0), gd.float64, "float64"),
    "moved": (lambda g, x: g.concat([x, x], axis=0), gd.float16, "float16"),
    "products of bytes": (lambda g, x: g.matmul(x, x), gd.int8, "int32"),
}


def test_every_op_computes_or_moves_data() -> None:
    """Of one that is taken for moving, a report would name its result's type as what it is computed in."""
    computing = {kind for kind, op in OPS.items() if issubclass(op, COMPUTES)}
    assert computing | MOVES_DATA == set(OPS)
    assert not computing & MOVES_DATA


@pytest.mark.parametrize("name", WORDS)
def test_words_of_generated_kernels(name: str) -> None:
    spell, dtype, words = WORDS[name]
    g = gd.GraphBuilder()
    report = h200_report(g.build({"y": spell(g, g.input("x", (4, 4), dtype))}), disabled_engines=("cudnn", "cublaslt"))
    assert [(r.engine, r.precision) for r in report.regions] == [("nvrtc", words)]


@pytest.mark.parametrize("product", [False, True])
def test_cudnn_takes_nothing_that_is_float64_inside(product: bool) -> None:
    """With float32 at both ends it would compute in float32 what the graph computes in float64."""
    g = gd.GraphBuilder()
    x = g.input("x", (64, 64), gd.float16)
    y = g.matmul(x, x, name="product") if product else x
    graph = g.build({"y": g.cast(g.exp(g.cast(y, gd.float64, name="wide"), name="exp"), gd.float16, name="narrow")})
    nodes = [n.name for n in graph.nodes]
    (whole,) = answers(h200_report(graph), CudnnEngine().name, *nodes)
    assert whole.verdict == "declined"
    assert "what follows is in float64" in whole.reason
    assert whole.fix is not None
    assert (whole.fix.target, whole.fix.after) == ("wide", "float32")
