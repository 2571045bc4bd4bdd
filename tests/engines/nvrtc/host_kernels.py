"""Generated kernels run on the host: the same text through the system's C++ compiler, thread after thread.

For kernels whose threads wait for one another once at most, and may do twice what they do before that: all threads of a
block run up to there, then all from the beginning.  What PTX says in the prelude is said in C++ here.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from graphdnn.answer import Decline
from graphdnn.engines.nvrtc.emit import prelude
from graphdnn.engines.nvrtc.engine import family_of
from graphdnn.engines.nvrtc.recipe import Kernel
from graphdnn.ir.graph import Value
from graphdnn.ir.region import Region
from graphdnn.ir.types import Array, TensorType
from graphdnn.target import Target
from tests.numbers import TOLERANCE, relative_error

H200 = Target.named("h200")
COMPILER = shutil.which("g++") or shutil.which("c++")

SHIMS = """
#include <climits>
#include <cmath>
#include <cstring>
#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(n)
#define __shared__ static
using namespace std;
struct { unsigned x; } blockIdx, threadIdx;
struct Wait {};
bool waiting;
void __syncthreads() { if (waiting) throw Wait{}; }
template <class To, class From> To same_bits(From x) { To y; memcpy(&y, &x, sizeof y); return y; }
float __uint_as_float(unsigned x) { return same_bits<float>(x); }
unsigned __float_as_uint(float x) { return same_bits<unsigned>(x); }
double __longlong_as_double(long long x) { return same_bits<double>(x); }
// Conversions to integers stop at the ends of their range; of NaN a device makes what the kernels must not rely on.
template <class T> T held(double x, double beyond, T low, T high) {
    return x != x ? (T)1 : x >= beyond ? high : x < -beyond ? low : (T)x;
}
int __float2int_rz(float x) { return x != x ? 0 : held<int>(x, 2147483648., INT_MIN, INT_MAX); }
int __double2int_rz(double x) { return held<int>(x, 2147483648., INT_MIN, INT_MAX); }
long long __float2ll_rz(float x) { return held<long long>(x, 9223372036854775808., LLONG_MIN, LLONG_MAX); }
long long __double2ll_rz(double x) { return held<long long>(x, 9223372036854775808., LLONG_MIN, LLONG_MAX); }
float __double2float_rz(double x) {
    float y = (float)x;
    return fabs((double)y) > fabs(x) ? nextafterf(y, 0.f) : y;
}
unsigned short bfloat(float x) {
    unsigned bits = __float_as_uint(x);
    return x != x ? 0x7fff : (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
"""

PTX = {
    r'asm\("cvt.f32.f16 [^;]*;" : "=f"\(y\) : "h"\(x.bits\)\);': "y = (float)same_bits<_Float16>(x.bits);",
    r'asm\("cvt.rn.f16.f32 [^;]*;" : "=h"\(y.bits\) : "f"\(x\)\);': "y.bits = same_bits<unsigned short>((_Float16)x);",
    r'asm\("cvt.rn.f16.f64 [^;]*;" : "=h"\(y.bits\) : "d"\(x\)\);': "y.bits = same_bits<unsigned short>((_Float16)x);",
    r'asm\("cvt.rn.bf16.f32 [^;]*;" : "=h"\(y.bits\) : "f"\(x\)\);': "y.bits = bfloat(x);",
}


def kernel_of(region: Region) -> Kernel:
    """The one kernel that is generated for a region."""
    family = family_of(region)
    assert not isinstance(family, Decline), family
    (kernel,) = family.generate(region, H200).kernels
    return kernel


def check_outputs(region: Region, found: Mapping[Value, Array], wanted: Mapping[str, Array], case: str) -> None:
    """What a kernel gave beside what the definition gives: floats within the tolerance, all else equal."""
    for name, value in region.graph.outputs.items():
        dtype = value.type.dtype
        if not dtype.is_float:
            np.testing.assert_array_equal(found[value], wanted[name], err_msg=f"{case}: {name}")
            continue
        assert relative_error(found[value], wanted[name]) <= TOLERANCE[dtype.name], f"{case}: {name}"


class HostKernels:
    """Some kernels compiled into one library."""

    def __init__(self, kernels: Mapping[str, Kernel], folder: Path) -> None:
        assert COMPILER is not None, "no C++ compiler was found"
        text = prelude()
        for ptx, plain in PTX.items():
            text, count = re.subn(ptx, plain, text)
            assert count == 1, f"the prelude has no {ptx}"
        names = {name: f"kernel_{i}" for i, name in enumerate(kernels)}
        bodies = [wrapped(names[name], kernel) for name, kernel in kernels.items()]
        path = folder / "kernels.cpp"
        path.write_text("\n".join((SHIMS, text, *bodies)))
        options = ["-std=c++17", "-O0", "-w", "-shared", "-fPIC", "-fno-strict-aliasing"]
        subprocess.run([COMPILER, *options, "-o", folder / "kernels.so", path], check=True)
        library = ctypes.CDLL(str(folder / "kernels.so"))
        self.kernels = kernels
        self.functions = {name: getattr(library, f"run_{plain}") for name, plain in names.items()}

    def run(self, name: str, region: Region, arrays: Mapping[str, Array], shift: int = 0) -> dict[Value, Array]:
        """Outputs of a region, whose inputs are found by name; outputs are all ones before, NaN for floats.

        Every address lies `shift` bytes off a boundary.  Fails where something beside an output was written.
        """
        kernel = self.kernels[name]
        memories = [memory(v.type, arrays[v.name], shift) for v in region.inputs]
        memories += [memory(v.type, None, shift) for v in region.outputs]
        addresses = (ctypes.c_void_p * len(memories))(*(viewed.ctypes.data for _, viewed in memories))
        self.functions[name](addresses, kernel.grid[0], kernel.block[0])
        for (whole, viewed), value in zip(memories, (*region.inputs, *region.outputs), strict=True):
            untouched(whole, viewed, value.type)
        return {v: viewed.copy() for v, (_, viewed) in zip(region.outputs, memories[len(region.inputs) :], strict=True)}


def wrapped(name: str, kernel: Kernel) -> str:
    """A kernel under a name of its own, and a function that runs all its threads."""
    body = kernel.source.removeprefix(prelude())
    found = re.search(rf"\b{kernel.entry}\((.*?)\) \{{", body)
    assert found is not None
    types = [re.sub(r" (__restrict__ )?p\d+$", "", p) for p in found.group(1).split(", ")]
    arguments = ", ".join(f"({t})p[{i}]" for i, t in enumerate(types))
    return "\n".join(
        (
            f"namespace of_{name} {{",
            body.replace(f" {kernel.entry}(", f" {name}(", 1),
            "}",
            f'extern "C" void run_{name}(void** p, unsigned blocks, unsigned threads) {{',
            f"using namespace of_{name};",
            "for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x)",
            f"for (int last = {'0' if '__syncthreads' in body else '1'}; last < 2; ++last)",
            "for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) {",
            f"waiting = !last; try {{ {name}({arguments}); }} catch (Wait) {{}}",
            "}",
            "}",
        )
    )


def memory(type: TensorType, array: Array | None, shift: int) -> tuple[Array, Array]:
    """All ones with the array's elements at their strides: the bytes, and the tensor in them."""
    size = type.dtype.itemsize
    whole = np.full(type.extent * size + 256, 0xFF, np.uint8)
    start = -whole.ctypes.data % 64 + 64 + shift
    flat = whole[start : start + type.extent * size].view(type.dtype.numpy)
    viewed = type.strided(flat)
    if array is not None:
        viewed[...] = array
    return whole, viewed


def untouched(whole: Array, viewed: Array, type: TensorType) -> None:
    """Fails where anything beside the tensor's elements was written."""
    size = type.dtype.itemsize
    start = viewed.ctypes.data - whole.ctypes.data
    own = np.zeros(type.extent, bool)
    type.strided(own)[...] = True
    rest = np.ones(whole.size, bool)
    rest[start : start + type.extent * size] = ~np.repeat(own, size)
    assert (whole[rest] == 0xFF).all(), "something was written beside the tensor"
