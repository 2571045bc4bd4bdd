"""Pooling kernels without a device: every kernel compiles, channels are walked as vectors, divisors are exact."""

import pytest

import graphdnn as gd
from graphdnn.answer import Code, Decline
from graphdnn.engines.contract import Policy, Support
from graphdnn.engines.nvrtc import pooling
from graphdnn.engines.nvrtc.compile import compile_cubin
from graphdnn.engines.nvrtc.engine import NvrtcEngine, family_of
from graphdnn.ir.types import DType, TensorType, channels_last
from graphdnn.target import Target
from tests.engines.nvrtc.row_regions import POOLS, Case

H200 = Target.named("h200")


@pytest.mark.parametrize("case", POOLS, ids=str)
def test_kernels_compile(case: Case) -> None:
    region = case.region()
    assert family_of(region) is pooling.FAMILY
    (kernel,) = pooling.generate(region, H200).kernels
    cubin = compile_cubin(kernel.source, "sm_80")
    assert isinstance(cubin, bytes), cubin


@pytest.mark.slow
@pytest.mark.parametrize("case", POOLS, ids=str)
def test_kernels_compile_for_hopper(case: Case) -> None:
    (kernel,) = pooling.generate(case.region(), H200).kernels
    cubin = compile_cubin(kernel.source, "sm_90")
    assert isinstance(cubin, bytes), cubin


@pytest.mark.parametrize("case", POOLS, ids=str)
def test_regions_are_offered(case: Case) -> None:
    answer = NvrtcEngine().supports(case.region(), H200, Policy())
    assert isinstance(answer, Support)
    assert answer.estimated_us > 0
    assert not answer.last_resort


def in_memory(shape: tuple[int, ...], dtype: DType, last: bool) -> TensorType:
    return TensorType(shape, dtype, channels_last(shape) if last else None)


@pytest.mark.parametrize(
    ("channels", "dtype", "width"),
    [(64, gd.float16, 8), (20, gd.float16, 4), (23, gd.float16, 1), (64, gd.float32, 4), (6, gd.float64, 2)],
)  # fmt: skip
def test_channels_that_are_innermost_make_vectors(channels: int, dtype: DType, width: int) -> None:
    x, y = ((2, channels, 9, 7), (2, channels, 4, 3))
    assert pooling.vector(in_memory(x, dtype, True), in_memory(y, dtype, True))[1] == width
    assert pooling.vector(in_memory(x, dtype, False), in_memory(y, dtype, False)) == (3, 1)
    assert pooling.vector(in_memory(x, dtype, True), in_memory(y, dtype, False)) == (3, 1)


def test_neighbouring_threads_write_neighbouring_elements() -> None:
    shape = (2, 24, 5, 7)
    assert pooling.walk_order(in_memory(shape, gd.float16, True)) == [0, 2, 3, 1]
    assert pooling.walk_order(in_memory(shape, gd.float16, False)) == [0, 1, 2, 3]


def test_a_constant_window_has_its_size_as_a_literal() -> None:
    plain = POOLS[6].region()
    source = pooling.generate(plain, H200).kernels[0].source
    assert "places *=" in source
    assert "for (int r1 = 0; r1 < 2; ++r1)" in source


def test_work_before_a_pool_that_is_needed_elsewhere_is_declined() -> None:
    def build(g: gd.GraphBuilder) -> dict[str, gd.Value]:
        before = g.relu(g.input("x", (1, 3, 8, 7), gd.float32))
        return {"before": before, "y": g.max_pool(before, kernel=2)}

    answer = pooling.takes(Case("before", build).region())
    assert isinstance(answer, Decline)
    assert answer.code is Code.ESCAPE
    assert "relu" in answer.reason


def test_work_before_costs_by_window() -> None:
    def build(kernel: int) -> Case:
        def pooled(g: gd.GraphBuilder) -> gd.Value:
            x = g.gelu(g.input("x", (8, 64, 56, 56), gd.float16, strides=channels_last((8, 64, 56, 56))))
            return g.max_pool(x, kernel=kernel, stride=1)

        return Case("gelu", pooled, layout=channels_last)

    assert pooling.estimate(build(7).region(), H200) > 1.5 * pooling.estimate(build(2).region(), H200)
