"""The symptoms of choosing plans, each with its cure: slow first step, shape cliff, other bits, scratch, no fusion."""

import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

import graphdnn as gd
from graphdnn.report.diff import difference

H200 = gd.Target.named("h200")
rng = np.random.default_rng(0)


def weights(*shape: int) -> np.ndarray:
    return (rng.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32)


def timed(work, tries: int = 1):
    """The seconds that `work` takes, the least of several tries, and what it gives."""
    least = float("inf")
    for _ in range(tries):
        started = time.perf_counter()
        result = work()
        least = min(least, time.perf_counter() - started)
    return least, result


def network(blocks: int) -> gd.Graph:
    """Residual blocks of two matrix products and a norm."""
    g = gd.GraphBuilder("network")
    x = g.input("x", (16, 64), gd.float32)
    for i in range(blocks):
        up, down = g.constant(weights(64, 128), name=f"up{i}"), g.constant(weights(128, 64), name=f"down{i}")
        x = g.rms_norm(x + g.matmul(g.gelu(g.matmul(x, up)), down), name=f"block{i}")
    return g.build({"y": x})


def slow_first_step(folder: Path) -> None:
    """Compiling takes long where kernels are built; the disk cache keeps them, and a saved executable needs no more."""
    graph, cache, path = network(32), folder / "cache", folder / "network.gdn"
    options = gd.CompileOptions(cache_dir=str(cache))
    gd.compile(network(1)).save(path)  # imports and the device's context are another matter
    gd.load(path)
    cold_s, exe = timed(lambda: gd.compile(graph, options=options))
    warm_s, _ = timed(lambda: gd.compile(graph, options=options), tries=3)
    exe.save(path)
    load_s, loaded = timed(lambda: gd.load(path, rebuild=False), tries=3)
    x = {"x": weights(16, 64)}
    same = np.array_equal(exe(x)["y"], loaded(x)["y"])
    kept = len(list(cache.rglob("*.bin")))
    print(f"first step on {exe.report.target}: compiled in {cold_s:.2f} s, again in {warm_s:.2f} s", end="")
    print(f", with {kept} entries in the disk cache")
    if not kept:
        print("  nothing is built for the CPU: a cache has nothing to keep, and both times are those of planning")
        print(
            "  on a device the second compile finds plans, kernels and answers there, and takes a fraction of the first"
        )
    print(f"  a saved executable is loaded in {load_s:.2f} s; equal bits: {same}")


def shape_cliff() -> None:
    """Each new batch is a build; padded to powers of two there are few."""
    w = weights(128, 128)
    batches = [int(n) for n in rng.permutation(np.arange(1, 33))[:12]]

    def layer(g: gd.GraphBuilder, x: gd.Value) -> dict[str, gd.Value]:
        return {"y": g.relu(g.matmul(x, g.constant(w, name="w")))}

    plain, padded = gd.jit(layer), gd.jit(layer, buckets={"x": {0: "pow2"}})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in batches:
            x = {"x": weights(n, 128)}
            np.testing.assert_allclose(padded(x)["y"], plain(x)["y"], rtol=1e-5, atol=1e-5)
    print(f"shapes: {plain.stats().builds} builds for {len(batches)} batches, {padded.stats().builds} with buckets")
    print(f"  said on the way: {caught[0].message}")


def other_bits() -> None:
    """A plan that adds in no fixed order gives other last bits from run to run; deterministic=True leaves it out."""
    g = gd.GraphBuilder("decode")
    q = g.input("q", (1, 32, 1, 128), gd.bfloat16)
    k, v = (g.input(name, (1, 8, 4096, 128), gd.bfloat16) for name in "kv")
    graph = g.build({"o": g.attention(q, k, v, name="attend")})
    inputs = {n: rng.standard_normal(i.type.shape).astype(i.type.dtype.numpy) for n, i in graph.inputs.items()}
    for steady in (False, True):
        exe = gd.compile(graph, options=gd.CompileOptions(deterministic=steady))
        report = exe.report
        runs = 2 if report.target == "cpu" else 50
        results = {exe(inputs)["o"].tobytes() for _ in range(runs)}
        said = "the same bits" if len(results) == 1 else f"{len(results)} different results"
        print(f"bits on {report.target}, deterministic={steady}: {runs} runs gave {said}")
        varying = [f"{r.engine} {r.plan}" for r in report.regions if not r.deterministic]
        print(f"  plans that may differ from run to run: {', '.join(varying) or 'none'}")
        excluded = [f"{c.engine} {p.name}" for c in report.candidates for p in c.plans if p.verdict == "excluded"]
        if excluded:
            print(f"  ruled out: {len(excluded)} plans: {', '.join(excluded)}")
        elif report.target == "cpu" and steady:
            print("  nothing to rule out: the CPU's one plan repeats its bits; other decisions stand in for it below")


