"""Normalisations: subtract a mean, divide by a deviation, scale and shift.

A norm's result has x's type whatever its parameters' types; statistics are float32 for the halves.
"""

from __future__ import annotations

from math import isfinite

import numpy as np

from graphdnn.errors import GraphError
from graphdnn.ir.graph import Value
from graphdnn.ir.op import Make, Op, op
from graphdnn.ir.ops.movement import Reshape
from graphdnn.ir.ops.pointwise import Pointwise, cast_to, widened
from graphdnn.ir.ops.reduction import Reduce, check_axes, mean
from graphdnn.ir.types import Array, TensorType
from graphdnn.spelling import quoted


class Norm(Op):
    """What the norms share: float operands, each parameter of one shape, a result like x."""

    promotes = False

    def check(self, eps: float, operands: tuple[TensorType, ...], shape: tuple[int, ...]) -> tuple[TensorType, ...]:
        """Type of the result.  Raises GraphError for a type, a parameter's shape or an eps that does not fit."""
        names = self.operand_names
        if len(operands) != len(names):
            raise GraphError(f"{self}: takes {', '.join(names)}, not {len(operands)} operands")
        for name, type in zip(names, operands, strict=True):
            if not type.dtype.is_float:
                raise GraphError(f"{self}: {name} is {type}; a float type is needed, cast it first")
            if name != "x" and type.shape != shape:
                raise GraphError(f"{self}: {name} is {type}, but x is {operands[0]}, so shape {shape} is needed")
        if not (eps >= 0 and isfinite(eps)):
            raise GraphError(f"{self}: eps is {eps}; a finite number, not negative, is needed")
        return (TensorType(operands[0].shape, operands[0].dtype),)


def check_affine(who: str, affine: tuple[str, ...], known: tuple[str, ...]) -> None:
    """Raises GraphError unless `affine` are names out of `known`, each at most once and in that order."""
    if affine != tuple(n for n in known if n in affine):
        raise GraphError(f"{who}: affine is {quoted(affine)}; names out of {known}, in this order, are needed")


def per_channel(x: TensorType, who: str) -> tuple[int, ...]:
    """Shape of a parameter with one entry a channel.  Raises GraphError when x has no channel axis."""
    if x.rank < 2:
        raise GraphError(f"{who}: x is {x}; a batch axis and a channel axis are needed")
    return (x.shape[1],)


def over_axis_1(rank: int, entries: int) -> tuple[int, ...]:
    """Shape in which one entry a channel broadcasts against x."""
    return (1, entries, *(1,) * (rank - 2))


