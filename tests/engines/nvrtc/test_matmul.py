"""Generated matmul without a device: which tiles, which vectors, what is declined, and that all of it compiles."""

import re
from collections.abc import Callable
from typing import Any

import pytest

import graphdnn as gd
from graphdnn.answer import Code, Decline
from graphdnn.engines.contract import Policy
from graphdnn.engines.nvrtc import tiled
from graphdnn.engines.nvrtc.compile import compile_cubin
from graphdnn.engines.nvrtc.engine import NvrtcEngine, family_of
from graphdnn.engines.nvrtc.tiling import MATRIX_TILINGS, TILINGS, Product, Tiling, best_tiling, dense_vector
from graphdnn.ir.region import Region
from graphdnn.ir.types import DType, row_major
from graphdnn.target import Target
from tests.engines.cudnn.layouts import whole

H200 = Target.named("h200")
Shape = tuple[int, ...]


def product(a: Shape, b: Shape, dtype: DType, epilogue: bool = False, strides: Shape | None = None) -> Region:
    g = gd.GraphBuilder()
    y = g.matmul(g.input("a", a, dtype, strides=strides), g.input("b", b, dtype))
    if epilogue:
        y = g.gelu(g.bias(y, g.input("bias", (b[-1],), dtype), axis=-1))
    return whole(g.build({"y": y}), row_major)


def source(region: Region) -> str:
    family = family_of(region)
    assert not isinstance(family, Decline), family
    return family.generate(region, H200).kernels[0].source


@pytest.mark.parametrize("tiling", [*TILINGS, *MATRIX_TILINGS], ids=lambda t: "x".join(map(str, t.block)))
def test_tilings_divide(tiling: Tiling) -> None:
    """A tile of each operand falls to the threads evenly, in whole warps."""
    m, n, k = tiling.block
    assert tiling.threads % 32 == 0
    assert m * k % tiling.threads == 0
    assert n * k % tiling.threads == 0


@pytest.mark.parametrize(
    ("tiling", "dtype", "arch"),
    [
        *((tiling, gd.float32, "sm_90") for tiling in TILINGS[1:]),
        (TILINGS[0], gd.float64, "sm_80"),
        (TILINGS[1], gd.float16, "sm_80"),
        (TILINGS[2], gd.int8, "sm_90"),
        (TILINGS[2], gd.int64, "sm_80"),
        (TILINGS[2], gd.bfloat16, "sm_80"),
        (MATRIX_TILINGS[0], gd.float16, "sm_80"),
        (MATRIX_TILINGS[1], gd.bfloat16, "sm_90"),
    ],
)
def test_kernels_compile(monkeypatch: pytest.MonkeyPatch, tiling: Any, dtype: DType, arch: str) -> None:
    monkeypatch.setattr(tiled, "best_tiling", lambda *_: tiling)
    cubin = compile_cubin(source(product((3, 132, 68), (68, 136), dtype)), arch)
    assert isinstance(cubin, bytes), cubin


ALL = [
    *(
        (tiling, dtype)
        for tiling in TILINGS
        for dtype in (gd.float16, gd.float32, gd.float64, gd.int8, gd.int32, gd.int64)
    ),
    *((tiling, dtype) for tiling in MATRIX_TILINGS for dtype in (gd.float16, gd.bfloat16)),
]


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize(("tiling", "dtype"), ALL, ids=str)
def test_all_kernels_compile(monkeypatch: pytest.MonkeyPatch, tiling: Any, dtype: DType, arch: str) -> None:
    monkeypatch.setattr(tiled, "best_tiling", lambda *_: tiling)
    for a, b in (((132, 68), (68, 136)), ((2, 33, 65), (65, 47))):
        cubin = compile_cubin(source(product(a, b, dtype, epilogue=dtype.is_float)), arch)
        assert isinstance(cubin, bytes), cubin


