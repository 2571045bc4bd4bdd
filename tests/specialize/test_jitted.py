"""A function that is called with arrays: what is built when, and what is refused in one sentence."""

from __future__ import annotations

import functools
import gc
import re
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import graphdnn as gd
from graphdnn import compiler
from graphdnn.ir.graph import Value
from graphdnn.ir.types import channels_last
from graphdnn.specialize.variation import RepeatedBuildsWarning

cpu = functools.partial(gd.jit, target="cpu")


def relu(g: gd.GraphBuilder, x: Value) -> dict[str, Value]:
    return {"y": g.relu(x)}


def rows(n: int, columns: int = 4) -> dict[str, np.ndarray]:
    return {"x": np.arange(n * columns, dtype=np.float32).reshape(n, columns) - 3}


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[gd.Graph]:
    """The graphs that were compiled, in order."""
    found: list[gd.Graph] = []
    real = compiler.compile

    def noted(graph: gd.Graph, *arguments: Any) -> gd.Executable:
        found.append(graph)
        return real(graph, *arguments)

    monkeypatch.setattr(compiler, "compile", noted)
    return found


def test_a_signature_is_built_once(compiled: list[gd.Graph]) -> None:
    f = cpu(relu)
    for n in (3, 3, 5, 3):
        np.testing.assert_array_equal(f(rows(n))["y"], np.maximum(rows(n)["x"], 0))
    stats = f.stats()
    assert (stats.builds, stats.hits, stats.evictions) == (2, 2, 0)
    assert 0 < stats.build_seconds < 60
    assert len(compiled) == 2


def test_numpy_and_torch_share_a_build(compiled: list[gd.Graph]) -> None:
    f = cpu(relu)
    f(rows(3))
    np.testing.assert_array_equal(f({"x": torch.ones(3, 4)})["y"], np.ones((3, 4)))
    assert len(compiled) == 1


def test_case_t1_every_layout_and_type_has_right_numbers_in_every_order() -> None:
    f = cpu(lambda g, q, k: {"y": g.matmul(q, g.transpose(k, (1, 0)))})
    wide = np.arange(48, dtype=np.float32).reshape(6, 8) / 7
    joined = np.stack([wide, -wide], axis=1).reshape(6, 16)
    views = [wide, joined[:, :8], joined[:, 8:], np.asfortranarray(wide), wide[::-1], wide.astype(np.float16), wide]
    for _ in range(2):
        for view in views:
            np.testing.assert_allclose(f({"q": view, "k": view})["y"], view @ view.T, rtol=1e-2)
    assert f.stats().builds == 3


def test_channels_last_is_declared_and_not_copied(compiled: list[gd.Graph]) -> None:
    f = cpu(relu)
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    np.testing.assert_array_equal(f({"x": x})["y"], x.relu().numpy())
    assert compiled[0].inputs["x"].type.layout == channels_last((2, 3, 4, 5))


