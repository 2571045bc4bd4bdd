"""What constants hold: arrays, promises to compute one, or the hash of one that is elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from graphdnn.errors import GraphError
from graphdnn.ir.op import Op
from graphdnn.ir.types import Array, TensorType
from graphdnn.lazy import cached_property

SAMPLED = 64
"""Elements that a sample of a constant has, at least where there are so many."""

DIGEST_SHOWN = 12
"""Digits of a digest that a message shows."""


class Payload:
    """What a constant holds: an array, a promise to compute one, or a hash whose array is elsewhere.

    Planning and explaining need `type` and `digest` only; `array()` is asked for when a graph is to run.  `name` is
    what a hash without its array is called where it was read.
    """

    def __init__(
        self,
        type: TensorType,
        array: Array | None = None,
        digest: str | None = None,
        compute: Compute | None = None,
        name: str = "",
    ) -> None:
        self.type = type
        self._name = name
        self._array = None if array is None else np.asarray(array, type.dtype.numpy)
        self._digest = digest
        self._compute = compute

    def __repr__(self) -> str:
        return f"<Payload {self.type}{'' if self.has_data else ', not loaded'}>"

    @property
    def is_settled(self) -> bool:
        """Whether the array is here, and needs no computing."""
        return self._array is not None

    @cached_property
    def has_data(self) -> bool:
        return all(part._compute is not None for part in in_order(self, lambda p: p._array is not None))

    @property
    def digest(self) -> str:
        """SHA-256 over type and content, in hexadecimal; equal constants have equal digests."""
        for part in in_order(self, lambda p: p._digest is not None):
            part._digest = part._own_digest()
        assert self._digest is not None
        return self._digest

    @property
    def sample(self) -> bytes | None:
        """Some of the content, the same for equal constants; None where the data is not here.

        Most constants that differ are told apart by it, without hashing all of them.
        """
        if self._array is None:
            return None
        array = np.atleast_1d(self._array)
        places = np.arange(0, array.size, max(1, array.size // SAMPLED))
        return array[np.unravel_index(places, array.shape)].astype(array.dtype.newbyteorder("=")).tobytes()

    def _own_digest(self) -> str:
        if self._array is not None:
            return content_digest(self._array)
        if self._compute is None:
            raise GraphError(f"a constant of type {self.type} has neither data nor a digest")
        parts = [p.digest if isinstance(p, Payload) else repr(p) for p in self._compute.operands]
        text = f"{self._compute.op!r} {self._compute.index} {' '.join(parts)}"
        return hashlib.sha256(text.encode()).hexdigest()

    def array(self) -> Array:
        """The data, computed once where it was promised.  Raises GraphError where there is only a digest."""
        for part in in_order(self, lambda p: p._array is not None):
            if part._compute is None:
                raise GraphError(
                    f"constant {part._name} of type {part.type} has no data here; Graph.load finds it in the "
                    ".safetensors file beside the document, Graph.from_json and parse take it in constants="
                )
            part._array = part._compute.run(part.type)
        assert self._array is not None
        return self._array


def in_order(payload: Payload, is_settled: Callable[[Payload], bool]) -> list[Payload]:
    """`payload` behind all that it is computed from, without what is settled.

    A list and no recursion: chains of constants may be thousands long, and diamonds of them many paths wide.
    """
    found: dict[Payload, None] = {}
    waiting = [] if is_settled(payload) else [payload]
    while waiting:
        last = waiting[-1]
        parts = last._compute.operands if last._compute is not None and last._array is None else ()
        before = [p for p in parts if isinstance(p, Payload) and p not in found and not is_settled(p)]
        if before:
            waiting.extend(before)
        else:
            found[waiting.pop()] = None
    return list(found)


@dataclass(frozen=True)
class Compute:
    """Result `index` of `op` on constants and Python scalars, evaluated when the data is asked for."""

    op: Op
    operands: tuple[Payload | float, ...]
    operand_types: tuple[TensorType, ...]
    index: int = 0

    def run(self, type: TensorType) -> Array:
        from graphdnn.ir.evaluate import apply, apply_at_once

        with np.errstate(all="ignore"):  # what is too large for a type becomes infinite, here as in a kernel
            arrays = [
                p.array() if isinstance(p, Payload) else np.asarray(p, t.dtype.compute.numpy)
                for p, t in zip(self.operands, self.operand_types, strict=True)
            ]
            # Weights are megabytes: what only moves is not widened and rounded again.
            if self.op.keeps_elements:
                moved = self.op.reference(*arrays)
            elif (found := apply_at_once(self.op, arrays, type)) is not None:
                return found
            else:
                moved = apply(self.op, arrays, result_types=None)
            return np.asarray(moved[self.index]).astype(type.dtype.numpy, copy=False)


def content_digest(array: Array) -> str:
    """SHA-256 over data type, shape and the elements in row-major order."""
    sha = hashlib.sha256(f"{array.dtype.name} {array.shape}".encode())
    native = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    sha.update(native.view(np.uint8).reshape(-1).data)
    return sha.hexdigest()
