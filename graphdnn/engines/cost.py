"""Roofline estimates: the larger of bytes over bandwidth and operations over rate, plus the gap between kernels."""

from __future__ import annotations

from dataclasses import dataclass

from graphdnn.ir.graph import Node
from graphdnn.ir.ops.attention import Attention
from graphdnn.ir.ops.linear import Conv, MatMul
from graphdnn.ir.ops.transposed import ConvTranspose
from graphdnn.ir.region import Region
from graphdnn.target import Target

MATRIX_OPS: tuple[type, ...] = (Conv, ConvTranspose, MatMul, Attention)
"""Ops whose arithmetic the matrix units do."""

RESIDUAL_US = 0.3
"""What reading a residual behind a matrix product takes besides its bytes, which the product does not hide.  cuBLASLt
took 0.7 us longer with one for 128x1024x1024, 0.05 for 128x4096x1024, 3.8 for 8192x4096x1024 (16 MiB), 8.1 for 4096
cubed and 4.8 for 4096x14336x4096 (32 MiB); cuDNN's first plans 0.2 to 2.7 us for up to 16 MiB, 34 us for 32."""


@dataclass(frozen=True)
class Efficiency:
    """Fractions of the measured ceilings that a kind of kernel reaches."""

    bandwidth: float = 0.9
    matrix: float = 0.75
    plain: float = 0.5


def unit_of(node: Node, precision: str) -> str:
    """Name of the arithmetic unit that does a node's work, a key of Target.rates."""
    dtype = (node.operands or node.results)[0].type.dtype
    if dtype.name == "float32" and precision != "ieee" and isinstance(node.op, MATRIX_OPS):
        return "tf32"
    return dtype.name if isinstance(node.op, MATRIX_OPS) else dtype.compute.name


def roofline_us(
    region: Region,
    target: Target,
    precision: str = "ieee",
    efficiency: Efficiency | None = None,
    kernels: int = 1,
    extra_bytes: int = 0,
) -> float:
    """Estimated microseconds of a region run as `kernels` kernels that also move `extra_bytes`."""
    reach = efficiency or Efficiency()
    memory = (region.read_bytes + region.written_bytes + extra_bytes) / (target.bandwidth * reach.bandwidth)
    arithmetic = 0.0
    for node in region.nodes:
        fraction = reach.matrix if isinstance(node.op, MATRIX_OPS) else reach.plain
        arithmetic += node.flops / (target.rate(unit_of(node, precision)) * fraction)
    return kernels * target.launch_us + 1e6 * max(memory, arithmetic)
