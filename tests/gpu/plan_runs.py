"""Every plan that the engines offer for a region on the device, run on given data; unknown ones in a child first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from graphdnn.answer import Decline
from graphdnn.engines.contract import Candidate, DevicePlan, HostPlan, Policy, Support
from graphdnn.engines.manifest import BY_KIND, MANIFEST, load_engine
from graphdnn.ir.graph import Value
from graphdnn.ir.region import Region
from graphdnn.ir.types import Array, TensorType
from graphdnn.runtime.arrays import empty
from graphdnn.runtime.device import CudaDevice
from graphdnn.runtime.probe import ChildProber


@dataclass(frozen=True)
class Offered:
    """A plan that was built, or why it was not."""

    candidate: Candidate
    plan: DevicePlan | Decline

    def __str__(self) -> str:
        known = "" if self.candidate.is_known else " (unknown)"
        return f"{self.candidate.engine} {self.candidate.name}{known}"


def offered(device: CudaDevice, region: Region, policy: Policy, each: int = 10**6) -> Iterator[Offered]:
    """The plans of all engines, of cuDNN at most `each` of one engine number.  The device must be current."""
    with ChildProber(MANIFEST, device, policy, {}) as prober:
        for name in BY_KIND["cuda"]:
            engine = load_engine(name)
            if not isinstance(engine.supports(region, device.target, policy), Support):
                continue
            candidates = engine.candidates(region, device, policy)
            if isinstance(candidates, Decline):
                print(f"    {name}: {candidates}")
                continue
            count: dict[str, int] = {}
            for one in candidates:
                head = one.name.split("_")[0] if name == "cudnn" else one.name
                count[head] = count.get(head, 0) + 1
                if count[head] > each:
                    continue
                refusal = None if one.is_known else prober.probe(region, name, one.name)
                plan = refusal if refusal is not None else engine.build(one, device)
                assert not isinstance(plan, HostPlan)
                yield Offered(one, plan)


class Stage:
    """A region's inputs on the device, and memory for its outputs."""

    def __init__(self, device: CudaDevice, region: Region, arrays: Mapping[str, Array]) -> None:
        self._device = device
        self._region = region
        self._inputs = [device.allocate(v.type.span_bytes) for v in region.inputs]
        self._outputs = [device.allocate(v.type.span_bytes) for v in region.outputs]
        for memory, value in zip(self._inputs, region.inputs, strict=True):
            host = empty(laid_out(value))
            np.copyto(host, arrays[value.name])
            device.write(memory.handle, host.ctypes.data, value.type.span_bytes)

    def run(self, plan: DevicePlan, poison: int = 0xFF) -> dict[Value, Array]:
        """The outputs of one run, whose memory and workspace held `poison` before."""
        device, region = self._device, self._region
        workspace = device.allocate(max(plan.workspace_bytes, 1))
        device.fill(workspace.handle, poison, max(plan.workspace_bytes, 1), device.stream)
        for memory, value in zip(self._outputs, region.outputs, strict=True):
            device.fill(memory.handle, poison, value.type.span_bytes, device.stream)
        addresses = [m.handle for m in (*self._inputs, *self._outputs)]
        plan.enqueue(addresses, device.stream, workspace.handle)
        device.synchronize()
        found = {}
        for memory, value in zip(self._outputs, region.outputs, strict=True):
            host = empty(laid_out(value))
            device.download(host.ctypes.data, memory.handle, value.type.span_bytes, device.stream)
            device.synchronize()
            found[value] = host
        return found


def laid_out(value: Value) -> TensorType:
    return value.type.with_strides(value.type.layout)
