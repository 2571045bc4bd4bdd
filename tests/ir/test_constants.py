"""Constants that are computed when asked for: what only moves keeps its bits, and is not widened on the way."""

from __future__ import annotations

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.ir import evaluate
from graphdnn.ir.evaluate import apply
from graphdnn.ir.op import Op
from graphdnn.ir.ops.movement import Convert, Pad, Reshape, Slice, Transpose
from graphdnn.ir.ops.pointwise import FUNCTIONS, Pointwise
from graphdnn.ir.payload import Compute, Payload
from graphdnn.ir.types import TensorType, channels_last

MOVES: tuple[tuple[Op, tuple[int, ...]], ...] = (
    (Convert(), (2, 3, 4, 5)),
    (Reshape(shape=(6, 20)), (6, 20)),
    (Transpose(axes=(3, 0, 2, 1)), (5, 2, 4, 3)),
)


def every_half() -> Payload:
    """Among them infinities, zeros of both signs, subnormal numbers, and NaN with bits of its own."""
    bits = np.random.default_rng(0).integers(0, 1 << 16, 120, np.uint16)
    bits[:6] = (0x7C00, 0xFC00, 0x0000, 0x8000, 0x0001, 0x7E55)
    return Payload(TensorType((2, 3, 4, 5), gd.float16), bits.view(np.float16).reshape(2, 3, 4, 5))


@pytest.mark.parametrize(("op", "shape"), MOVES, ids=lambda v: getattr(v, "kind", ""))
def test_what_moves_keeps_its_bits(op: Op, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "apply", lambda *_, **__: pytest.fail("computed"))
    source = every_half()
    made = Payload(TensorType(shape, gd.float16), compute=Compute(op, (source,), (source.type,)))
    (wanted,) = op.reference(source.array().view(np.uint16))
    assert made.array().dtype == np.float16
    np.testing.assert_array_equal(made.array().view(np.uint16), wanted)


def test_strides_are_no_matter_of_the_numbers() -> None:
    source = every_half()
    last = TensorType(source.type.shape, gd.float16, channels_last(source.type.shape))
    made = Payload(last, compute=Compute(Convert(), (source,), (source.type,)))
    np.testing.assert_array_equal(made.array().view(np.uint16), source.array().view(np.uint16))


def test_what_computes_is_widened_first() -> None:
    source = Payload(TensorType((1,), gd.float16), np.array([300.0], np.float16))
    square = Payload(
        TensorType((1,), gd.float32), compute=Compute(Pointwise(fn="mul"), (source, source), (source.type,) * 2)
    )
    assert square.array()[0] == 90000.0  # more than a half can hold


def test_only_ops_that_move_say_so() -> None:
    """Whoever computes in the type of its operands would round halves at every step."""
    assert Convert().keeps_elements
    assert Slice(starts=(0,), stops=(1,), steps=(1,)).keeps_elements
    assert not Pointwise(fn="mul").keeps_elements
    assert not Pad(padding=((0, 1),)).keeps_elements  # its number may be more than a half can hold


@pytest.mark.parametrize("dtype", [gd.float16, gd.bfloat16, gd.float32, gd.float64], ids=str)
@pytest.mark.parametrize("fn", ["add", "sub", "mul", "div", "pow", "minimum", "maximum", "greater", "relu", "exp"])
@pytest.mark.parametrize("other", [gd.float32, None], ids=["float32", "alike"])
def test_weights_are_computed_in_one_call_with_the_same_bits(
    fn: str, dtype: gd.DType, other: gd.DType | None, rng: np.random.Generator
) -> None:
    row = FUNCTIONS[fn]
    types = [TensorType((33, 65, 3), dtype), TensorType((33, 1, 1), other or dtype)][: row.arity]
    arrays = [(4 * rng.standard_normal(t.shape)).astype(t.dtype.numpy) for t in types]
    arrays[0][0, 0] = np.inf, -np.inf, np.nan
    arrays[0][0, 1] = 6e4, -6e4, 1e-7
    result = TensorType((33, 65, 3), row.gives or dtype)
    sources = tuple(Payload(t, a) for t, a in zip(types, arrays, strict=True))
    made = Payload(result, compute=Compute(Pointwise(fn=fn), sources, tuple(types))).array()
    wanted = apply(Pointwise(fn=fn), arrays, [result])[0]
    assert made.dtype == wanted.dtype
    np.testing.assert_array_equal(np.isnan(made), np.isnan(wanted))
    known = ~np.isnan(wanted)
    assert made[known].tobytes() == wanted[known].tobytes()
