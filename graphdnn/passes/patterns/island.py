"""Islands: pointwise nodes among themselves, begun at each of them and grown forward."""

from graphdnn.ir.ops.pointwise import Elementwise
from graphdnn.passes.patterns.fusion import Fusion

ISLAND = Fusion("pointwise", (Elementwise,), limit=32, budget=12)
