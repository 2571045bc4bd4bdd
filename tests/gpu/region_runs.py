"""Runs one region on the device through an engine: outputs poisoned, guard bands around them, addresses shifted."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

import graphdnn as gd
from graphdnn.answer import Decline
from graphdnn.engines.contract import DevicePlan, Engine, HostPlan, Policy
from graphdnn.engines.nvrtc.engine import NvrtcEngine
from graphdnn.ir.graph import Value
from graphdnn.ir.region import Region
from graphdnn.ir.types import Array, DType, TensorType
from graphdnn.runtime.device import CudaDevice
from tests.numbers import TOLERANCE, relative_error, rows_of

GUARD = 512
POISON = 0xFF
"""Every float of such bytes is NaN."""


@dataclass(frozen=True)
class Placed:
    """Device memory of one tensor: `shift` bytes behind a 256-byte boundary, between two guard bands."""

    device: CudaDevice
    type: TensorType
    shift: int

    @property
    def nbytes(self) -> int:
        return self.type.extent * self.type.dtype.itemsize

    def filled(self, array: Array | None) -> "Filled":
        """The memory with the array's elements at their strides, poison everywhere else."""
        whole = np.full(2 * GUARD + self.shift + self.nbytes, POISON, np.uint8)
        if array is not None:
            self.view(whole)[...] = array
        memory = self.device.allocate(whole.nbytes)
        self.device.write(memory.handle, whole.ctypes.data, whole.nbytes)
        return Filled(self, memory, memory.handle + GUARD + self.shift)

    def view(self, whole: Array) -> Array:
        start = GUARD + self.shift
        return self.type.strided(whole[start : start + self.nbytes].view(self.type.dtype.numpy))


@dataclass(frozen=True)
class Filled:
    """Such memory on the device."""

    placed: Placed
    memory: object
    address: int

    def seen_as(self, type: TensorType) -> "Filled":
        """The same memory as that of a tensor of another shape and as many bytes."""
        assert type.extent * type.dtype.itemsize == self.placed.nbytes
        return replace(self, placed=replace(self.placed, type=type))

    def read(self) -> Array:
        """The tensor.  Fails where anything was written beside its elements."""
        device, type = self.placed.device, self.placed.type
        whole = np.empty(2 * GUARD + self.placed.shift + self.placed.nbytes, np.uint8)
        device.download(whole.ctypes.data, self.address - GUARD - self.placed.shift, whole.nbytes, device.stream)
        device.synchronize()
        found = self.placed.view(whole).copy()
        elsewhere = np.ones(whole.size, bool)
        own = np.zeros(type.extent, bool)
        type.strided(own)[...] = True
        start = GUARD + self.placed.shift
        elsewhere[start : start + self.placed.nbytes] = ~np.repeat(own, type.dtype.itemsize)
        assert (whole[elsewhere] == POISON).all(), "something was written beside the tensor"
        return found


def built(engine: Engine, region: Region, device: CudaDevice) -> DevicePlan:
    """The engine's first plan for a region."""
    with device:
        candidates = engine.candidates(region, device, Policy())
        assert not isinstance(candidates, Decline), candidates
        plan = engine.build(candidates[0], device)
    assert not isinstance(plan, Decline), plan
    assert not isinstance(plan, HostPlan)
    return plan


def run_region(
    device: CudaDevice,
    region: Region,
    arrays: Mapping[str, Array],
    shift: int = 0,
    engine: Engine | None = None,
    pair: tuple[int, int] | None = None,
) -> dict[Value, Array]:
    """Outputs of the region, whose inputs are found by name; every address lies `shift` bytes off a boundary.

    The input and the output of `pair` are one memory.
    """
    plan = built(engine or NvrtcEngine(), region, device)
    with device:
        ins = [Placed(device, v.type, shift).filled(arrays[v.name]) for v in region.inputs]
        outs = [Placed(device, v.type, shift).filled(None) for v in region.outputs]
        if pair is not None:
            outs[pair[1]] = ins[pair[0]].seen_as(region.outputs[pair[1]].type)
        workspace = device.allocate(plan.workspace_bytes)
        plan.enqueue([p.address for p in (*ins, *outs)], device.stream, workspace.handle)
        device.synchronize()
        return {v: p.read() for v, p in zip(region.outputs, outs, strict=True)}


def check_region(
    device: CudaDevice,
    region: Region,
    arrays: Mapping[str, Array],
    shift: int = 0,
    scales: Mapping[str, float] | None = None,
) -> None:
    """Runs the region and compares with the float64 evaluation of its graph.

    Errors are relative to the peak, or to the op's own scale where `scales` gives a larger one by output name.
    """
    graph = region.graph
    # What the device sees of an input with stride 0 is what a reader of its memory sees.
    seen = {v.name: settled(v.type, arrays[v.name]) for v in region.inputs}
    found = run_region(device, region, seen, shift)
    wanted = gd.evaluate(graph, {n: seen.get(n, arrays[n]) for n in graph.inputs}, dtype=gd.float64)
    for name, value in graph.outputs.items():
        rows = rows_of(graph, name, arrays)
        scale = max((scales or {}).get(name, 0.0), rows.get("scale", 0.0))
        compare(name, found[value], wanted[name], value.type.dtype, scale, rows.get("axes"))


def check_in_place(device: CudaDevice, region: Region, arrays: Mapping[str, Array], shift: int = 0) -> int:
    """Runs the region once for each pair that its plan offers, the two being one memory; gives the number of pairs."""
    pairs = NvrtcEngine().supports(region, device.target, Policy()).in_place  # type: ignore[union-attr]
    seen = {v.name: settled(v.type, arrays[v.name]) for v in region.inputs}
    wanted = gd.evaluate(region.graph, seen, dtype=gd.float64)
    for pair in pairs:
        found = run_region(device, region, seen, shift, pair=pair)
        for name, value in region.graph.outputs.items():
            compare(f"{name} with {pair} in place", found[value], wanted[name], value.type.dtype)
    return len(pairs)


def settled(type: TensorType, array: Array) -> Array:
    """The array after writing it into memory of that type and reading it back."""
    view = type.strided(np.zeros(type.extent, type.dtype.numpy))
    view[...] = array
    return view


def compare(
    name: str, found: Array, wanted: Array, dtype: DType, scale: float = 0.0, axes: tuple[int, ...] | None = None
) -> None:
    """Exact for integers and bools; for floats NaN and infinities in the same places and the rest within tolerance of
    the peak, with `axes` of each row along them."""
    if not dtype.is_float:
        np.testing.assert_array_equal(found, wanted, err_msg=name)
        return
    with np.errstate(over="ignore"):
        rounded = np.asarray(wanted).astype(dtype.numpy).astype(np.float64)
    got = np.asarray(found).astype(np.float64)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(rounded), err_msg=f"{name}: NaN")
    finite = np.isfinite(rounded)
    outside = ~finite & ~np.isnan(rounded)
    np.testing.assert_array_equal(got[outside], rounded[outside], err_msg=f"{name}: infinities")
    both = (np.where(finite, array, 0.0) for array in (got, np.asarray(wanted, np.float64)))
    error, limit = relative_error(*both, scale, axes), TOLERANCE[dtype.name]
    assert error <= limit, f"{name}: error {error:.3g} of the peak is above {limit:.3g}"