def test_a_function_may_build_the_graph_itself_to_declare_layouts() -> None:
    def build(g: gd.GraphBuilder, x: Value) -> gd.Graph:
        return g.build({"y": g.relu(x)}, strides={"y": channels_last(x.type.shape)})

    y = cpu(build)({"x": np.ones((2, 3, 4, 5), np.float32)})["y"]
    assert tuple(s // 4 for s in y.strides) == channels_last(y.shape)


def test_scalars_and_arrays_without_axes() -> None:
    f = cpu(lambda g, x, y: {"z": g.add(x, y)})
    assert f({"x": np.float32(3), "y": np.zeros((), np.float32)})["z"] == 3
    assert f.stats().builds == 1


def test_the_least_recently_used_build_goes_first() -> None:
    f = cpu(relu, max_entries=2)
    kept = []
    for n in (1, 2, 1, 3):
        f(rows(n))
        kept.append([name.removeprefix("x: f32[")[0] for name in f.executables])
    assert kept == [["1"], ["1", "2"], ["2", "1"], ["1", "3"]]
    stats = f.stats()
    assert (stats.builds, stats.hits, stats.evictions) == (3, 1, 1)
    f(rows(2))
    assert f.stats().builds == 4


def test_a_dropped_build_is_freed() -> None:
    f = cpu(relu, max_entries=1)
    f(rows(1))
    first = weakref.ref(next(iter(f.executables.values())))
    f(rows(2))
    gc.collect()
    assert first() is None


def test_parameters_with_defaults_may_be_left_out() -> None:
    def biased(g: gd.GraphBuilder, x: Value, b: Value | None = None, *, scale: Value | float = 2.0) -> dict[str, Value]:
        y = g.mul(x, scale)
        return {"y": y if b is None else g.add(y, b)}

    f, x = cpu(biased), np.ones(3, np.float32)
    assert f({"x": x})["y"].tolist() == [2, 2, 2]
    assert f({"b": x, "x": x})["y"].tolist() == [3, 3, 3]
    assert f({"x": x, "scale": 3 * x})["y"].tolist() == [3, 3, 3]
    assert (f.stats().builds, list(f.executables)[-1]) == (3, "x: f32[3], scale: f32[3]")


def test_methods_partials_and_callable_objects_are_functions() -> None:
    class Model:
        def __call__(self, g: gd.GraphBuilder, x: Value) -> dict[str, Value]:
            return relu(g, x)

        def method(self, g: gd.GraphBuilder, x: Value) -> dict[str, Value]:
            return relu(g, x)

    def scaled(g: gd.GraphBuilder, x: Value, factor: float) -> dict[str, Value]:
        return {"y": g.mul(x, factor)}

    for fn in (Model(), Model().method, functools.partial(scaled, factor=1.0)):
        assert cpu(fn)(rows(3))["y"].shape == (3, 4)


def collecting(g: gd.GraphBuilder, *xs: Value) -> None: ...


def taking_any(g: gd.GraphBuilder, x: Value, **options: Value) -> None: ...


def positional(g: gd.GraphBuilder, x: Value, /) -> None: ...


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (collecting, r"parameter \*xs: 'Value' of collecting"),
        (taking_any, r"parameter \*\*options: 'Value' of taking_any"),
        (positional, "parameter x: 'Value' of positional"),
        (lambda *everything: None, r"first parameter of lambda is \*everything"),
        (lambda *, g: None, "first parameter of lambda is g"),
        (lambda: None, "lambda takes nothing"),
        (3, "3 is a int; a function"),
    ],
    ids=lambda p: getattr(p, "__name__", "said"),
)
def test_a_function_whose_inputs_have_no_names_is_refused(fn: Any, said: str) -> None:
    with pytest.raises(gd.CompileError, match=said):
        cpu(fn)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target": "gpu"}, 'jit: target is .gpu.; "auto", "cpu", "cuda" or .* is needed; did you mean "cuda"'),
        ({"target": None}, "jit: target is None"),
        ({"max_entries": 0}, "max_entries is 0"),
        ({"max_entries": True}, "max_entries is True"),
        ({"warn_after": 0.5}, "warn_after is 0.5"),
        ({"options": {"precision": "tf32"}}, "options is a dict"),
        ({"on_new_shape": "tune"}, "on_new_shape is 'tune'"),
        ({"tuned_options": gd.CompileOptions()}, "tuned_options are given"),
        ({"buckets": {"x": "pow2"}}, "rules by parameter and axis"),
        ({"buckets": {"z": {0: "pow2"}}}, "buckets are given for z; relu has the parameters x"),
        ({"buckets": {"x": {0: "pow3"}}}, "buckets of axis 0 of x are 'pow3'"),
        ({"buckets": {"x": {0: (8, 4)}}}, r"buckets of axis 0 of x are \(8, 4\)"),
        ({"buckets": {"x": {0: 0}}}, "buckets of axis 0 of x are 0"),
        ({"buckets": {"x": {0: ()}}}, r"buckets of axis 0 of x are \(\)"),
        ({"buckets": {"x": {"0": 4}}}, "buckets of x are given for axis '0'"),
        ({"lengths": ["x"]}, "lengths are \\['x'\\]"),
        ({"lengths": {"n": ("x", 1)}}, "lengths are given for n"),
        ({"lengths": {"x": ("x", 1)}}, "lengths of x, which is no input"),
        ({"lengths": {"x": ("x", 0)}}, "behind the first"),
    ],
    ids=lambda p: next(iter(p)) if isinstance(p, dict) else "said",
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(gd.CompileError, match=said) as caught:
        cpu(relu, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({}, "input x of relu is missing"),
        ({"x": np.ones(3, np.float32), "z": 1}, "z is not an input of relu; its inputs are x"),
        ({"z": np.ones(3, np.float32)}, "z is not an input of relu"),
        ([np.ones(3)], "inputs of relu are a list"),
        (None, "inputs of relu are a NoneType"),
        (np.ones(3), "inputs of relu are a ndarray"),
        ({"x": 3.0}, "input x of relu cannot be read: a float; a numpy array"),
        ({"x": [1.0]}, "input x of relu cannot be read: a list"),
        ({"x": None}, "input x of relu cannot be read: a NoneType"),
        ({"x": np.ones(3, np.complex64)}, "input x of relu cannot be read: data type complex64 is not one of"),
        ({"x": np.ones((0, 4), np.float32)}, r"input x has shape \(0, 4\); every extent must be at least 1"),
    ],
    ids=str,
)
def test_inputs_that_fit_no_signature_are_refused(inputs: Any, said: str) -> None:
    f = cpu(relu)
    with pytest.raises(gd.ExecutionError, match=said) as caught:
        f(inputs)
    assert "\n" not in str(caught.value)
    assert f.stats().builds == 0


