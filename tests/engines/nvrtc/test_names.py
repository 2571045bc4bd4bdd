"""Kernels with many folds, bounds or axes: no number behind a variable's name makes an element type's name of it."""

import re
from collections.abc import Callable

import pytest

import graphdnn as gd
from graphdnn.answer import Decline
from graphdnn.engines.nvrtc.compile import compile_cubin
from graphdnn.engines.nvrtc.engine import family_of
from graphdnn.ir.graph import Value
from graphdnn.ir.types import BY_TEXT
from graphdnn.target import Target
from tests.engines.cudnn.layouts import whole

DECLARED = re.compile(rf"\b\w+ ({'|'.join(BY_TEXT)})(?= = |\[|;)")
"""A variable that is called like an element type."""


def many_bounds(g: gd.GraphBuilder) -> Value:
    """Pads and concats along one axis, each of which asks where an element stands."""
    x = g.input("x", (3, 3, 7), gd.float32)
    padded = g.cast(g.pad(g.concat([x, x], axis=0), ((1, 2), (0, 0), (2, 0)), value=1.0), gd.bool)
    return g.concat([padded, padded], axis=0)


def many_terms(g: gd.GraphBuilder) -> Value:
    """Sums over rows behind each other, as many as fit; that of the sixteenth step among them."""
    x = g.input("x", (5, 64), gd.float16)
    y = g.relu(g.neg(g.abs(x)))
    for _ in range(3):
        y = y + g.cast(g.reduce_sum(g.cast(g.mul(y, x), gd.float32), axes=-1, keepdims=True), gd.float16)
    return y


def many_axes(g: gd.GraphBuilder) -> Value:
    """A transpose of nine axes, of which no two neighbours lie as one."""
    return g.transpose(g.input("x", (2, 3, 2, 3, 2, 3, 2, 3, 2, 3), gd.int8), (9, 8, 7, 6, 5, 4, 3, 2, 1, 0))


def many_axes_computed(g: gd.GraphBuilder) -> Value:
    x = many_axes(g)
    return g.add(x, g.input("y", x.type.shape, gd.int8))


@pytest.mark.parametrize("build", [many_bounds, many_terms, many_axes, many_axes_computed])
def test_no_variable_is_called_like_a_type(build: Callable[[gd.GraphBuilder], Value]) -> None:
    g = gd.GraphBuilder()
    region = whole(g.build({"y": build(g)}))
    family = family_of(region)
    assert not isinstance(family, Decline), family
    for kernel in family.generate(region, Target.named("h200")).kernels:
        assert DECLARED.findall(kernel.source.partition('extern "C"')[2]) == []
        cubin = compile_cubin(kernel.source, "sm_90")
        assert isinstance(cubin, bytes), cubin
