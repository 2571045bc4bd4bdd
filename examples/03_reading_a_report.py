"""Reading a report as data: what was declined, with what reason, and what change would be accepted."""

import numpy as np

import graphdnn as gd

g = gd.GraphBuilder("activated")
x = g.input("x", (4096, 1024), gd.float32)
w = g.constant(np.eye(1024, dtype=np.float32), name="w")
y = g.gelu(g.matmul(x, w))
graph = g.build({"y": g.softmax(y)})

report = gd.compile(graph, target=gd.Target.named("h200")).report
for region in report.regions:
    print(
        f"{region.name}: {region.pattern} on {region.engine} in {region.precision}, about {region.estimated_us:.0f} us"
    )
    for entry in region.alternatives:
        if entry.verdict == "declined" and entry.fix is not None:
            print(f"  {entry.engine} declined {entry.pattern} ({entry.code}): {entry.reason}; {entry.fix.sentence}")

allowed = gd.CompileOptions(precision="tf32")
faster = gd.compile(graph, target=gd.Target.named("h200"), options=allowed).report
print(f"estimated {report.estimated_us:.0f} us as float32, {faster.estimated_us:.0f} us where TF32 is allowed")
