"""Convolutions with pointwise work before and behind them."""

from graphdnn.ir.ops.linear import Conv
from graphdnn.ir.ops.transposed import ConvTranspose
from graphdnn.passes.patterns.fusion import Fusion

CONVOLUTION = Fusion("convolution", (Conv, ConvTranspose))
