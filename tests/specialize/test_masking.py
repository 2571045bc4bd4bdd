"""Masks that jit puts in: over all samples the corner is right whatever the padding holds; one build serves many."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.answer import Decline
from graphdnn.ir.graph import Graph, Value
from graphdnn.ir.ops.pointwise import Pointwise
from graphdnn.ir.types import Array, TensorType
from graphdnn.ir.writer import GraphWriter
from graphdnn.specialize import masking as module
from graphdnn.specialize.masking import Masking, names_of
from graphdnn.specialize.proof import masks_needed, prove
from tests.ir.samples import Sample
from tests.numbers import relative_error
from tests.specialize.growing import PADDED, corner, garbage, grown_graph

cpu = functools.partial(gd.jit, target="cpu")

Build = Callable[..., Value]


def masking_of(exact: Graph, padded: Graph) -> Masking | None:
    """The masks that make one graph the corner of the other; None where there are none, or none that help."""
    masks = masks_needed(exact, padded, {})
    if isinstance(masks, Decline) or not masks:
        return None
    return Masking().extended(masks, exact, names_of(exact) | names_of(padded))


def rounding(graph: Graph) -> float:
    """A mean of a narrow type is cast to it at the end, which a float64 evaluation does too."""
    dtypes = [n.result.type.dtype for n in graph.nodes if n.op.label == "reduce_mean"]
    return max((ROUNDING[d.name] for d in dtypes), default=1e-9)


ROUNDING = {"float64": 1e-9, "float32": 1e-9, "float16": 2**-11, "bfloat16": 2**-8}
"""Largest relative error of rounding to a type, and of float64's own arithmetic."""


@pytest.mark.parametrize("sample", PADDED, ids=str)
def test_masked_corners_are_right_whatever_the_padding_holds(sample: Sample, rng: np.random.Generator) -> None:
    graph = sample.graph(rng)
    for _ in range(8):
        padded = grown_graph(graph, rng)
        if padded is not None:
            check_corner(sample, graph, padded, rng)


def check_corner(sample: Sample, graph: Graph, padded: Graph, rng: np.random.Generator) -> bool:
    """Compares the masked padded graph, and the masked exact one, with the exact; whether masks were needed."""
    masking = masking_of(graph, padded)
    if masking is None:
        return False
    inputs = sample.inputs(graph, rng)
    expected = gd.evaluate(graph, inputs, gd.float64)
    extents = masking.extents(graph)
    masked, exact = masking.applied(padded), masking.applied(graph)
    assert prove(exact, masked, extents) is None
    lengths: dict[str, Array] = {name: np.array(extent, np.int32) for name, extent in extents.items()}
    longer = {n: garbage(v.type.shape, v.type.dtype, rng) for n, v in padded.inputs.items()}
    for name, array in inputs.items():
        longer[name][tuple(map(slice, array.shape))] = array
    found = gd.evaluate(masked, longer | lengths, gd.float64)
    same = gd.evaluate(exact, inputs | lengths, gd.float64)
    for name, wanted in expected.items():
        assert relative_error(corner(found[name], wanted.shape), wanted) < rounding(graph)
        assert relative_error(same[name], wanted) < rounding(graph)
    return True


ATTENTIONS = [s for s in PADDED if s.name.startswith("attention")]


@pytest.mark.parametrize("sample", ATTENTIONS, ids=str)
def test_sequences_of_every_attention_may_be_padded(sample: Sample, rng: np.random.Generator) -> None:
    graph = sample.graph(rng)
    for queries, keys in ((0, 2), (3, 0), (3, 2)):
        writer = GraphWriter(graph.name)
        new: dict[Value, Value] = {}
        (node,) = graph.nodes
        for name, value in zip(node.op.operand_names, node.operands, strict=True):
            shape = list(value.type.shape)
            for axis, more in GROWS.get(name, {}).items():
                if -axis <= len(shape) and (shape[axis] > 1 or name in "qkv"):
                    shape[axis] += (queries, keys)[more]
            if value not in new:
                new[value] = writer.input(value.name, TensorType(tuple(shape), value.type.dtype))
        results = writer.emit(node.op, [new[v] for v in node.operands], name=node.name)
        padded = writer.finish(dict(zip(graph.outputs, results, strict=True)))
        assert check_corner(sample, graph, padded, rng) == (keys > 0 or node.op.causal == "bottom_right")


GROWS = {"q": {-2: 0}, "k": {-2: 1}, "v": {-2: 1}, "bias": {-2: 0, -1: 1}, "mask": {-2: 0, -1: 1}}
"""Axes of attention's operands along which there are queries (0) and keys (1)."""


