"""What the cublaslt engine answers without a device: rules, reasons, fixes, and how well its estimates fit."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import graphdnn as gd
from graphdnn.answer import FIXABLE, Code, Decline
from graphdnn.engines.contract import Policy, Support
from graphdnn.engines.cublaslt.engine import CublasLtEngine
from graphdnn.engines.cublaslt.estimate import FIXED_US
from graphdnn.engines.cublaslt.support import TYPES
from graphdnn.ir.graph import Graph
from graphdnn.ir.ops.linear import MatMul
from graphdnn.ir.ops.movement import Slice
from graphdnn.ir.region import Region
from graphdnn.ir.writer import Rewriter
from tests.engines.cublaslt.product import TAILS, Strided, behind, packed, product, relu, residual, vector

H200 = gd.Target.named("h200")


def answer(region: Region, **options: object) -> Support | Decline:
    return CublasLtEngine().supports(region, options.pop("target", H200), Policy(**options))  # type: ignore[arg-type]


def declined(region: Region, **options: object) -> Decline:
    found = answer(region, **options)
    assert isinstance(found, Decline), f"accepted: {found}"
    assert found.fix is not None or found.code not in FIXABLE
    return found


@pytest.mark.parametrize("pair", TYPES, ids=lambda pair: f"{pair[0]}-{pair[1]}")
def test_every_row_of_the_table_is_reached(pair: tuple[gd.DType, gd.DType]) -> None:
    source, result = pair
    tail = TAILS["alone"]
    if source.is_float and result != source:
        tail = lambda g, y, new: g.cast(y, result)  # noqa: E731
    found = answer(product(Strided((8, 16)), Strided((16, 4), (1, 16)), source, tail))
    assert isinstance(found, Support), str(found)
    assert found.precision == TYPES[pair].words


def test_precision_is_what_the_user_asked_for() -> None:
    region = product(Strided((8, 16)), Strided((16, 4)), gd.float32)
    words = [answer(region, precision=p) for p in ("ieee", "tf32", "reduced")]
    assert [w.precision for w in words if isinstance(w, Support)] == ["float32", "tf32", "tf32"]
    large = product(Strided((4096, 4096)), Strided((4096, 4096)), gd.float32)
    ieee, tf32 = answer(large), answer(large, precision="tf32")
    assert isinstance(ieee, Support)
    assert isinstance(tf32, Support)
    assert ieee.estimated_us > 4 * tf32.estimated_us


@pytest.mark.parametrize("dtype", [gd.int32, gd.int64, gd.uint8], ids=str)
def test_other_types_are_declined_with_the_nearest(dtype: gd.DType) -> None:
    found = declined(product(Strided((8, 16)), Strided((16, 4)), dtype))
    assert found.code is Code.DTYPE
    assert found.fix is not None
    assert (found.fix.target, found.fix.after) == ("a and b", "int8")


def test_the_fix_of_a_type_is_accepted() -> None:
    def with_bias(dtype: gd.DType) -> Region:
        return product(
            Strided((8, 16)), Strided((16, 4)), gd.float16, lambda g, y, new: g.bias(y, new("v", (4,), dtype), axis=-1)
        )

    mixed = product(
        Strided((8, 16)),
        Strided((16, 4)),
        gd.float16,
        lambda g, y, new: g.add(g.bias(y, new("v", (4,)), axis=-1), new("c", (8, 4), gd.float32)),
    )
    found = declined(mixed)
    assert found.fix is not None
    assert (found.code, found.fix.target, found.fix.after) == (Code.DTYPE, "v", "float32")
    assert isinstance(answer(with_bias(gd.float32)), Support), "a float32 bias makes the result float32"
    assert isinstance(answer(with_bias(gd.float16)), Support)


def test_a_float32_product_is_not_rounded_to_halves() -> None:
    found = declined(product(Strided((8, 16)), Strided((16, 4)), gd.float32, lambda g, y, new: g.cast(y, gd.float16)))
    assert found.code is Code.DTYPE
    assert found.fix is not None
    assert found.fix.after == "float32"


INT8: dict[str, tuple[Strided, Strided, Code]] = {
    "right operand by rows": (Strided((8, 16)), Strided((16, 4)), Code.LAYOUT),
    "left operand by columns": (Strided((8, 16), (1, 8)), Strided((16, 4), (1, 16)), Code.LAYOUT),
    "K of 6": (Strided((8, 6)), Strided((6, 4), (1, 6)), Code.SHAPE),
    "N of 6": (Strided((8, 16)), Strided((16, 6), (1, 16)), Code.SHAPE),
    "rows 18 apart": (Strided((8, 16), (18, 1)), Strided((16, 4), (1, 16)), Code.ALIGNMENT),
}


@pytest.mark.parametrize("name", INT8)
def test_int8_rules(name: str) -> None:
    a, b, code = INT8[name]
    assert declined(product(a, b, gd.int8)).code is code


def test_int8_steps_between_calls() -> None:
    """Rows of heads lie one behind the other without a gap, or with one that is no multiple of four."""

    def batched(gap: int) -> Region:
        step = 8 * 48 + gap
        a = Strided((2, 3, 8, 16), (step, 16, 48, 1))
        return product(a, Strided((2, 3, 16, 4), (192, 64, 1, 16)), gd.int8)

    found = declined(batched(2))
    assert (found.code, "stride between calls 386" in found.reason) == (Code.ALIGNMENT, True), found.reason
    assert isinstance(answer(batched(4)), Support)


def test_int8_takes_no_work_behind() -> None:
    region = product(Strided((8, 16)), Strided((16, 4), (1, 16)), gd.int8, relu)
    assert declined(region).code is Code.PATTERN


def sliced(start: int) -> Region:
    """An int8 product whose left operand begins inside a row of a wider tensor."""
    g = gd.GraphBuilder("sliced")
    x, w = g.input("x", (8, 32), gd.int8), g.input("w", (16, 4), gd.int8, strides=(1, 16))
    plain = g.build({"y": g.matmul(g.slice(x, starts=(0, start), stops=(8, start + 16)), w)})
    rewriter = Rewriter(plain)
    cut, made = plain.nodes
    assert isinstance(cut.op, Slice)
    view = cut.op.view(cut.operands[0].type)
    assert view is not None
    types = [cut.result.type.with_strides(view[0].strides)]
    (part,) = rewriter.emit(cut.op, *cut.operands, origins=cut.origins, types=types)
    (y,) = rewriter.emit(MatMul(), part, made.operands[1], origins=made.origins)
    rewriter.replace(made.result, y)
    graph: Graph = rewriter.finish()
    return Region.of(graph, graph.nodes[1:])


def test_int8_offsets_of_views() -> None:
    found = declined(sliced(3))
    assert (found.code, "offset 3" in found.reason) == (Code.ALIGNMENT, True)
    assert isinstance(answer(sliced(4)), Support)


def scores(sequences: int, heads: int, tokens: int, dtype: gd.DType) -> Region:
    return product(packed(sequences, heads, tokens, 64), packed(sequences, heads, tokens, 64, by_columns=True), dtype)


@pytest.mark.parametrize(("sequences", "heads", "calls"), [(1, 16, 1), (3, 16, 3), (16, 12, 12), (64, 2, 2)])
def test_each_call_is_priced_as_a_product_that_starts_anew(sequences: int, heads: int, calls: int) -> None:
    found = answer(scores(sequences, heads, 128, gd.float32))
    alone = answer(
        product(Strided((sequences * heads // calls, 128, 64)), packed(1, heads * sequences // calls, 128, 64, True))
    )
    assert isinstance(found, Support)
    assert isinstance(alone, Support)
    assert (found.kernels, found.notes) == (calls * alone.kernels, (f"{calls} calls",) if calls > 1 else ())
    assert found.workspace_bytes == alone.workspace_bytes
    start = H200.launch_us + FIXED_US
    assert found.estimated_us >= calls * start
    assert found.estimated_us == pytest.approx(calls * alone.estimated_us, rel=0.3)


def test_split_products_of_several_calls_use_one_piece_of_scratch() -> None:
    a, b = packed(2, 2, 16, 8192), packed(2, 2, 16, 8192, by_columns=True)
    found = answer(product(a, b, gd.float16))
    assert isinstance(found, Support)
    parts = found.workspace_bytes // (2 * 16 * 16 * 4)
    assert (found.kernels, parts > 1) == (4, True)


def test_too_many_calls_are_declined_and_the_fix_is_accepted() -> None:
    keys = packed(65, 65, 4, 8, by_columns=True)
    found = declined(product(packed(65, 65, 4, 8), Strided(keys.shape)))
    assert found.code is Code.LAYOUT
    assert found.fix is not None
    assert isinstance(answer(product(Strided((*keys.shape[:2], 4, 8)), Strided(keys.shape))), Support)


def test_machines() -> None:
    region = product(Strided((8, 16)), Strided((16, 4)), gd.bfloat16)
    assert declined(region, target=gd.Target.cpu()).code is Code.ARCHITECTURE
    old = replace(H200, name="t4", compute_capability=(7, 5))
    assert declined(region, target=old).code is Code.ARCHITECTURE
    halves = product(Strided((8, 16)), Strided((16, 4)), gd.float16)
    assert isinstance(answer(halves, target=old), Support)


def test_answers_load_no_gpu_library() -> None:
    code = (
        "import sys, graphdnn as gd; from graphdnn.engines.cublaslt.engine import CublasLtEngine;"
        "from graphdnn.engines.contract import Policy; from graphdnn.ir.region import Region;"
        "g = gd.GraphBuilder(); x = g.input('x', (8, 16), gd.float16); w = g.input('w', (16, 4), gd.float16);"
        "graph = g.build({'y': g.matmul(x, w)}); r = Region.of(graph, graph.nodes);"
        "assert CublasLtEngine().supports(r, gd.Target.named('h200'), Policy());"
        "print(' '.join(sorted({m.split('.')[0] for m in sys.modules})))"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert not set(done.stdout.split()) & {"nvmath", "cuda", "cudnn", "torch"}


@pytest.mark.parametrize("limit", [0, 512, 1 << 20, None])
def test_an_estimate_keeps_to_the_workspace_limit(limit: int | None) -> None:
    found = answer(product(Strided((16, 14336)), Strided((14336, 4096)), gd.bfloat16), workspace_limit=limit)
    assert isinstance(found, Support)
    assert limit is None or found.workspace_bytes <= limit
    assert found.kernels == (2 if found.workspace_bytes else 1)


MEASURED: list[tuple[str, int, int, int, gd.DType, float]] = [
    ("bias gelu", 8192, 4096, 1024, gd.float16, 108.4),
    ("bias residual", 8192, 1024, 4096, gd.float16, 100.8),
    ("alone", 4096, 28672, 4096, gd.bfloat16, 1327),
    ("alone", 1, 4096, 4096, gd.bfloat16, 12.6),
    ("alone", 16, 4096, 4096, gd.bfloat16, 12.6),
    ("alone", 16, 6144, 4096, gd.bfloat16, 16.3),
    ("alone", 16, 28672, 4096, gd.bfloat16, 62.5),
    ("alone", 16, 4096, 14336, gd.bfloat16, 32.0),
    ("alone", 1024, 1024, 1024, gd.float32, 54.0),
    ("alone", 512, 768, 768, gd.float32, 20.9),
    ("bias", 512, 768, 768, gd.float32, 21.6),
    ("alone", 4096, 4096, 4096, gd.float32, 2686),
]
"""Work, M, N, K, type, microseconds on an H200."""


@pytest.mark.parametrize(("tail", "m", "n", "k", "dtype", "us"), MEASURED)
def test_estimates_fit_measurements(tail: str, m: int, n: int, k: int, dtype: gd.DType, us: float) -> None:
    tails = {**TAILS, "bias residual": behind(vector(-1), residual())}
    found = answer(product(Strided((m, k)), Strided((k, n)), dtype, tails[tail]))
    assert isinstance(found, Support)
    assert 0.85 < found.estimated_us / us < 1.18
