"""How each op is told to cuDNN, one file a family, named as in graphdnn.ir.ops.  Importing it declares all rules."""

from graphdnn.engines.cudnn.rules import attention, linear, norm, pointwise, reduction, transposed

__all__ = ["attention", "linear", "norm", "pointwise", "reduction", "transposed"]
