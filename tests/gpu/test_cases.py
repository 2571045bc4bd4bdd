"""The cases of tests/cases on the device: the same right values, in every type, and in every order of calls."""

from itertools import permutations

import numpy as np
import pytest
import torch

import graphdnn as gd
from graphdnn.ir.types import DType, channels_last
from tests.cases import graphs
from tests.cases.graphs import CASES, Case
from tests.numbers import TOLERANCE, relative_error

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("case", CASES, ids=str)
def test_right_on_the_device(case: Case, rng: np.random.Generator) -> None:
    """Twice on one executable: the second call runs what the first one captured."""
    graph = case.build()
    exe = gd.compile(graph, target="cuda")
    for _ in range(2):
        inputs = case.inputs(graph, rng)
        case.check(graph, inputs, exe(inputs))


@pytest.mark.parametrize(("precision", "limit"), [("ieee", 1e-5), ("tf32", 1e-3)])
def test_n9_float32_is_as_good_as_its_precision(precision: str, limit: float, rng: np.random.Generator) -> None:
    graph = graphs.float32_conv()
    inputs = {n: rng.standard_normal(v.type.shape).astype(np.float32) for n, v in graph.inputs.items()}
    exe = gd.compile(graph, target="cuda", options=gd.CompileOptions(precision=precision))
    assert relative_error(exe(inputs)["y"], gd.evaluate(graph, inputs, gd.float64)["y"]) <= limit
    ran = {r.precision for r in exe.report.regions}
    assert ran == {"float32"} or precision == "tf32"


@pytest.mark.parametrize("dtype", [gd.float32, gd.float16], ids=str)
@pytest.mark.parametrize("last", [False, True])
def test_n10_a_value_that_is_also_an_output_keeps_its_negative_entries(
    dtype: DType, last: bool, rng: np.random.Generator
) -> None:
    for outputs in ("ya", "yab"):
        graph = graphs.two_exits(outputs, dtype, last)
        inputs = {n: rng.standard_normal(v.type.shape).astype(dtype.numpy) for n, v in graph.inputs.items()}
        found = gd.compile(graph, target="cuda")(inputs)
        assert (found["y"] < 0).any()
        np.testing.assert_array_equal(np.maximum(found["y"], 0), found["a"])
        assert relative_error(found["y"], gd.evaluate(graph, inputs, gd.float64)["y"]) <= TOLERANCE[dtype.name]


def test_n11_another_mean_gives_another_result(rng: np.random.Generator) -> None:
    graph = graphs.conv_then_norm(mean_is_input=True)
    exe = gd.compile(graph, target="cuda")
    x = rng.standard_normal((2, 3, 6, 5)).astype(np.float32)
    means = [rng.standard_normal(4).astype(np.float32) for _ in range(4)]
    for mean in (*means, means[0]):
        inputs = {"x": x, "mean": mean}
        assert relative_error(exe(inputs)["y"], gd.evaluate(graph, inputs, gd.float64)["y"]) <= 1e-5


def test_a1_the_report_says_who_runs_it_and_why() -> None:
    exe = gd.compile(graphs.odd_activations(), target="cuda")
    assert {n for r in exe.report.regions for n in r.nodes} == {"conv", "bias", "relu6", "leaky", "elu"}
    for candidate in exe.report.candidates:
        assert candidate.verdict in ("chosen", "slower") or candidate.reason
        for plan in candidate.plans:
            assert plan.verdict != "failed" or plan.reason


A, B = np.arange(15, dtype=np.float32).reshape(3, 5) - 7, np.float32([1, 2, 3, 4, 5])
WRONG = [
    ({"a": A}, ("b", "missing")),
    ({"a": A, "b": B, "c": B}, ("c", "not an input")),
    ({"a": A.astype(np.float64), "b": B}, ("a", "float64", "float32")),
    ({"a": A.T, "b": B}, ("a", "(5, 3)", "(3, 5)")),
]


def two_inputs() -> gd.Graph:
    g = gd.GraphBuilder("two_inputs")
    return g.build({"y": g.relu(g.add(g.input("a", (3, 5), gd.float32), g.input("b", (5,), gd.float32)))})


@pytest.mark.parametrize(("inputs", "words"), WRONG)
@pytest.mark.parametrize("on_device", [False, True])
def test_a5_a_wrong_input_is_named_and_the_next_call_works(
    inputs: dict, words: tuple[str, ...], on_device: bool
) -> None:
    exe = gd.compile(two_inputs(), target="cuda")
    given = {n: torch.from_numpy(a).cuda() if on_device else a for n, a in inputs.items()}
    with pytest.raises(gd.ExecutionError) as caught:
        exe(given)
    for word in words:
        assert word in str(caught.value), word
    assert "\n" not in str(caught.value)
    np.testing.assert_array_equal(exe({"a": A, "b": B})["y"], np.maximum(A + B, 0))


