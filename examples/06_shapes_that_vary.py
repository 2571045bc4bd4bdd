"""Shapes that vary: one build for each shape, or a few for all of them, and the word when padding would be wrong."""

import warnings

import numpy as np

import graphdnn as gd

HIDDEN, HEADS = 64, 4
rng = np.random.default_rng(0)
weights = (rng.standard_normal((HIDDEN, HIDDEN)) / HIDDEN**0.5).astype(np.float32)
requests = [(int(rng.integers(1, 9)), int(rng.integers(3, 33))) for _ in range(12)]


def encoder(g: gd.GraphBuilder, x: gd.Value) -> dict[str, gd.Value]:
    """One attention layer, and the mean over all positions.  Where they are padded, gd.jit masks both."""
    batch, tokens, _ = x.type.shape
    projected = g.matmul(x, g.constant(weights, name="w"))
    q = g.transpose(g.reshape(projected, (batch, tokens, HEADS, HIDDEN // HEADS)), (0, 2, 1, 3))
    o = g.attention(q, q, q)
    y = x + g.reshape(g.transpose(o, (0, 2, 1, 3)), (batch, tokens, HIDDEN))
    return {"embedding": g.reduce_mean(y, axes=1)}


def serve(f) -> list[np.ndarray]:
    """Answers every request."""
    inputs = np.random.default_rng(1)
    return [f({"x": inputs.standard_normal((b, s, HIDDEN)).astype(np.float32)})["embedding"] for b, s in requests]


exactly = gd.jit(encoder, max_entries=64)
padded = gd.jit(encoder, buckets={"x": {0: (8,), 1: (16, 32)}})
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    pairs = list(zip(serve(exactly), serve(padded), strict=True))
for what, f in (("a build for each shape", exactly), ("the sizes rounded up", padded)):
    stats = f.stats()
    print(f"{what}: {stats.builds} builds in {stats.build_seconds:.2f} s for {len(requests)} requests")
print(f"largest difference between the two: {max(float(np.abs(a - b).max()) for a, b in pairs):.1e}")
print(f"said on the way: {caught[0].message}\n")

norm = gd.jit(lambda g, x: {"y": g.layer_norm(x, axes=1, name="along_time")}, buckets={"x": {1: (16, 32)}})
try:
    norm({"x": np.ones((2, 11, HIDDEN), np.float32)})
except gd.CompileError as error:
    print(f"refused: {error}\n")

for signature, executable in padded.executables.items():
    plan = gd.compile(executable.graph, target=gd.Target.named("h200")).report
    print(f"{signature} runs on {executable.report.target}; on an h200 it would be {plan.kernel_count} kernels")