def test_an_array_that_its_library_does_not_hand_out_is_refused() -> None:
    for tensor in (torch.ones(3).to_sparse(), torch.ones(3, requires_grad=True)):
        with pytest.raises(gd.ExecutionError, match="input x"):
            cpu(relu)({"x": tensor})


def with_state(g: gd.GraphBuilder, x: Value) -> gd.Graph:
    k = g.state("k", x.type.shape, x.type.dtype)
    return g.build({"y": g.add(x, k)}, {"k": x})


def with_an_input_of_its_own(g: gd.GraphBuilder, x: Value) -> dict[str, Value]:
    return {"y": g.add(x, g.input("z", x.type.shape, x.type.dtype))}


def other_graph(g: gd.GraphBuilder, x: Value) -> gd.Graph:
    own = gd.GraphBuilder()
    return own.build({"y": own.relu(own.input("x", (7,), gd.float32))})


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (lambda g, x: g.relu(x), "lambda returned the value %relu; outputs by name"),
        (lambda g, x: [g.relu(x)], "lambda returned a list; a mapping"),
        (lambda g, x: None, r"lambda returned None; outputs by name, .* is its return missing\?"),
        (lambda g, x: {"y": 3.0}, "output y is a float"),
        (lambda g, x: {3: x}, "the name of an output is 3"),
        (lambda g, x: {}, "output"),
        (with_state, "with_state has the state k"),
        (with_an_input_of_its_own, "made a graph with the inputs x, z; its parameters x"),
        (other_graph, "made a graph with the inputs x"),
        (lambda g, x: {"y": g.matmul(x, x)}, "inner extents differ"),
    ],
    ids=lambda p: getattr(p, "__name__", "said"),
)
def test_functions_that_give_no_graph_are_refused_and_leave_nothing(fn: Callable[..., Any], said: str) -> None:
    f = cpu(fn)
    for _ in range(2):
        with pytest.raises(gd.GraphError, match=said) as caught:
            f(rows(3))
        assert "\n" not in str(caught.value)
    assert (f.stats().builds, f.stats().hits, f.executables) == (0, 0, {})


def test_what_a_function_raises_arrives_as_it_is_and_the_next_call_tries_again() -> None:
    fails = iter([True, False])

    def sometimes(g: gd.GraphBuilder, x: Value) -> dict[str, Value]:
        if next(fails):
            raise ZeroDivisionError("on the first try")
        return {"y": g.relu(x)}

    f = cpu(sometimes)
    with pytest.raises(ZeroDivisionError):
        f(rows(3))
    assert f(rows(3))["y"].shape == (3, 4)
    assert f.stats().builds == 1


