"""Plans made of one handwritten kernel each, so that the runtime is tested without the engines."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch

import graphdnn as gd
from graphdnn.errors import ExecutionError
from graphdnn.ir.graph import Graph
from graphdnn.ir.region import Region
from graphdnn.ir.types import TensorType
from graphdnn.runtime.device import CudaDevice
from graphdnn.runtime.program import Program
from graphdnn.runtime.schedule import Step, schedule

SHAPE = (33, 65)

BODIES = {
    "mul": "y[i] = a[i] * b[i % m];",
    "add": "y[i] = a[i] + b[i % m];",
    "sub": "y[i] = a[i] - b[i % m];",
    "relu": "y[i] = a[i] > 0.f ? a[i] : 0.f;",
    "neg": "y[i] = -a[i];",
    "identity": "y[i] = a[i];",
    # Some milliseconds, so that what does not wait for it is seen to have been too early.
    "square": "long long start = clock64(); while (clock64() - start < 40000000) {} y[i] = a[i] * a[i];",
    "abs": "*(volatile int*)0x10 = 1;",
}
"""What a kernel does for element i of n; b repeats after m elements, and abs faults on purpose."""


@cache
def kernel(source: str, ordinal: int) -> object:
    from cuda.bindings import driver, nvrtc

    def good(result: tuple) -> object:
        assert int(result[0]) == 0, result
        return result[1] if len(result) > 1 else None

    device = CudaDevice.current(ordinal)
    program = good(nvrtc.nvrtcCreateProgram(source.encode(), b"test.cu", 0, [], []))
    flag = f"--gpu-architecture={device.target.arch}".encode()
    (status,) = nvrtc.nvrtcCompileProgram(program, 1, [flag])
    assert int(status) == 0
    cubin = bytearray(good(nvrtc.nvrtcGetCUBINSize(program)))
    good(nvrtc.nvrtcGetCUBIN(program, cubin))
    with device:
        library = good(driver.cuLibraryLoadData(bytes(cubin), [], [], 0, [], [], 0))
        return good(driver.cuKernelGetFunction(good(driver.cuLibraryGetKernel(library, b"run"))))


class Handwritten:
    """Launches one kernel over `count` elements with the region's addresses as its arguments."""

    workspace_bytes = 0
    kernels = 1

    def __init__(self, source: str, count: int, device: CudaDevice, in_place: tuple[tuple[int, int], ...] = ()) -> None:
        self._function = kernel(source, device.ordinal)
        self._launch = device.driver.cuLaunchKernel
        self._blocks = -(-count // 128)
        self.in_place = in_place

    def enqueue(self, addresses: Sequence[int], stream: int, workspace: int) -> None:
        values = [ctypes.c_uint64(a) for a in addresses]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        shape = (self._blocks, 1, 1, 128, 1, 1, 0)
        (status,) = self._launch(self._function, *shape, stream, ctypes.addressof(pointers), 0)
        if status:
            raise ExecutionError(f"the driver refused the launch with {status.name}")


def pointwise(region: Region, device: CudaDevice) -> Handwritten:
    """A float32 region of one pointwise node over dense operands; an immediate becomes a literal."""
    (node,) = region.nodes
    y = node.result.type
    parameters, body, repeat = [], BODIES[node.op.label], 1
    for name, value in zip("ab", node.operands, strict=False):
        if value.literal is None:
            parameters.append(f"const float* {name}")
            repeat = value.type.size
        else:
            body = body.replace(f"{name}[i % m]", f"({float(value.literal)}f)")
    source = f"""extern "C" __global__ void run({", ".join([*parameters, "float* y"])}) {{
        const int n = {y.size}, m = {repeat};
        const int i = blockIdx.x * 128 + threadIdx.x;
        if (i < n) {{ {body} }}
    }}"""
    return Handwritten(source, y.size, device, ((0, 0),))


def converting(device: CudaDevice) -> Callable[[TensorType, TensorType], Handwritten]:
    """Builds plans that copy a float32 tensor from one layout into another, element by element."""

    def build(source: TensorType, target: TensorType) -> Handwritten:
        steps, rest = [], "i"
        for extent, a, b in reversed(list(zip(source.shape, source.layout, target.layout, strict=True))):
            steps.append((f"({rest}) % {extent} * {a}", f"({rest}) % {extent} * {b}"))
            rest = f"({rest}) / {extent}"
        read, write = (" + ".join(s[k] for s in steps) or "0" for k in (0, 1))
        text = f"""extern "C" __global__ void run(const float* a, float* y) {{
            const int i = blockIdx.x * 128 + threadIdx.x;
            if (i < {source.size}) y[{write}] = a[{read}];
        }}"""
        return Handwritten(text, source.size, device)

    return build


def program(graph: Graph, device: CudaDevice) -> Program:
    """Every node as a kernel of its own."""
    regions = [Region.of(graph, [n]) for n in graph.nodes]
    steps = [Step(r, pointwise(r, device), name=f"handwritten:{r.pattern}") for r in regions]
    return Program(graph, schedule(graph, steps), device, converting(device))


def affine(shape: tuple[int, ...] = (33, 65), slow: bool = False) -> Graph:
    """h = x * w + 1; y = max(h, 0); z = -h.  With `slow`, z = h * h takes milliseconds."""
    g = gd.GraphBuilder("affine")
    x = g.input("x", shape, gd.float32)
    w = g.constant(np.arange(shape[-1], dtype=np.float32) / 8, name="w")
    h = g.add(g.mul(x, w), 1.0)
    return g.build({"y": g.relu(h), "z": g.square(h) if slow else g.neg(h)})


def expected(x: np.ndarray) -> dict[str, np.ndarray]:
    h = x * (np.arange(x.shape[-1], dtype=np.float32) / 8) + 1
    return {"y": np.maximum(h, 0), "z": -h}


def draw(rng: np.random.Generator, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def check(found: dict, x: np.ndarray) -> None:
    """The outputs of `affine`, on the host, as PyTorch's or as our own arrays."""
    for name, array in expected(x).items():
        got = found[name]
        if isinstance(got, torch.Tensor):
            got = got.cpu()
        got = np.asarray(got) if isinstance(got, np.ndarray | torch.Tensor) else got.numpy()
        np.testing.assert_allclose(got, array, rtol=1e-6, atol=1e-6)


def poison(device: CudaDevice, address: int, type: TensorType) -> None:
    """NaN in every element."""
    device.fill(address, 0xFF, type.span_bytes, device.stream)
    device.synchronize()
