"""Parts of definitions: a block of the batch is what the whole has there, or nobody takes a part."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.engines.check import inputs_for
from graphdnn.engines.definition import definition, entries, seconds
from graphdnn.ir.region import Region
from tests.ir.samples import SAMPLES
from tests.ir.samples.sample import Sample

BLOCK = slice(1, 3)


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_a_part_is_what_the_whole_has_there(sample: Sample, rng: np.random.Generator) -> None:
    graph = sample.graph(rng)
    region = Region.of(graph, graph.nodes)
    if not region.outputs or not region.inputs or entries(region) == 1:
        return
    inputs = inputs_for(region, rng)
    block = slice(entries(region) // 2, entries(region))
    for whole, part in zip(definition(region, inputs), definition(region, inputs, block), strict=True):
        np.testing.assert_allclose(part, whole[block], rtol=1e-12, atol=1e-12)


def block_of(build: Callable[[gd.GraphBuilder], gd.Value]) -> tuple[int, Region]:
    g = gd.GraphBuilder("part")
    graph = g.build({"y": build(g)})
    region = Region.of(graph, graph.nodes)
    return entries(region), region


def depthwise(g: gd.GraphBuilder) -> gd.Value:
    y = g.conv(g.input("x", (4, 6, 9, 9), gd.float16), g.input("w", (6, 1, 3, 3), gd.float16), padding=1, groups=6)
    return g.relu(g.add(g.bias(y, g.input("b", (6,), gd.float16), axis=1), g.input("r", (4, 6, 9, 9), gd.float16)))


def square(g: gd.GraphBuilder) -> gd.Value:
    """The batch and every other axis are of one length."""
    a, b = g.input("a", (4, 4, 4), gd.float32), g.input("b", (4, 4), gd.float32)
    return g.mul(g.bias(g.matmul(a, b), g.input("c", (4,), gd.float32), axis=0), g.input("d", (4,), gd.float32))


def attention(g: gd.GraphBuilder) -> gd.Value:
    q, k, v = (g.input(n, (4, h, 4, 8), gd.float32) for n, h in (("q", 4), ("k", 2), ("v", 2)))
    mask, lengths = g.input("mask", (1, 1, 4, 4), gd.bool), g.input("lengths", (4,), gd.int32)
    return g.attention(q, k, v, mask=mask, kv_lengths=lengths, causal="top_left")


def pooled(g: gd.GraphBuilder) -> gd.Value:
    return g.gelu(g.max_pool(g.input("x", (4, 3, 8, 8), gd.float32), kernel=2))


def rows(g: gd.GraphBuilder) -> gd.Value:
    """A norm and what goes along a row, each entry being a matrix."""
    y = g.layer_norm(g.input("x", (4, 4, 4), gd.float32), g.input("s", (4,), gd.float32), axes=-1)
    return g.reduce_sum(g.softmax(y, axis=1), axes=2)


@pytest.mark.parametrize("build", [depthwise, square, attention, pooled, rows])
def test_parts_are_taken_of_what_goes_entry_by_entry(
    build: Callable[[gd.GraphBuilder], gd.Value], rng: np.random.Generator
) -> None:
    count, region = block_of(build)
    assert count == 4
    inputs = inputs_for(region, rng)
    for whole, part in zip(definition(region, inputs), definition(region, inputs, BLOCK), strict=True):
        np.testing.assert_allclose(part, whole[BLOCK], rtol=1e-12, atol=1e-12)


def weights(g: gd.GraphBuilder) -> gd.Value:
    """The second operand of the product is computed, and needed whole."""
    return g.matmul(g.input("a", (4, 4), gd.float32), g.relu(g.input("b", (4, 4), gd.float32)))


def mixed(g: gd.GraphBuilder) -> gd.Value:
    return g.relu(g.softmax(g.input("x", (4, 4), gd.float32), axis=0))


def turned(g: gd.GraphBuilder) -> gd.Value:
    return g.relu(g.transpose(g.input("x", (4, 4), gd.float32), (1, 0)))


def summed(g: gd.GraphBuilder) -> gd.Value:
    """What is left behind the sum is as long as the batch was."""
    return g.reduce_sum(g.relu(g.input("x", (4, 4), gd.float32)), axes=0)


def normalised(g: gd.GraphBuilder) -> gd.Value:
    return g.rms_norm(g.input("x", (4, 4), gd.float32), axes=(0, 1))


def shared(g: gd.GraphBuilder) -> gd.Value:
    """An operand that is read whole and by entry is given to the region, so both can be had."""
    x = g.input("x", (4, 4), gd.float32)
    return g.matmul(x, x)


@pytest.mark.parametrize(
    ("build", "count"), [(weights, 1), (mixed, 1), (turned, 1), (summed, 1), (normalised, 1), (shared, 4)]
)
def test_what_mixes_entries_has_no_parts(
    build: Callable[[gd.GraphBuilder], gd.Value], count: int, rng: np.random.Generator
) -> None:
    found, region = block_of(build)
    assert found == count
    if count > 1:
        (x,) = inputs_for(region, rng)
        np.testing.assert_allclose(definition(region, [x], BLOCK)[0], (x.astype(float) @ x.astype(float))[BLOCK])


def conv(n: int, c: int, size: int, k: int, kernel: int, groups: int = 1) -> Region:
    def build(g: gd.GraphBuilder) -> gd.Value:
        x, w = g.input("x", (n, c, size, size), gd.float16), g.input("w", (k, c // groups, kernel, kernel), gd.float16)
        return g.relu(g.conv(x, w, padding=kernel // 2, groups=groups))

    return block_of(build)[1]


@pytest.mark.parametrize(
    ("region", "measured"),
    [
        (conv(64, 384, 14, 384, 7, 384), 18.8),
        (conv(32, 16, 112, 16, 3, 16), 1.11),
        (conv(32, 64, 56, 64, 1), 0.47),
        (conv(32, 64, 56, 64, 3), 2.23),
        (conv(1, 64, 56, 64, 3), 0.13),
        (conv(1, 64, 56, 256, 1), 0.12),
    ],
    ids=["depthwise 7x7", "depthwise 3x3", "1x1", "3x3", "3x3 of one image", "1x1 of one image"],
)
def test_the_time_of_numpy_is_foreseen(region: Region, measured: float) -> None:
    """Seconds that one core took; operations alone would be off by a factor of 400 between these."""
    assert 1 / 4 < seconds(region) / measured < 4