@pytest.mark.parametrize(
    ("m", "n", "k"), [(2**31 + 64, 1, 1), (2**31 - 8, 1, 1), (1, 2**31 + 64, 1), (1, 1, 2**31 + 64)]
)
def test_long_axes_are_counted_in_64_bits(m: int, n: int, k: int) -> None:
    """Rows, columns and steps of the sum beyond 2**31, or so near to it that the last tile's are."""
    text = source(product((m, k), (k, n), gd.float16))
    extents = f'static_assert(sizeof(Index) == 8 && M == {m}ll && N == {n}ll && K == {k}ll, "");'
    cubin = compile_cubin(f"{text}\n{extents}\n", "sm_90")
    assert isinstance(cubin, bytes), cubin
    assert not re.search(r"\bint (k0|[^;(]*first_[mn] =|[^;(]* [mnk] = (first|k0))", text)


@pytest.mark.parametrize(
    ("batch", "m", "n", "k", "block"),
    [
        ((), 8192, 4096, 1024, (128, 128, 8)),
        ((64,), 512, 512, 64, (128, 128, 8)),
        ((), 256, 384, 384, (32, 32, 32)),
        ((), 4, 16384, 1024, (16, 128, 16)),
        ((), 65536, 8, 64, (128, 8, 16)),
    ],
)
def test_tiles_follow_the_product(batch: Shape, m: int, n: int, k: int, block: Shape) -> None:
    assert best_tiling(Product(batch, m, n, k, gd.float32), H200).block == block


@pytest.mark.parametrize(
    ("step", "others", "extent", "itemsize", "share", "width"),
    [
        (1, (64,), 64, 4, 4, 4),
        (1, (64,), 64, 8, 4, 2),
        (1, (64,), 64, 2, 8, 4),
        (1, (66,), 66, 4, 4, 2),
        (1, (64,), 63, 4, 4, 1),
        (1, (65,), 64, 4, 4, 1),
        (2, (64,), 64, 4, 4, 1),
        (1, (64,), 64, 4, 2, 2),
    ],
)
def test_vectors_of_an_operand(step: int, others: Shape, extent: int, itemsize: int, share: int, width: int) -> None:
    assert dense_vector(step, others, extent, itemsize, share) == width


def test_operands_are_fetched_along_their_dense_axis() -> None:
    assert "VA = 4;\nconstexpr bool A_ALONG_K = true" in source(product((64, 32), (32, 48), gd.float32))
    assert "VA = 4;\nconstexpr bool A_ALONG_K = false" in source(
        product((64, 32), (32, 48), gd.float32, strides=(1, 64))
    )
    assert "VA = 1;\nconstexpr bool A_ALONG_K = true" in source(product((64, 33), (33, 48), gd.float32))


@pytest.mark.parametrize(
    ("dtype", "sums"),
    [(gd.float16, "float"), (gd.float64, "double"), (gd.int8, "unsigned"), (gd.int64, "unsigned long long")],
    ids=str,
)
def test_what_sums_run_in(dtype: DType, sums: str) -> None:
    assert f"typedef {sums} Acc;" in source(product((5, 7), (7, 3), dtype))


def test_work_before_the_product_is_declined() -> None:
    g = gd.GraphBuilder()
    a = g.relu(g.input("a", (5, 7), gd.float32), name="before")
    answer = NvrtcEngine().supports(
        whole(g.build({"y": g.matmul(a, g.input("b", (7, 3), gd.float32))})), H200, Policy()
    )
    assert isinstance(answer, Decline)
    assert answer.code == Code.PATTERN
    assert "before" in answer.reason


def test_an_epilogue_beyond_the_product_is_declined() -> None:
    g = gd.GraphBuilder()
    y = g.matmul(g.input("a", (5, 7), gd.float32), g.input("b", (7, 3), gd.float32))
    region = whole(g.build({"y": g.add(y, g.input("c", (4, 5, 3), gd.float32))}), row_major)
    answer = NvrtcEngine().supports(region, H200, Policy())
    assert isinstance(answer, Decline)
    assert answer.code == Code.BROADCAST
    assert "(4, 5, 3)" in answer.reason