def test_a5_arrays_that_are_not_contiguous_work() -> None:
    exe = gd.compile(two_inputs(), target="cuda")
    wide = np.full((6, 10), np.nan, np.float32)
    wide[::2, ::2] = A
    for a in (wide[::2, ::2], np.asfortranarray(A)):
        np.testing.assert_array_equal(exe({"a": a, "b": np.repeat(B, 2)[::2]})["y"], np.maximum(A + B, 0))
    strided = {"a": torch.from_numpy(wide).cuda()[::2, ::2], "b": torch.from_numpy(B).cuda()}
    np.testing.assert_array_equal(exe(strided)["y"].numpy(), np.maximum(A + B, 0))


def attention(dtype: DType) -> gd.Graph:
    g = gd.GraphBuilder("t1")
    q, k, v = (g.input(n, (2, 4, s, 64), dtype) for n, s in (("q", 33), ("k", 65), ("v", 65)))
    return g.build({"o": g.attention(q, k, v, causal="top_left")})


def contiguous(inputs: dict[str, np.ndarray]) -> dict[str, object]:
    return {n: torch.from_numpy(a).cuda() for n, a in inputs.items()}


def interleaved(inputs: dict[str, np.ndarray]) -> dict[str, object]:
    """K and V as views of one buffer in which they alternate, row by row."""
    buffer = torch.full((2, 65, 2, 4, 64), torch.nan, dtype=torch.float16, device="cuda")
    views = {"k": buffer[:, :, 0].permute(0, 2, 1, 3), "v": buffer[:, :, 1].permute(0, 2, 1, 3)}
    for name, view in views.items():
        view.copy_(torch.from_numpy(inputs[name]))
    return {**contiguous(inputs), **views}


def misaligned(inputs: dict[str, np.ndarray]) -> dict[str, object]:
    """Every tensor two bytes behind an address that 16 divides."""
    moved = {}
    for name, array in inputs.items():
        buffer = torch.full((array.size + 8,), torch.nan, dtype=torch.float16, device="cuda")
        moved[name] = buffer[1 : array.size + 1].view(array.shape)
        moved[name].copy_(torch.from_numpy(array))
        assert moved[name].data_ptr() % 16 == 2
    return moved


WAYS = {"contiguous": contiguous, "interleaved": interleaved, "misaligned": misaligned, "numpy": dict}


@pytest.mark.parametrize("order", list(permutations(WAYS)), ids="-".join)
def test_t1_memory_may_lie_in_any_way_and_order(order: tuple[str, ...], rng: np.random.Generator) -> None:
    graph, other = attention(gd.float16), attention(gd.bfloat16)
    exe, wide = gd.compile(graph, target="cuda"), gd.compile(other, target="cuda")
    for way in order:
        inputs = {n: rng.standard_normal(v.type.shape).astype(np.float16) for n, v in graph.inputs.items()}
        found = exe(WAYS[way](inputs))["o"]
        found = found if isinstance(found, np.ndarray) else found.numpy()
        assert relative_error(found, gd.evaluate(graph, inputs, gd.float64)["o"]) <= TOLERANCE["float16"], way
        halves = {n: a.astype(gd.bfloat16.numpy) for n, a in inputs.items()}
        expected = gd.evaluate(other, halves, gd.float64)["o"]
        assert relative_error(wide(halves)["o"], expected) <= TOLERANCE["bfloat16"], way


def square_conv(last: bool) -> gd.Graph:
    """Channels, height and width of one extent, so that only the strides tell the layouts apart."""
    g = gd.GraphBuilder("square_conv")
    x = g.input("x", (2, 8, 8, 8), gd.float16, strides=channels_last((2, 8, 8, 8)) if last else None)
    w = g.input("w", (8, 8, 3, 3), gd.float16)
    return g.build({"y": g.conv(x, w, padding=1)})


@pytest.mark.parametrize("order", [(True, False), (False, True), (True, False, True)])
def test_t1_layouts_of_equal_extents_are_told_apart(order: tuple[bool, ...], rng: np.random.Generator) -> None:
    for last in order:
        graph = square_conv(last)
        inputs = {n: rng.standard_normal(v.type.shape).astype(np.float16) for n, v in graph.inputs.items()}
        expected = gd.evaluate(graph, inputs, gd.float64)["y"]
        exe = gd.compile(graph, target="cuda")
        x = torch.from_numpy(inputs["x"]).cuda()
        lying = x.contiguous(memory_format=torch.channels_last) if last else x
        assert relative_error(exe(inputs)["y"], expected) <= TOLERANCE["float16"]
        on_device = {"x": lying, "w": torch.from_numpy(inputs["w"]).cuda()}
        assert relative_error(exe(on_device)["y"].numpy(), expected) <= TOLERANCE["float16"]