def test_all_ops_that_have_a_neutral_number_are_masked_somehow(rng: np.random.Generator) -> None:
    """Else the law above would compare nothing."""
    reductions = {f"reduce_{fn}" for fn in ("sum", "mean", "max", "min")}
    missing = reductions | {"softmax", "matmul", "conv", "max_pool", "avg_pool"}
    graphs = [graph for graph in (s.graph(rng) for s in PADDED) if missing & {n.op.label for n in graph.nodes}]
    for _ in range(64):  # inner extents of a product are rarely drawn equal
        for graph in graphs:
            padded = grown_graph(graph, rng)
            masking = None if padded is None else masking_of(graph, padded)
            if masking is not None:
                missing -= {graph.nodes[mask.node].op.label for mask in masking.inputs}
        if not missing:
            return
    raise AssertionError(missing)


def drawn(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def compare(build: Build, buckets: dict[int, object], shapes: list[tuple[int, ...]], builds: int) -> None:
    """Calls of many shapes give what a graph for each gives, from this many builds."""
    rng = np.random.default_rng(1)
    exactly = cpu(lambda g, x: {"y": build(g, x)}, max_entries=99, warn_after=99)
    padded = cpu(lambda g, x: {"y": build(g, x)}, buckets={"x": buckets}, warn_after=99)
    for shape in shapes:
        x = drawn(shape, rng)
        wanted, found = exactly({"x": x})["y"], padded({"x": x})["y"]
        assert found.shape == wanted.shape
        assert np.abs(found - wanted).max() <= 1e-5 * max(1.0, np.abs(wanted).max())
    assert padded.stats().builds == builds


def encoder(g: gd.GraphBuilder, x: Value) -> Value:
    """Attention among all positions, and the mean over them: nothing in it speaks of lengths."""
    batch, tokens, hidden = x.type.shape
    heads = g.transpose(g.reshape(x, (batch, tokens, 2, hidden // 2)), (0, 2, 1, 3))
    o = g.reshape(g.transpose(g.attention(heads, heads, heads), (0, 2, 1, 3)), (batch, tokens, hidden))
    return g.reduce_mean(g.relu(o) + x, axes=1)


@pytest.mark.parametrize("first", [(4, 8, 6), (2, 8, 6), (4, 5, 6), (3, 7, 6)], ids=str)
def test_one_build_serves_an_encoder_that_knows_no_lengths(first: tuple[int, ...]) -> None:
    """Also where the first call needs no padding, or none of one axis."""
    compare(encoder, {0: 4, 1: 8}, [first, (1, 3, 6), (4, 8, 6), (2, 1, 6), (4, 2, 6), (1, 8, 6)], 1)


@pytest.mark.parametrize("causal", ["top_left", "bottom_right"])
def test_causal_attention_over_a_padded_sequence(causal: str) -> None:
    def build(g: gd.GraphBuilder, x: Value) -> Value:
        q = g.slice(x, (1,), (None,), axes=(2,))
        return g.attention(q, x, x, causal=causal, window=(2, None))  # type: ignore[arg-type]

    compare(build, {2: 8}, [(2, 1, 6, 4), (2, 1, 8, 4), (2, 1, 3, 4)], 1)


@pytest.mark.parametrize("causal", [None, "bottom_right"])
def test_lengths_of_the_callers_own_end_before_the_padding(causal: str | None) -> None:
    def attend(g: gd.GraphBuilder, x: Value, n: Value) -> dict[str, Value]:
        return {"y": g.attention(x, x, x, causal=causal, q_lengths=n, kv_lengths=n)}  # type: ignore[arg-type]

    f, exactly = cpu(attend, buckets={"x": {2: 8}}), cpu(attend)
    rng = np.random.default_rng(1)
    for s, n in ((5, 9), (5, 3), (7, -1), (8, 8)):
        inputs = {"x": drawn((2, 1, s, 4), rng), "n": np.array([n, 2], np.int32)}
        assert np.abs(f(inputs)["y"] - exactly(inputs)["y"]).max() < 1e-6
    assert f.stats().builds == 1


def test_images_of_many_sizes() -> None:
    weights = np.random.default_rng(0).standard_normal((3, 2, 3, 3)).astype(np.float32)

    def build(g: gd.GraphBuilder, x: Value) -> Value:
        y = g.relu(g.conv(x, g.constant(weights), padding=1, stride=2))
        y = g.avg_pool(g.max_pool(y - 9.0, kernel=3, stride=2, padding=1), kernel=2, stride=1, padding=1)
        return g.reduce_max(g.softmax(y, axis=3), axes=(2, 3))

    compare(build, {2: 16, 3: 16}, [(1, 2, 16, 16), (1, 2, 11, 16), (1, 2, 9, 14), (1, 2, 13, 12)], 1)


def test_products_over_a_padded_extent() -> None:
    compare(lambda g, x: g.matmul(g.transpose(x, (1, 0)), x), {0: "pow2"}, [(5, 3), (8, 3), (6, 3), (7, 3)], 1)


def test_extents_that_were_equal_by_chance_are_told_apart_later() -> None:
    def sums(g: gd.GraphBuilder, x: Value) -> Value:
        return g.reduce_sum(x, axes=0, keepdims=True) + g.reduce_min(x, axes=1, keepdims=True)

    compare(sums, {0: 8, 1: 8}, [(5, 5), (5, 6), (3, 7), (8, 8), (6, 5)], 1)

    def square_at_first(g: gd.GraphBuilder, x: Value) -> Value:
        """Of the shapes that a first call of (8, 8) looks at, (7, 7) and (1, 4), one is not taken."""
        if x.type.shape == (1, 4):
            raise ValueError
        return sums(g, x)

    compare(square_at_first, {0: 8, 1: 8}, [(8, 8), (7, 7), (5, 6), (3, 7), (6, 5)], 2)

    f = cpu(lambda g, x: {"y": square_at_first(g, x)}, buckets={"x": {0: 8, 1: 8}}, warn_after=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a build made anew displaces none of another signature
        for shape in ((8, 8), (5, 6)):
            f({"x": np.ones(shape, np.float32)})
    assert f.stats().builds == 2
    with pytest.warns(UserWarning, match="built 3 times, as axis 0 of x took 8, 16; coarser buckets"):
        f({"x": np.ones((9, 8), np.float32)})


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.bool_])
@pytest.mark.parametrize("fn", ["sum", "max", "min"])
def test_reductions_of_integers(fn: str, dtype: type) -> None:
    """A maximum of bool is refused: False would do for it and True for a minimum, which nobody has asked for."""

    def reduce(g: gd.GraphBuilder, x: Value) -> dict[str, Value]:
        return {"y": getattr(g, f"reduce_{fn}")(x, axes=0, name="r")}

    f, x = cpu(reduce, buckets={"x": {0: 8}}), np.random.default_rng(0).integers(1, 9, (5, 3)).astype(dtype)
    if dtype is np.bool_ and fn != "sum":
        with pytest.raises(gd.CompileError, match=f"reduce_{fn} %r computes across axis 0"):
            f({"x": x})
    else:
        assert np.array_equal(f({"x": x})["y"], getattr(np, fn)(x, axis=0))


def test_a_mean_in_half_precision_counts_in_single() -> None:
    f = cpu(lambda g, x: {"y": g.reduce_mean(x, axes=(0, 1))}, buckets={"x": {0: 4096}})
    found = f({"x": np.full((3000, 5), 30, np.float16)})["y"]
    assert found.dtype == np.float16
    assert found == 30  # the sum is 450000


def test_a_masked_build_serves_only_what_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks are not taken at their word: here one that leaves the last number before the padding out."""
    real = module.filled

    def short(to: Any, x: Value, ends: Any, number: float, origins: tuple[str, ...]) -> Value:
        one_less = [(axis, to.emit(Pointwise(fn="sub"), extent, 1, origins=origins)[0]) for axis, extent in ends]
        return real(to, x, one_less, number, origins)

    f = cpu(lambda g, x: {"y": g.reduce_sum(x, axes=1, name="total")}, buckets={"x": {1: 8}})
    np.testing.assert_array_equal(f({"x": np.ones((2, 5), np.float32)})["y"], [5, 5])
    monkeypatch.setattr(module, "filled", short)
    f = cpu(lambda g, x: {"y": g.reduce_sum(x, axes=1, name="total")}, buckets={"x": {1: 8}})
    with pytest.raises(gd.CompileError, match=r"reduce_sum %total computes across axis 1"):
        f({"x": np.ones((2, 5), np.float32)})


def test_the_callers_inputs_stay_the_callers() -> None:
    f = cpu(lambda g, x: {"y": g.reduce_sum(x, axes=0)}, buckets={"x": {0: 8}})
    f({"x": np.ones((5, 3), np.float32)})
    with pytest.raises(gd.ExecutionError, match=r"jit\.extent_0 is not an input of lambda; its inputs are x"):
        f({"x": np.ones((5, 3), np.float32), "jit.extent_0": 5})
    (executable,) = f.executables.values()
    assert list(executable.graph.inputs) == ["x", "jit.extent_0"]


def test_inputs_of_masks_avoid_names_that_are_taken() -> None:
    def build(g: gd.GraphBuilder, x: Value) -> Value:
        return g.reduce_sum(g.relu(x, name="jit.extent_0"), axes=0, name="jit.extent_1")

    compare(build, {0: 8}, [(5, 3), (6, 3)], 1)


def test_a_mask_is_done_by_the_kernel_that_it_is_for() -> None:
    f = gd.jit(lambda g, x: {"y": g.softmax(x, axis=1)}, target=gd.Target.named("h200"), buckets={"x": {1: 128}})
    with pytest.raises(gd.GraphDnnError, match="described"):
        f({"x": np.ones((64, 100), np.float32)})
    (executable,) = f.executables.values()
    assert [region.pattern for region in executable.report.regions] == ["less+select+softmax"]