def test_case_t2_a_failed_build_leaves_no_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    real, fails = compiler.compile, iter([True, False])

    def compile(*arguments: Any) -> gd.Executable:
        if next(fails):
            raise gd.CompileError("no engine takes it today")
        return real(*arguments)

    monkeypatch.setattr(compiler, "compile", compile)
    f = cpu(relu)
    with pytest.raises(gd.CompileError, match="today"):
        f(rows(3))
    assert f.executables == {}
    f(rows(3))
    f(rows(3))
    assert (f.stats().builds, f.stats().hits) == (1, 1)


def test_a_described_target_builds_and_refuses_to_run() -> None:
    f = gd.jit(relu, target=gd.Target.named("h200"))
    for _ in range(2):
        with pytest.raises(gd.ExecutionError, match="which is not here"):
            f({"x": np.ones((8, 16), np.float16)})
    assert f.stats().builds == 1
    assert "relu" in next(iter(f.executables.values())).explain()


def test_a_function_that_calls_itself_is_told_so() -> None:
    def recursive(g: gd.GraphBuilder, x: Value) -> dict[str, Value]:
        f(rows(3))
        return {"y": x}

    f = cpu(recursive)
    with pytest.raises(gd.ExecutionError, match="called by itself"):
        f(rows(3))


@pytest.fixture
def threads() -> Iterator[Callable[..., threading.Thread]]:
    started: list[threading.Thread] = []

    def start(work: Callable[[], object]) -> threading.Thread:
        thread = threading.Thread(target=work, daemon=True)
        started.append(thread)
        thread.start()
        return thread

    yield start
    for thread in started:
        thread.join(20)
        assert not thread.is_alive()


