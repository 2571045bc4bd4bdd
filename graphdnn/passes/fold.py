"""Folding: what scales and shifts each channel of a convolution or matrix product moves into its constant weights.

Inference batch norm, and products with constants.  A batch norm that cannot move becomes one multiply-add with float32
factors, which stays in the epilogue; in full precision, and behind no linear op, the mean is subtracted first.
"""

from __future__ import annotations

from functools import partial

from graphdnn.ir.graph import Graph
from graphdnn.passes.rewrite import Rewritten, rewrite
from graphdnn.passes.rules.folding import INTO_WEIGHTS, MULTIPLY_ADD


def fold(graph: Graph) -> Rewritten:
    """The graph with constant scales in the weights, and the refusals of batch norms that could not go there.

    A multiply-add may have a constant factor though its shift is known at run time only: that factor goes in last.
    """
    done = Rewritten(graph)
    for rules in (INTO_WEIGHTS, MULTIPLY_ADD, INTO_WEIGHTS):
        done = done.then(partial(rewrite, rules=rules))
    return done
