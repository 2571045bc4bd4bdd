"""The fusions, one file each."""

from graphdnn.passes.patterns.attention import ATTENTION
from graphdnn.passes.patterns.convolution import CONVOLUTION
from graphdnn.passes.patterns.fusion import Fusion
from graphdnn.passes.patterns.island import ISLAND
from graphdnn.passes.patterns.matmul import MATMUL
from graphdnn.passes.patterns.norm import NORM
from graphdnn.passes.patterns.pooling import POOLING
from graphdnn.passes.patterns.rows import ROWS

FUSIONS: tuple[Fusion, ...] = (CONVOLUTION, MATMUL, ATTENTION, NORM, ROWS, POOLING, ISLAND)
"""By how much work the anchor does, most first: a region that two fusions propose counts as the earlier one's."""
