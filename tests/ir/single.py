"""One call of the builder on arrays, by the numpy definition: what the tests of definitions compare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import graphdnn as gd
from graphdnn.ir.graph import Value
from graphdnn.ir.types import Array, as_dtype


def evaluated(call: Callable[..., Value], *arrays: Array, dtype: gd.DType | None = None) -> Array:
    """`call(builder, *values)` evaluated, with one input for each array."""
    builder = gd.GraphBuilder("single")
    values = [builder.input(f"i{n}", a.shape, as_dtype(a.dtype)) for n, a in enumerate(arrays)]
    graph = builder.build({"y": call(builder, *values)})
    return gd.evaluate(graph, {f"i{n}": a for n, a in enumerate(arrays)}, dtype=dtype)["y"]


def inferred(call: Callable[..., Value], *types: tuple[tuple[int, ...], gd.DType]) -> gd.TensorType:
    """Type of `call(builder, *values)` for inputs of these shapes and types."""
    builder = gd.GraphBuilder("single")
    return call(builder, *(builder.input(f"i{n}", shape, dtype) for n, (shape, dtype) in enumerate(types))).type


def torch_type(dtype: gd.DType) -> torch.dtype:
    """PyTorch's name of a data type; the names are the same."""
    found: torch.dtype = getattr(torch, dtype.name)
    return found


def tensor(array: Array) -> torch.Tensor:
    """An array as PyTorch has it; bfloat16 goes through float32."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.astype(np.float32)).bfloat16()
    return torch.from_numpy(np.ascontiguousarray(array))


def array(found: torch.Tensor) -> Array:
    """A tensor as numpy has it; bfloat16 comes back as float32."""
    plain: Any = found.float() if found.dtype == torch.bfloat16 else found
    return np.asarray(plain.numpy())