def test_threads_with_one_new_shape_build_it_once_and_others_go_on(
    threads: Callable[..., threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, begun, go_on = compiler.compile, threading.Semaphore(0), threading.Event()

    def slow(graph: gd.Graph, *arguments: Any) -> gd.Executable:
        begun.release()
        if graph.inputs["x"].type.shape[0] == 3:
            assert go_on.wait(20)
        return real(graph, *arguments)

    monkeypatch.setattr(compiler, "compile", slow)
    f = cpu(relu)
    found: list[np.ndarray] = []
    for _ in range(4):
        threads(lambda: found.append(f(rows(3))["y"]))
    assert begun.acquire(timeout=20)
    assert f(rows(5))["y"].shape == (5, 4)  # while that of 3 is being built
    assert not found
    go_on.set()
    deadline = time.monotonic() + 20
    while len(found) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [y.shape for y in found] == [(3, 4)] * 4
    assert (f.stats().builds, f.stats().hits) == (2, 3)


def test_threads_that_wait_for_a_failing_build_all_hear_of_it(
    threads: Callable[..., threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, tries = threading.Event(), []

    def failing(*arguments: Any) -> gd.Executable:
        tries.append(1)
        assert go_on.wait(20)
        raise gd.CompileError("no engine takes it")

    monkeypatch.setattr(compiler, "compile", failing)
    f = cpu(relu)
    said: list[str] = []

    def call() -> None:
        try:
            f(rows(3))
        except gd.CompileError as error:
            said.append(str(error))

    workers = [threads(call) for _ in range(3)]
    time.sleep(0.2)
    go_on.set()
    for worker in workers:
        worker.join(20)
    assert said == ["no engine takes it"] * 3
    assert 1 <= len(tries) <= 3
    assert f.executables == {}


def test_hammered_from_many_threads(threads: Callable[..., threading.Thread], rng: np.random.Generator) -> None:
    f = cpu(relu, max_entries=3, warn_after=10**6)
    wrong: list[int] = []
    sizes = [rng.integers(1, 6, 60).tolist() for _ in range(4)]

    def work(mine: list[int]) -> None:
        for n in mine:
            if not np.array_equal(f(rows(n))["y"], np.maximum(rows(n)["x"], 0)):
                wrong.append(n)

    for worker in [threads(functools.partial(work, mine)) for mine in sizes]:
        worker.join(60)
    stats = f.stats()
    assert not wrong
    assert stats.builds + stats.hits == 240
    assert stats.builds - stats.evictions == len(f.executables) <= 3


def repeated(f: Callable[[dict[str, Any]], object], calls: list[dict[str, Any]]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for inputs in calls:
            f(inputs)
    assert all(w.category is RepeatedBuildsWarning and w.filename == __file__ for w in caught)
    return [str(w.message) for w in caught]


def test_a_warning_names_the_axis_that_varies_and_the_remedy() -> None:
    messages = repeated(cpu(relu, warn_after=4), [rows(n) for n in range(1, 9)])
    assert messages == [
        "relu was built 4 times, as axis 0 of x took 1, 2, 3, 4; buckets={'x': {0: 'pow2'}} pads to a few sizes that "
        "are built for once each",
        "relu was built 8 times, as axis 0 of x took 1, 2, 3, 4, 5, 6, ...; buckets={'x': {0: 'pow2'}} pads to a few "
        "sizes that are built for once each",
    ]


def test_a_warning_suggests_no_remedy_that_would_be_refused() -> None:
    f = cpu(lambda g, x: {"y": g.layer_norm(x, axes=0, name="n")}, warn_after=3)
    (message,) = repeated(f, [rows(n) for n in (3, 4, 5)])
    assert "cannot be padded to fewer sizes, since layer_norm %n computes across axis 0" in message
    assert message.endswith("padded to 4")


def test_a_warning_suggests_buckets_where_masks_make_them_right() -> None:
    f = cpu(lambda g, q: {"y": g.attention(q, q, q, name="a")}, warn_after=3)
    (message,) = repeated(f, [{"q": np.ones((1, 1, n, 8), np.float32)} for n in (3, 4, 5)])
    assert message.endswith("buckets={'q': {2: 'pow2'}} pads to a few sizes that are built for once each")


def test_a_warning_names_axes_that_vary_together() -> None:
    f = cpu(lambda g, a, b: {"y": g.add(a, b)}, warn_after=3)
    (message,) = repeated(f, [{"a": rows(n)["x"], "b": rows(n)["x"]} for n in (1, 2, 4)])
    assert "axis 0 of a and axis 0 of b took 1, 2, 4; buckets={'a': {0: 'pow2'}, 'b': {0: 'pow2'}}" in message


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        ([np.ones((3, 4), t) for t in ("f4", "f2", "i4")], "x had the types float32, float16, int32; inputs that are"),
        ([np.ones((3, 4)), np.ones((4, 3)).T, np.ones((3, 5))], r"x had the orders of axes row-major, \(1, 0\)"),
        ([np.ones(3), np.ones((3, 1)), np.ones((3, 1, 1))], "x had the ranks 1, 2, 3"),
    ],
    ids=["types", "layouts", "ranks"],
)
def test_a_warning_names_what_else_varies(calls: list[np.ndarray], said: str) -> None:
    (message,) = repeated(cpu(relu, warn_after=3), [{"x": x} for x in calls])
    assert re.search(said, message)


def test_a_warning_tells_when_builds_are_dropped_too_early() -> None:
    messages = repeated(cpu(relu, warn_after=4, max_entries=1), [rows(n) for n in (1, 2, 1, 2)])
    assert messages == [
        "relu was built 4 times, lately for 2 signatures that displace each other; max_entries=2 keeps them all"
    ]


def test_a_warning_of_the_first_build_says_what_it_is_for() -> None:
    assert repeated(cpu(relu, warn_after=1), [rows(3)]) == ["relu was built 1 time, for x: f32[3x4]"]


def test_a_warning_of_padded_sizes_asks_for_coarser_ones() -> None:
    f = cpu(relu, warn_after=3, buckets={"x": {-2: 2}})
    (message,) = repeated(f, [rows(n) for n in (2, 4, 6)])
    assert message.endswith("axis 0 of x took 2, 4, 6; coarser buckets of axis 0 of x need fewer builds")


def test_a_warning_that_is_raised_costs_no_build() -> None:
    f = cpu(relu, warn_after=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RepeatedBuildsWarning):
            f(rows(3))
        assert f(rows(3))["y"].shape == (3, 4)
    assert f.stats().builds == 1
