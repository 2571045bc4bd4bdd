"""Builder method for softmax."""

from __future__ import annotations

from graphdnn.ir.builder.arguments import called
from graphdnn.ir.builder.core import BuilderCore
from graphdnn.ir.graph import Value
from graphdnn.ir.ops.softmax import Softmax
from graphdnn.ir.types import normalize_axis


class SoftmaxMethods(BuilderCore):
    """Softmax."""

    def softmax(self, x: Value, *, axis: int = -1, name: str | None = None) -> Value:
        """y = e ** (x - m) / sum of e ** (x - m) along `axis`, m the largest x along it.

        The result has x's shape and type; float16 and bfloat16 are computed in float32.
        A line of nothing but -inf, or with NaN or inf, gives NaN.  Raises GraphError for integers and a missing axis.
        """
        who = called(name, "softmax")
        self._check_owned(f"{who}: x", x)
        return self._add(Softmax(axis=normalize_axis(axis, x.type, who)), x, name=name)[0]
