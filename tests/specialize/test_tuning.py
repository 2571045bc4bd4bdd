"""Tuned builds in the background: served at once, swapped in between calls, never in anybody's way."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphdnn as gd
from graphdnn import compiler
from graphdnn.ir.graph import Value
from graphdnn.specialize.jitted import Jitted, TuningWarning
from graphdnn.specialize.tuning import Background

ROOT = Path(__file__).parents[2]
TUNED = gd.CompileOptions(precision="tf32")
"""Options that tell a tuned build from the first one."""


class Compiler:
    """compile() that lets tuned builds wait until `go_on`, and fail where `fails` says so."""

    def __init__(self) -> None:
        self.real = compiler.compile
        self.go_on = threading.Event()
        self.fails: Callable[[gd.Graph], bool] = lambda graph: False
        self.failure: Exception = gd.CompileError("the device was lost")
        self.tuned: list[gd.Graph] = []

    def __call__(self, graph: gd.Graph, target: str, options: gd.CompileOptions) -> gd.Executable:
        if options == TUNED:
            assert self.go_on.wait(20)
            self.tuned.append(graph)
            if self.fails(graph):
                raise self.failure
        return self.real(graph, target, options)


@pytest.fixture
def compile(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiler]:
    found = Compiler()
    monkeypatch.setattr(compiler, "compile", found)
    yield found
    found.go_on.set()


def relu(g: gd.GraphBuilder, x: Value) -> dict[str, Value]:
    return {"y": g.relu(x)}


def tuning(fn: Callable[..., Any] = relu, **options: Any) -> Jitted:
    return gd.jit(fn, target="cpu", on_new_shape="heuristic_then_tune", tuned_options=TUNED, **options)


def rows(n: int) -> dict[str, np.ndarray]:
    return {"x": np.ones((n, 4), np.float32)}


def precisions(f: Jitted) -> list[str]:
    return [e.report.options["precision"] for e in f.executables.values()]


def test_a_new_shape_is_served_at_once_and_tuned_later(compile: Compiler) -> None:
    f = tuning()
    first = f(rows(3))["y"]
    assert precisions(f) == ["ieee"]
    assert not f.wait_for_tuning(0.01)
    compile.go_on.set()
    assert f.wait_for_tuning(20)
    assert precisions(f) == ["tf32"]
    np.testing.assert_array_equal(f(rows(3))["y"], first)
    stats = f.stats()
    assert (stats.builds, stats.hits, stats.tuned, stats.tuning_failures) == (1, 1, 1, 0)


def test_padded_builds_are_tuned_too(compile: Compiler) -> None:
    compile.go_on.set()
    f = tuning(buckets={"x": {0: 4}})
    for n in (3, 2, 4):
        assert f(rows(n))["y"].shape == (n, 4)
    assert f.wait_for_tuning(20)
    assert f(rows(1))["y"].sum() == 4
    assert (f.stats().tuned, [g.inputs["x"].type.shape for g in compile.tuned]) == (1, [(4, 4)])


def test_a_call_that_runs_keeps_its_plans(compile: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    f = tuning()
    f(rows(3))
    (before,) = f.executables.values()
    inside, go_on, found = threading.Event(), threading.Event(), []
    real = gd.Executable.__call__

    def slow(self: gd.Executable, inputs: Any, *, stream: object = None) -> dict[str, Any]:
        if self is before:
            inside.set()
            assert go_on.wait(20)
        found.append(self)
        return real(self, inputs, stream=stream)

    monkeypatch.setattr(gd.Executable, "__call__", slow)
    caller = threading.Thread(target=lambda: f(rows(3)), daemon=True)
    caller.start()
    assert inside.wait(20)
    compile.go_on.set()
    assert f.wait_for_tuning(20)
    f(rows(3))
    go_on.set()
    caller.join(20)
    (after,) = f.executables.values()
    assert found == [after, before]


def test_a_failing_background_build_is_a_warning_at_the_next_call_and_counted(compile: Compiler) -> None:
    compile.fails = lambda graph: graph.inputs["x"].type.shape[0] == 3
    f = tuning()
    f(rows(3))
    f(rows(5))
    compile.go_on.set()
    assert f.wait_for_tuning(20)
    with pytest.warns(TuningWarning, match=r"relu stays untuned for x: f32\[3x4\]: the device was lost") as caught:
        f(rows(3))
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f(rows(3))
    assert (f.stats().tuned, f.stats().tuning_failures, precisions(f)) == (1, 1, ["tf32", "ieee"])


def test_a_failure_without_words_is_called_by_its_name(compile: Compiler) -> None:
    compile.fails, compile.failure = (lambda graph: True), AssertionError()
    compile.go_on.set()
    f = tuning()
    f(rows(3))
    assert f.wait_for_tuning(20)
    with pytest.warns(TuningWarning, match=r"stays untuned for x: f32\[3x4\]: AssertionError$"):
        f(rows(3))


def test_what_was_dropped_meanwhile_is_not_tuned(compile: Compiler) -> None:
    f = tuning(max_entries=1)
    f(rows(1))  # the thread waits in this tuned build, or in the next where it starts late, or in the last
    f(rows(2))
    f(rows(3))
    compile.go_on.set()
    assert f.wait_for_tuning(20)
    assert [g.inputs["x"].type.shape[0] for g in compile.tuned] in ([1, 3], [2, 3], [3])


def test_a_dropped_function_is_not_tuned(compile: Compiler) -> None:
    first = tuning()
    first(rows(1))
    second = tuning()
    second(rows(2))
    del second
    third = tuning()
    third(rows(3))
    compile.go_on.set()
    assert first.wait_for_tuning(20)
    assert third.wait_for_tuning(20)
    assert [g.inputs["x"].type.shape[0] for g in compile.tuned] == [1, 3]


def test_a_failed_first_build_is_not_tuned(compile: Compiler) -> None:
    f = tuning(lambda g, x: {"y": g.matmul(x, x)})
    with pytest.raises(gd.GraphError):
        f(rows(3))
    assert f.wait_for_tuning(0)


def test_without_options_of_its_own_the_tuned_build_measures() -> None:
    f = gd.jit(relu, target="cpu", on_new_shape="heuristic_then_tune")
    f(rows(3))
    assert f.wait_for_tuning(60)
    assert f.stats().tuned == 1
    assert [e.report.options["selection"] for e in f.executables.values()] == ["autotune"]


@pytest.mark.parametrize(
    ("options", "later"),
    [
        ({}, ("autotune", False)),
        ({"selection": "autotune"}, ("autotune", False)),
        ({"selection": "measure", "progress": True, "deterministic": True}, ("measure", True)),
    ],
)
def test_the_first_build_times_nothing_and_the_tuned_one_what_was_asked_for(
    options: dict[str, Any], later: tuple[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, given = compiler.compile, []

    def noted(graph: gd.Graph, target: str, options: gd.CompileOptions) -> gd.Executable:
        given.append(options)
        return real(graph, target, options)

    monkeypatch.setattr(compiler, "compile", noted)
    f = gd.jit(relu, target="cpu", options=gd.CompileOptions(**options), on_new_shape="heuristic_then_tune")
    f(rows(3))
    assert f.wait_for_tuning(60)
    first, tuned = given
    assert (first.selection, first.progress) == ("heuristic", options.get("progress"))
    assert (tuned.selection, tuned.progress) == later
    assert first.deterministic == tuned.deterministic == options.get("deterministic", False)


def test_the_thread_ends_and_begins_again() -> None:
    background, done = Background(), threading.Event()
    for _ in range(2):
        done.clear()
        background.put(done.set)
        assert done.wait(20)
        deadline = time.monotonic() + 20
        while background._is_working and time.monotonic() < deadline:
            time.sleep(0.005)
        assert not background._is_working


def test_process_exit_waits_for_nothing() -> None:
    code = """
import time, numpy as np, graphdnn as gd
from graphdnn import compiler
real, tuned = compiler.compile, gd.CompileOptions(precision="tf32")
compiler.compile = lambda graph, target, options: time.sleep(600) if options == tuned else real(graph, target, options)
f = gd.jit(lambda g, x: {"y": g.relu(x)}, target="cpu", on_new_shape="heuristic_then_tune", tuned_options=tuned)
print(f({"x": np.ones(3, np.float32)})["y"].sum(), f({"x": np.ones(4, np.float32)})["y"].sum())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT, check=True
    )
    assert (done.stdout, done.stderr) == ("3.0 4.0\n", "")
