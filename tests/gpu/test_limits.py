"""Limits on memory on a real device, where only built plans tell what they need."""

import re
from pathlib import Path

import numpy as np
import pytest

import graphdnn as gd

pytestmark = pytest.mark.gpu

Arrays = dict[str, np.ndarray]


def convolution() -> gd.Graph:
    g = gd.GraphBuilder("convolution")
    x, w = g.input("x", (8, 64, 28, 28), gd.float16), g.input("w", (64, 64, 3, 3), gd.float16)
    return g.build({"y": g.relu(g.conv(x, w, padding=1))})


def products() -> gd.Graph:
    g = gd.GraphBuilder("products")
    x = g.input("x", (64, 2048), gd.float16)
    for i in range(2):
        x = g.softmax(g.matmul(x, g.input(f"w{i}", (2048, 2048), gd.float16)))
    return g.build({"y": x})


def limited(graph: gd.Graph, limit: int | None, **options: object) -> gd.Executable:
    return gd.compile(graph, "cuda", gd.CompileOptions(memory_limit=limit, **options))  # type: ignore[arg-type]


def drawn(graph: gd.Graph, rng: np.random.Generator) -> Arrays:
    return {n: (rng.standard_normal(v.type.shape, np.float32) / 8).astype(np.float16) for n, v in graph.inputs.items()}


@pytest.mark.parametrize("make", [convolution, products])
def test_the_error_names_a_limit_that_is_met(make: object, rng: np.random.Generator) -> None:
    assert callable(make)
    graph = make()
    inputs = drawn(graph, rng)
    wanted = gd.evaluate(graph, inputs, gd.float64)["y"]
    limit = 0
    try:
        exe = limited(graph, 0)
    except gd.CompileError as error:
        limit = int(re.findall(r"arena of (\d+) bytes", str(error))[0])
        exe = limited(graph, limit)
        with pytest.raises(gd.CompileError, match=f"an arena of {limit} bytes"):
            limited(graph, limit - 1)
    assert exe.report.arena_bytes <= limit
    assert np.abs(exe(inputs)["y"].astype(np.float64) - wanted).max() <= 4e-3 * np.abs(wanted).max()


@pytest.mark.parametrize("option", ["workspace_limit", "memory_limit"])
def test_what_a_limit_costs_is_said_with_a_change_that_lifts_it(option: str) -> None:
    g = gd.GraphBuilder("head")
    x, w = g.input("x", (64, 8192), gd.float16), g.input("w", (8192, 512), gd.float16)
    graph = g.build({"y": g.matmul(x, w, name="m")})
    report = gd.compile(graph, "cuda", gd.CompileOptions(**{option: 0})).report  # type: ignore[arg-type]
    said = [e for e in report.effects if e.startswith(f"{option}=0 rules out ") and " of scratch for m, " in e]
    free = gd.compile(graph, "cuda").report
    assert bool(said) == bool(free.regions[0].workspace_bytes)
    for sentence in said:
        more = int(re.findall(rf"change {option} of options from 0 to (\d+)", sentence)[0])
        again = gd.compile(graph, "cuda", gd.CompileOptions(**{option: more})).report  # type: ignore[arg-type]
        assert again.estimated_us <= report.estimated_us


@pytest.mark.parametrize("selection", ["heuristic", "autotune"])
def test_a6_limits_hold_and_the_numbers_stay(selection: str, tmp_path: Path, rng: np.random.Generator) -> None:
    g = gd.GraphBuilder("a6")
    x, w = g.input("x", (32, 64, 56, 56), gd.float16), g.input("w", (64, 64, 3, 3), gd.float16)
    graph = g.build({"y": g.conv(x, w, padding=1, name="conv")})
    inputs = {
        "x": rng.standard_normal((32, 64, 56, 56)).astype(np.float16),
        "w": (rng.standard_normal((64, 64, 3, 3)) / 24).astype(np.float16),
    }
    results, excluded = {}, {}
    for limit in (0, 512, 1 << 20, None):
        options = {"selection": selection, "workspace_limit": limit, "cache_dir": str(tmp_path), "progress": False}
        exe = gd.compile(graph, "cuda", gd.CompileOptions(**options))  # type: ignore[arg-type]
        assert all(limit is None or r.workspace_bytes <= limit for r in exe.report.regions)
        results[limit] = exe(inputs)["y"].astype(np.float64)
        excluded[limit] = [p for c in exe.report.candidates for p in c.plans if p.verdict == "excluded"]
    assert excluded[0], "none of cuDNN's plans needs scratch any more; the case needs another convolution"
    assert not excluded[None]
    for limit, plans in excluded.items():
        for plan in plans:
            assert limit is not None
            assert plan.workspace_bytes > limit
            assert plan.reason == f"needs {plan.workspace_bytes} bytes of scratch; workspace_limit is {limit}"
            assert (plan.measured_us or plan.estimated_us or 0.0) > 0
    peak = np.abs(results[None]).max()
    for result in results.values():
        assert np.abs(result - results[None]).max() <= 2e-3 * peak