def other_decisions(folder: Path) -> None:
    """Other decisions round elsewhere: the difference of two reports names them, and a lock file keeps them.

    A pass left out stands for what changes them: another version, another machine, timings that came out otherwise.
    """
    g = gd.GraphBuilder("convolved")
    x = g.input("x", (2, 8, 9, 9), gd.float32)
    w = g.constant(rng.standard_normal((8, 8, 3, 3)).astype(np.float32), name="w")
    statistics = (g.constant(np.abs(weights(8)) + 1, name=name) for name in ("mean", "var", "scale", "shift"))
    graph = g.build({"y": g.batch_norm(g.conv(x, w, padding=1, name="conv"), *statistics, name="norm")})

    steady = gd.CompileOptions(deterministic=True)
    first = gd.compile(graph, options=steady)
    other = gd.compile(graph, options=gd.CompileOptions(deterministic=True, disabled_passes=("fold",)))
    lock = folder / "convolved.lock.json"
    first.save_lock(lock)
    locked = gd.compile(graph, options=steady, lock=lock)
    inputs = {"x": rng.standard_normal((2, 8, 9, 9)).astype(np.float32)}
    y, z, again = (exe(inputs)["y"] for exe in (first, other, locked))
    print(f"decisions: {np.count_nonzero(y != z)} of {y.size} results are others without a pass", end="")
    print(f", by {np.abs(y - z).max():.0e}")
    print("\n".join(f"  {line}" for line in difference(first.report, other.report).splitlines() if " fold " in line))
    regions = gd.compile(graph, H200, steady).report.regions
    print(f"  {sum(r.deterministic for r in regions)} of {len(regions)} regions would repeat their bits on an h200")
    print(f"  {locked.report.effects[0]}; equal bits: {np.array_equal(y, again)}")


def scratch() -> None:
    """What a limit on scratch memory costs stands in the report: what it ruled out, how many bytes, what time."""
    g = gd.GraphBuilder("head")
    graph = g.build({"y": g.matmul(g.input("x", (64, 8192), gd.float16), g.input("w", (8192, 512), gd.float16))})
    free = gd.compile(graph, H200).report
    region = free.regions[0]
    print(f"scratch on {free.target}: {region.estimated_us:.1f} us with {region.workspace_bytes} bytes")
    for limit in ({"workspace_limit": 0}, {"memory_limit": 0}):
        report = gd.compile(graph, H200, gd.CompileOptions(**limit)).report
        print(f"  {limit}: {report.estimated_us:.1f} us by {report.regions[0].engine}")
        print("\n".join(f"    {effect}" for effect in report.effects))
        for entry in report.candidates:
            cost = entry.reason if entry.verdict == "excluded" else entry.ruled_out
            if cost:
                print(f"    {entry.engine}, {entry.verdict} at {entry.estimated_us:.1f} us: {cost}")


def missing_fusion() -> None:
    """Why a fusion did not happen, and the change that brings it, as the report names it."""
    g = gd.GraphBuilder("activated")
    x, w = g.input("x", (4096, 1024), gd.float32), g.input("w", (1024, 1024), gd.float32)
    graph = g.build({"y": g.gelu(g.matmul(x, w, name="product"), name="gelu")})
    report = gd.compile(graph, H200).report
    refused = next(c for c in report.candidates if c.pattern == "matmul+gelu" and c.fix)
    print(f"fusion: {report.kernel_count} kernels; {refused.engine} {refused.pattern}: {refused.reason}")
    change = {refused.fix.attribute: refused.fix.after}
    fused = gd.compile(graph, H200, gd.CompileOptions(**change)).report
    share = fused.estimated_us / report.estimated_us
    print(f"  with {change}: {[r.pattern for r in fused.regions]} in {share:.2f} of the time")


with tempfile.TemporaryDirectory() as name:
    slow_first_step(Path(name))
    shape_cliff()
    other_bits()
    other_decisions(Path(name))
    scratch()
    missing_fusion()