def test_two_products_are_declined() -> None:
    g = gd.GraphBuilder()
    a, b = g.input("a", (5, 7), gd.float32), g.input("b", (7, 3), gd.float32)
    region = whole(g.build({"y": g.matmul(a, b) * g.matmul(a, g.input("c", (7, 3), gd.float32))}), row_major)
    answer = NvrtcEngine().supports(region, H200, Policy())
    assert isinstance(answer, Decline)
    assert answer.code == Code.PATTERN


def test_long_float32_sums_are_folded_into_totals() -> None:
    def text(inner: int, dtype: gd.DType, rows: int = 512) -> str:
        region = product((rows, inner), (inner, 512), dtype)
        return family_of(region).generate(region, H200).kernels[0].source  # type: ignore[union-attr]

    assert "#define FOLD 32\n" in text(9216, gd.float32)
    assert "#define FOLD 16\n" in text(9216, gd.float32, rows=65)
    assert "#define FOLD 0\n" in text(1023, gd.float32)
    assert "#define FOLD 0\n" in text(9216, gd.float32, rows=8192)  # of so many sums a thread can keep one each
    for dtype in (gd.float64, gd.float16, gd.int8):
        assert "#define FOLD 0\n" in text(9216, dtype)


def test_it_is_a_last_resort_and_priced_as_one() -> None:
    answer = NvrtcEngine().supports(product((4096, 4096), (4096, 4096), gd.float32), H200, Policy())
    assert not isinstance(answer, Decline)
    assert answer.last_resort
    assert answer.deterministic
    peak = 2 * 4096**3 / H200.rate("float32") * 1e6
    assert peak < answer.estimated_us < 2.5 * peak


def test_the_matrix_units_multiply_halves_only() -> None:
    prices = {}
    for dtype in (gd.float16, gd.bfloat16, gd.float32):
        region = product((4096, 4096), (4096, 4096), dtype)
        assert ("#define MATRIX_UNITS 1" in source(region)) == (dtype.bits == 16)
        answer = NvrtcEngine().supports(region, H200, Policy())
        assert not isinstance(answer, Decline)
        prices[dtype] = answer.estimated_us
    assert prices[gd.float16] == prices[gd.bfloat16] < prices[gd.float32] / 3
    assert "#define MATRIX_UNITS 0" in source(mixed((64, 64), (64, 64)))


def mixed(a: Shape, b: Shape) -> Region:
    """A product of two kinds of halves, which only float32 holds."""
    g = gd.GraphBuilder()
    return whole(g.build({"y": g.matmul(g.input("a", a, gd.float16), g.input("b", b, gd.bfloat16))}), row_major)


def test_dear_functions_behind_many_sums_are_called_and_not_copied() -> None:
    """Copied 64 times they make a kernel take up to ten times as long to compile."""

    def text(build: Callable[[gd.GraphBuilder, gd.Value], gd.Value], rows: int = 4096) -> str:
        g = gd.GraphBuilder()
        y = g.matmul(g.input("a", (rows, 4096), gd.float32), g.input("b", (4096, 4096), gd.float32))
        return source(whole(g.build({"y": build(g, y), "product": y}), row_major))

    dear = text(lambda g, y: g.gelu(g.add(y, g.input("c", (4096,), gd.float32))))
    assert dear.count("erff(") == 1
    assert "return Outcome{" in dear
    assert "epilogue(sum[i][j0 + j], x0)" in dear
    assert "__noinline__" not in text(lambda g, y: g.relu(y))
    assert "__noinline__" not in text(lambda g, y: g.gelu(y), rows=4)  # 16 sums a thread
    assert isinstance(compile_cubin(dear, "sm_80"), bytes)
