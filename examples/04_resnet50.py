"""ResNet-50 in float16: batch norms fold into the convolutions, which carry the relus and the residual adds."""

import numpy as np
from models.resnet import build, random_parameters

import graphdnn as gd

graph = build(random_parameters(seed=0), batch=1, dtype=gd.float16)
report = gd.compile(graph, target=gd.Target.named("h200")).report
convs = [r for r in report.regions if "conv" in r.pattern.split("+")]
print(f"{len(graph.nodes)} nodes run as {report.kernel_count} kernels (unfused {report.unfused_kernel_count})")
print(
    f"{len(convs)} conv regions, {sum(r.pattern.endswith('relu') for r in convs)} end in a relu, "
    f"{sum('add' in r.pattern.split('+') for r in convs)} contain an add"
)

exe = gd.compile(graph)
image = np.random.default_rng(1).standard_normal((1, 3, 224, 224)).astype(np.float16)
logits = exe({"x": image})["y"]
print(f"computed for {exe.report.target}: class {int(logits[0].argmax())} of {logits.shape[1]}")
