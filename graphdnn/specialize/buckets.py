"""Sizes rounded up so that few builds serve many shapes: the rules, and how arrays are lengthened and results cut."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from graphdnn.errors import CompileError, ExecutionError
from graphdnn.ir.types import Array, TensorType
from graphdnn.runtime.arrays import DeviceArray, empty
from graphdnn.runtime.dlpack import ON_HOST
from graphdnn.specialize.signature import Form
from graphdnn.spelling import counted, quoted

Rule = str | int | Sequence[int]
"""What sizes an axis may have: "pow2", the multiples of a number, or those of a list."""

Buckets = Mapping[str, Mapping[int, Rule]]
"""Rules by parameter and axis."""


def checked_buckets(who: str, buckets: Any, parameters: Sequence[str]) -> Buckets:
    """A caller's rules.  Raises CompileError naming the parameter and the axis whose rule cannot be."""
    if not isinstance(buckets, Mapping) or not all(isinstance(axes, Mapping) for axes in buckets.values()):
        raise CompileError(
            f'jit: buckets are {quoted(buckets)}; rules by parameter and axis, {{"x": {{0: "pow2"}}}}, are needed'
        )
    for name, axes in buckets.items():
        check_parameter("buckets", name, who, parameters)
        for axis, rule in axes.items():
            if not is_whole(axis):
                raise CompileError(
                    f"jit: buckets of {name} are given for axis {quoted(axis)}; a whole number is needed"
                )
            if not is_rule(rule):
                raise CompileError(
                    f'jit: buckets of axis {axis} of {name} are {quoted(rule)}; "pow2", a number whose multiples are '
                    "meant, or ascending sizes are needed"
                )
    return {
        name: {axis: rule if isinstance(rule, str | int) else tuple(rule) for axis, rule in axes.items()}
        for name, axes in buckets.items()
    }


def check_parameter(what: str, name: str, who: str, parameters: Sequence[str]) -> None:
    """Raises CompileError where a jitted function has no parameter of a name that something is given for."""
    if name not in parameters:
        raise CompileError(
            f"jit: {what} are given for {name}; {who} has the parameters {', '.join(parameters) or 'none'}"
        )


def is_whole(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def is_rule(rule: Any) -> bool:
    if isinstance(rule, str):
        return rule == "pow2"
    if isinstance(rule, list | tuple):
        return bool(rule) and all(is_whole(n) and n > 0 for n in rule) and all(map(int.__lt__, rule, rule[1:]))
    return is_whole(rule) and rule > 0


def rounded_up(size: int, rule: Rule) -> int:
    """The least size of the rule that is not below `size`; beyond the end of a list the multiples of its last."""
    if isinstance(rule, str):
        return 1 << (size - 1).bit_length()
    if isinstance(rule, int):
        return -(-size // rule) * rule
    place = bisect_left(rule, size)
    return rule[place] if place < len(rule) else -(-size // rule[-1]) * rule[-1]


def axes_of(name: str, axes: Mapping[int, Rule], rank: int) -> dict[int, Rule]:
    """The rules by axes counted from the front.  Raises ExecutionError for an axis that an array lacks, or that has
    two rules."""
    for axis in axes:
        if not -rank <= axis < rank:
            raise ExecutionError(f"input {name} has {counted(rank, 'axis')}; buckets are given for its axis {axis}")
        if axis < 0 and axis + rank in axes:
            raise ExecutionError(
                f"input {name} has {counted(rank, 'axis')}; buckets are given for its axis {axis + rank} and, counted "
                f"from the end, again for axis {axis}"
            )
    return {axis % rank: rule for axis, rule in axes.items()}


def lengthened(name: str, form: Form, axes: Mapping[int, Rule]) -> Form:
    """The form with its extents rounded up."""
    dtype, shape, order = form
    sizes = list(shape)
    for axis, rule in axes_of(name, axes, len(sizes)).items():
        sizes[axis] = rounded_up(sizes[axis], rule)
    return (dtype, tuple(sizes), order)


def shortened(name: str, form: Form, axes: Mapping[int, Rule]) -> Form:
    """A lengthened form with each extent one less, where the rules would round that up to the same form."""
    dtype, shape, order = form
    sizes = list(shape)
    for axis, rule in axes_of(name, axes, len(sizes)).items():
        sizes[axis] = max(sizes[axis] - 1, least_rounded_to(sizes[axis], rule))
    return (dtype, tuple(sizes), order)


def spread(name: str, form: Form, axes: Mapping[int, Rule], shares: Iterator[float]) -> Form:
    """A lengthened form with other extents that the rules round up to it: from the least, for a share of 0, up to the
    same for one of 1, by the next of `shares` for each axis."""
    dtype, shape, order = form
    sizes = list(shape)
    for axis, rule in axes_of(name, axes, len(sizes)).items():
        least = least_rounded_to(sizes[axis], rule)
        sizes[axis] = least + int((sizes[axis] - least) * next(shares))
    return (dtype, tuple(sizes), order)


def least_rounded_to(size: int, rule: Rule) -> int:
    """The least size that a rule rounds up to this one, which is a size of the rule."""
    if isinstance(rule, str):
        return size // 2 + 1
    if isinstance(rule, int):
        return size - rule + 1
    place = bisect_left(rule, size)
    if place == len(rule):
        return size - rule[-1] + 1
    return rule[place - 1] + 1 if place else 1


def lies_on_host(array: Any) -> bool:
    """Whether an array is in host memory, as far as it says where it is."""
    if isinstance(array, np.ndarray | np.generic):
        return True
    where = getattr(array, "__dlpack_device__", None)
    return where is not None and where()[0] in ON_HOST


def padded(array: Any, type: TensorType) -> Array:
    """A host array at the leading corner of a larger one, with zeros behind it."""
    if not isinstance(array, np.ndarray):
        from graphdnn.runtime.reading import read

        array = read(array, 0, None).array
    larger = empty(type)
    larger[...] = np.zeros((), larger.dtype)
    larger[corner_of(array.shape)] = array
    return larger


def cut(array: Any, shape: tuple[int, ...]) -> Any:
    """The leading corner of an array, in the same memory."""
    if not isinstance(array, DeviceArray):
        return array[corner_of(shape)]
    type = TensorType(shape, array.dtype, array.strides)
    return array.viewed(type)


def corner_of(shape: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(map(slice, shape))