def parameter_shape(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    """`shape` with 1 wherever the axis is not one of `axes`: how parameters over `axes` broadcast against x."""
    return tuple(n if a in axes else 1 for a, n in enumerate(shape))


def standardized(x: Array, axes: tuple[int, ...], eps: float) -> Array:
    """(x - mean) / sqrt(variance + eps) over axes, in float64: a large mean must not eat a small deviation."""
    centred = x - mean(x, axes, True)
    centred /= np.sqrt(mean(centred * centred, axes, True) + eps)
    return centred


def expand_standardized(make: Make, x: Value, axes: tuple[int, ...], eps: float) -> Value:
    """The nodes of `standardized`.

    A float32 mean of 1000 is rounded by up to 3e-5, a ten-thousandth of a deviation of 0.3: so what it is off by, the
    mean of what is left, is subtracted too.  The halves are coarser than that themselves.
    """
    wide = widened(make, x)
    centred = make(Pointwise(fn="sub"), wide, make(Reduce(fn="mean", axes=axes, keepdims=True), wide))
    if wide is not x:
        return expand_scaled_to_one(make, centred, axes, eps)
    off = make(Reduce(fn="mean", axes=axes, keepdims=True), centred)
    power = make(Reduce(fn="mean", axes=axes, keepdims=True), make(Pointwise(fn="square"), centred))
    variance = make(Pointwise(fn="sub"), power, make(Pointwise(fn="square"), off))
    inverse = make(Pointwise(fn="rsqrt"), make(Pointwise(fn="add"), variance, eps))
    return make(Pointwise(fn="mul"), make(Pointwise(fn="sub"), centred, off), inverse)


def expand_scaled_to_one(make: Make, x: Value, axes: tuple[int, ...], eps: float) -> Value:
    """The nodes of x / sqrt(mean of x squared + eps)."""
    power = make(Reduce(fn="mean", axes=axes, keepdims=True), make(Pointwise(fn="square"), x))
    return make(Pointwise(fn="mul"), x, make(Pointwise(fn="rsqrt"), make(Pointwise(fn="add"), power, eps)))


def expand_affine(make: Make, y: Value, affine: dict[str, Value], shape: tuple[int, ...]) -> Value:
    """The nodes of y * scale + bias, whichever of the two there are, each reshaped to `shape`."""
    for name, fn in (("scale", "mul"), ("bias", "add")):
        if name in affine:
            y = make(Pointwise(fn=fn), y, reshaped(make, affine[name], shape))
    return y


def reshaped(make: Make, value: Value, shape: tuple[int, ...]) -> Value:
    """`value` in another shape; itself where it has that shape, or broadcasts to it from the right."""
    padded = (1,) * (len(shape) - value.type.rank) + value.type.shape
    return value if padded == shape else make(Reshape(shape=shape), value)


@op("batch_norm")
class BatchNorm(Norm):
    """y = (x - mean) / sqrt(var + eps) * scale + bias, for each channel (axis 1), with known statistics: inference.

    x is (N, C, ...), the parameters are (C,).  Raises GraphError when a parameter has another shape.
    """

    eps: float

    @property
    def operand_names(self) -> tuple[str, ...]:
        return ("x", "mean", "var", "scale", "bias")

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        return self.check(self.eps, operands, per_channel(operands[0], "batch_norm"))

    def reference(self, x: Array, *parameters: Array) -> tuple[Array, ...]:  # type: ignore[override]
        shape = over_axis_1(x.ndim, x.shape[1])
        mean, var, scale, bias = (p.astype(np.float64).reshape(shape) for p in parameters)
        return ((x - mean) * (scale / np.sqrt(var + self.eps)) + bias,)

    def expand(self, make: Make, x: Value, *parameters: Value) -> tuple[Value, ...]:  # type: ignore[override]
        wide = max((v.type.dtype.compute for v in (x, *parameters)), key=lambda dtype: dtype.bits)
        mean, var, scale, bias = (cast_to(make, p, wide) for p in parameters)
        inverse = make(Pointwise(fn="rsqrt"), make(Pointwise(fn="add"), var, self.eps))
        shape = over_axis_1(x.type.rank, x.type.shape[1])
        columns = [reshaped(make, p, shape) for p in (mean, make(Pointwise(fn="mul"), scale, inverse), bias)]
        y = make(Pointwise(fn="mul"), make(Pointwise(fn="sub"), cast_to(make, x, wide), columns[0]), columns[1])
        return (cast_to(make, make(Pointwise(fn="add"), y, columns[2]), x.type.dtype),)

    def flops(self, operands: tuple[TensorType, ...], results: tuple[TensorType, ...]) -> int:
        """Scale and shift, which the statistics are folded into."""
        return 2 * results[0].size


@op("layer_norm")
class LayerNorm(Norm):
    """y = (x - mean) / sqrt(variance + eps) * scale + bias, statistics over `axes`, population variance.

    scale and bias, those of them that `affine` names, have the shape of x's `axes`.  Raises GraphError otherwise.
    """

    axes: tuple[int, ...]
    eps: float
    affine: tuple[str, ...] = ()

    @property
    def operand_names(self) -> tuple[str, ...]:
        return ("x", *self.affine)

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        check_affine("layer_norm", self.affine, ("scale", "bias"))
        check_axes("layer_norm", self.axes, operands[0])
        return self.check(self.eps, operands, tuple(operands[0].shape[a] for a in self.axes))

    def reference(self, x: Array, *parameters: Array) -> tuple[Array, ...]:  # type: ignore[override]
        y = standardized(x, self.axes, self.eps)
        shape = parameter_shape(x.shape, self.axes)
        affine = {name: p.reshape(shape) for name, p in zip(self.affine, parameters, strict=True)}
        return (y * affine.get("scale", 1) + affine.get("bias", 0),)

    def expand(self, make: Make, x: Value, *parameters: Value) -> tuple[Value, ...]:  # type: ignore[override]
        y = expand_standardized(make, x, self.axes, self.eps)
        affine = dict(zip(self.affine, parameters, strict=True))
        y = expand_affine(make, y, affine, parameter_shape(x.type.shape, self.axes))
        return (cast_to(make, y, x.type.dtype),)

    def flops(self, operands: tuple[TensorType, ...], results: tuple[TensorType, ...]) -> int:
        """Two means, difference, square, product with the inverse root, scale, shift; the root as one for each."""
        return 8 * results[0].size


@op("rms_norm")
class RmsNorm(Norm):
    """y = x / sqrt(mean of x squared + eps) * scale, the mean over `axes`.

    scale, if `affine` names it, has the shape of x's `axes`.  Raises GraphError otherwise.
    """

    axes: tuple[int, ...]
    eps: float
    affine: tuple[str, ...] = ()

    @property
    def operand_names(self) -> tuple[str, ...]:
        return ("x", *self.affine)

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        check_affine("rms_norm", self.affine, ("scale",))
        check_axes("rms_norm", self.axes, operands[0])
        return self.check(self.eps, operands, tuple(operands[0].shape[a] for a in self.axes))

    def reference(self, x: Array, *parameters: Array) -> tuple[Array, ...]:  # type: ignore[override]
        wide = x.astype(np.float64)
        y = wide / np.sqrt(mean(wide * wide, self.axes, True) + self.eps)
        return (y * parameters[0].reshape(parameter_shape(x.shape, self.axes)) if parameters else y,)

    def expand(self, make: Make, x: Value, *parameters: Value) -> tuple[Value, ...]:  # type: ignore[override]
        y = expand_scaled_to_one(make, widened(make, x), self.axes, self.eps)
        affine = dict(zip(self.affine, parameters, strict=True))
        y = expand_affine(make, y, affine, parameter_shape(x.type.shape, self.axes))
        return (cast_to(make, y, x.type.dtype),)

    def flops(self, operands: tuple[TensorType, ...], results: tuple[TensorType, ...]) -> int:
        """Square, mean, product with the inverse root, scale; the root as one for each."""
        return 5 * results[0].size


@op("instance_norm")
class InstanceNorm(Norm):
    """y = (x - mean) / sqrt(variance + eps) * scale + bias over the spatial axes of each sample and channel.

    x is (N, C, *spatial) with at least one spatial axis, scale and bias are (C,).  Raises GraphError otherwise.
    """

    eps: float

    @property
    def operand_names(self) -> tuple[str, ...]:
        return ("x", "scale", "bias")

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        if operands[0].rank < 3:
            raise GraphError(
                f"instance_norm: x is {operands[0]}; batch, channels and at least one spatial axis are needed"
            )
        return self.check(self.eps, operands, per_channel(operands[0], "instance_norm"))

    def reference(self, x: Array, scale: Array, bias: Array) -> tuple[Array, ...]:  # type: ignore[override]
        shape = over_axis_1(x.ndim, x.shape[1])
        y = standardized(x, tuple(range(2, x.ndim)), self.eps)
        return (y * scale.reshape(shape) + bias.reshape(shape),)

    def expand(self, make: Make, x: Value, scale: Value, bias: Value) -> tuple[Value, ...]:  # type: ignore[override]
        y = expand_standardized(make, x, tuple(range(2, x.type.rank)), self.eps)
        y = expand_affine(make, y, {"scale": scale, "bias": bias}, over_axis_1(x.type.rank, x.type.shape[1]))
        return (cast_to(make, y, x.type.dtype),)

    def flops(self, operands: tuple[TensorType, ...], results: tuple[TensorType, ...]) -> int:
        """Two means, difference, square, product with the inverse root, scale, shift; the root as one for each."""
        return 8 * results[0].size


@op("group_norm")
class GroupNorm(Norm):
    """y = (x - mean) / sqrt(variance + eps) * scale + bias over each sample's groups of neighbouring channels.

    x is (N, C, ...), C a multiple of `groups`; statistics take in all axes behind C; scale and bias are (C,).  Raises
    GraphError otherwise.
    """

    groups: int
    eps: float

    @property
    def operand_names(self) -> tuple[str, ...]:
        return ("x", "scale", "bias")

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        shape = per_channel(operands[0], "group_norm")
        if self.groups < 1 or shape[0] % self.groups:
            raise GraphError(f"group_norm: groups={self.groups} does not divide the channels: x is {operands[0]}")
        return self.check(self.eps, operands, shape)

    def grouped(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """x's shape with the channel axis split into (groups, channels of a group)."""
        return (shape[0], self.groups, shape[1] // self.groups, *shape[2:])

    def reference(self, x: Array, scale: Array, bias: Array) -> tuple[Array, ...]:  # type: ignore[override]
        split = x.reshape(self.grouped(x.shape))
        y = standardized(split, tuple(range(2, split.ndim)), self.eps).reshape(x.shape)
        shape = over_axis_1(x.ndim, x.shape[1])
        return (y * scale.reshape(shape) + bias.reshape(shape),)

    def expand(self, make: Make, x: Value, scale: Value, bias: Value) -> tuple[Value, ...]:  # type: ignore[override]
        shape = self.grouped(x.type.shape)
        y = expand_standardized(make, make(Reshape(shape=shape), x), tuple(range(2, len(shape))), self.eps)
        y = expand_affine(make, y, {"scale": scale, "bias": bias}, parameter_shape(shape, (1, 2)))
        return (make(Reshape(shape=x.type.shape), cast_to(make, y, x.type.dtype)),)

    def flops(self, operands: tuple[TensorType, ...], results: tuple[TensorType, ...]) -> int:
        """Two means, difference, square, product with the inverse root, scale, shift; the root as one for each."""
        return 8 * results[0].size
