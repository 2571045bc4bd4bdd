"""Builder method for softmax."""

from __future__ import annotations

from graphdnn.ir.builder.core import BuilderCore
from graphdnn.ir.graph import Value
from graphdnn.ir.ops.softmax import Softmax
from graphdnn.ir.types import normalize_axis


class SoftmaxMethods(BuilderCore):
    """Softmax."""

    def softmax(self, x: Value, *, axis: int = -1, name: str | None = None) -> Value:
        """e ** x / sum of e ** x along axis, computed so that nothing overflows."""
        who = name or "softmax"
        self._check_owned(f"{who}: x", x)
        return self._add(Softmax(axis=normalize_axis(axis, x.type, who)), x, name=name)[0]
