"""Declaring ops: once each, and with all that an op needs."""

from __future__ import annotations

import pytest

import graphdnn as gd
from graphdnn.ir.op import OPS, Op, op
from graphdnn.ir.types import Array, TensorType


class Typed(Op):
    """Types without a meaning."""

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        return operands


def test_an_op_without_a_meaning_is_refused() -> None:
    with pytest.raises(gd.GraphError, match="op typed: Typed defines no reference"):
        op("typed")(Typed)
    with pytest.raises(gd.GraphError, match="op nothing: Nothing defines no infer and no reference"):
        op("nothing")(type("Nothing", (Op,), {}))
    assert not {"typed", "nothing"} & OPS.keys()


def test_a_kind_is_declared_once() -> None:
    class Second(Typed):
        def reference(self, *operands: Array) -> tuple[Array, ...]:
            return operands

    with pytest.raises(gd.GraphError, match="op conv is declared twice"):
        op("conv")(Second)
    assert OPS["conv"] is not Second
