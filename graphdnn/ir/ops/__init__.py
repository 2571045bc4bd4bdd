"""The operations, one file a family.  Importing this package declares all of them."""

from graphdnn.ir.ops import linear, pointwise

__all__ = ["linear", "pointwise"]
