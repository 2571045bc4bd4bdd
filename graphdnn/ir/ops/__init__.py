"""The operations, one file a family.  Importing this package declares all of them."""

from graphdnn.ir.ops import linear, norm, pointwise, pool, reduction, softmax

__all__ = ["linear", "norm", "pointwise", "pool", "reduction", "softmax"]
