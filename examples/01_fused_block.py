"""One fused block: a convolution with bias and relu becomes one kernel, and the report says so.

Images lie channels-last, as the kernels for convolutions want them; row-major ones would be converted at the edges.
"""

import numpy as np

import graphdnn as gd

rng = np.random.default_rng(0)
weights = (rng.standard_normal((64, 64, 3, 3)) / 24).astype(np.float16)

g = gd.GraphBuilder("block")
shape, channels_last = (8, 64, 56, 56), (64 * 56 * 56, 1, 64 * 56, 64)
x = g.input("x", shape, gd.float16, strides=channels_last)
w = g.constant(weights, name="w")
b = g.constant(rng.standard_normal(64).astype(np.float16), name="b")
y = g.relu(g.bias(g.conv(x, w, padding=1), b, axis=1))
graph = g.build({"y": y}, strides={"y": channels_last})

exe = gd.compile(graph)
out = exe({"x": rng.standard_normal(shape).astype(np.float16)})
print(f"y is {out['y'].dtype} {out['y'].shape}, computed for {exe.report.target}")
print(gd.compile(graph, target=gd.Target.named("h200")).explain())
