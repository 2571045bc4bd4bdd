"""The operations, one file a family.  Importing this package declares all of them."""

from graphdnn.ir.ops import attention, linear, movement, norm, pointwise, pool, reduction, softmax, transposed

__all__ = ["attention", "linear", "movement", "norm", "pointwise", "pool", "reduction", "softmax", "transposed"]
