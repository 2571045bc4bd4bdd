"""One attention block: projections, causal attention with grouped heads, output projection, residual and norm."""

import numpy as np

import graphdnn as gd

BATCH, TOKENS, HIDDEN, HEADS, KV_HEADS = 2, 128, 512, 8, 2
DEPTH = HIDDEN // HEADS
rng = np.random.default_rng(0)


def weight(g: gd.GraphBuilder, name: str, rows: int, columns: int) -> gd.Value:
    return g.constant((rng.standard_normal((rows, columns)) / rows**0.5).astype(np.float16), name=name)


g = gd.GraphBuilder("attention_block")
x = g.input("x", (BATCH, TOKENS, HIDDEN), gd.float16)
normed = g.rms_norm(x, g.constant(np.ones(HIDDEN, np.float16), name="gamma"))


def project(name: str, heads: int) -> gd.Value:
    y = g.matmul(normed, weight(g, f"w_{name}", HIDDEN, heads * DEPTH), name=name)
    return g.transpose(g.reshape(y, (BATCH, TOKENS, heads, DEPTH)), (0, 2, 1, 3))


o = g.attention(project("q", HEADS), project("k", KV_HEADS), project("v", KV_HEADS), causal="top_left")
merged = g.reshape(g.transpose(o, (0, 2, 1, 3)), (BATCH, TOKENS, HIDDEN))
y = g.matmul(merged, weight(g, "w_o", HIDDEN, HIDDEN), name="projection") + x
graph = g.build({"y": y})

inputs = {"x": rng.standard_normal((BATCH, TOKENS, HIDDEN)).astype(np.float16)}
exe = gd.compile(graph)
exact = gd.evaluate(graph, inputs, gd.float64)["y"]
error = np.abs(exe(inputs)["y"] - exact).max() / np.abs(exact).max()
print(f"computed in float16 for {exe.report.target}; largest difference from float64 is {error:.1e} of the peak")
print(gd.compile(graph, target=gd.Target.named("h200")).explain())
