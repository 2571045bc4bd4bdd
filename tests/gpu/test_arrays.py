"""DLPack and the CUDA array interface with PyTorch and CuPy on the device: no copies, either way."""

import numpy as np
import pytest
import torch

from graphdnn.ir.types import DTYPES, DType, TensorType, bfloat16, dense_strides
from graphdnn.runtime.arrays import DeviceArray, StreamOrder, empty
from graphdnn.runtime.device import CudaDevice
from graphdnn.runtime.driver import LEGACY_STREAM
from graphdnn.runtime.reading import read

pytestmark = pytest.mark.gpu

SHAPES = [(), (1,), (7,), (3, 65), (2, 1, 23), (4, 3, 5, 7)]


def numbers(shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    return np.asarray(np.arange(int(np.prod(shape))) % 5 + 1).reshape(shape).astype(dtype.numpy)


def made(device: CudaDevice, type: TensorType, array: np.ndarray) -> DeviceArray:
    host = empty(type)
    host[...] = array
    memory = device.allocate(type.span_bytes)
    device.write(memory.handle, host.ctypes.data, type.span_bytes)
    return DeviceArray(type, memory, StreamOrder(device), device)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_round_trip_through_torch(device: CudaDevice, shape: tuple[int, ...], dtype: DType) -> None:
    wanted = numbers(shape, dtype)
    for order in (range(len(shape)), reversed(range(len(shape)))):
        type = TensorType(shape, dtype, dense_strides(shape, list(order)))
        array = made(device, type, wanted)
        tensor = torch.from_dlpack(array)
        assert tensor.is_cuda
        assert tensor.dtype == getattr(torch, dtype.name)
        assert (tensor.data_ptr(), tuple(tensor.shape)) == (array._address, shape)
        np.testing.assert_array_equal(tensor.cpu().double().numpy(), wanted.astype(np.float64))
        with device:
            source = read(tensor, LEGACY_STREAM, device)
        assert (source.address, source.shape, source.dtype, source.ordinal) == (array._address, shape, dtype, 0)
        assert source.lies_as(type)
        np.testing.assert_array_equal(array.numpy().astype(np.float64), wanted.astype(np.float64))


@pytest.mark.parametrize("dtype", [t for t in DTYPES.values() if t != bfloat16], ids=str)
def test_round_trip_through_cupy(device: CudaDevice, dtype: DType) -> None:
    import cupy

    wanted = numbers((3, 65), dtype)
    array = made(device, TensorType((3, 65), dtype, (1, 3)), wanted)
    for taken in (cupy.from_dlpack(array), cupy.asarray(array)):
        assert taken.data.ptr == array._address
        np.testing.assert_array_equal(cupy.asnumpy(taken), wanted)
    theirs = cupy.asarray(wanted)[:, ::2]
    with device:
        source = read(theirs, LEGACY_STREAM, device)
        interface = read(InterfaceOnly(theirs), LEGACY_STREAM, device)
    for found in (source, interface):
        assert (found.address, found.shape, found.dtype) == (theirs.data.ptr, (3, 33), dtype)
        assert found.strides == (65, 2)
        assert found.ordinal == 0


class InterfaceOnly:
    """An array that knows the CUDA array interface and nothing else."""

    def __init__(self, array: object) -> None:
        self.__cuda_array_interface__ = array.__cuda_array_interface__


def test_memory_outlives_our_array(device: CudaDevice) -> None:
    wanted = numbers((300, 129), DTYPES["float32"])
    tensor = torch.from_dlpack(made(device, TensorType((300, 129), DTYPES["float32"]), wanted))
    for _ in range(20):
        made(device, TensorType((300, 129), DTYPES["float32"]), 0 * wanted)
    np.testing.assert_array_equal(tensor.cpu().numpy(), wanted)


def test_copies_and_the_cpu(device: CudaDevice) -> None:
    wanted = numbers((3, 65), DTYPES["float16"])
    array = made(device, TensorType((3, 65), DTYPES["float16"]), wanted)
    host = torch.from_dlpack(array.__dlpack__(dl_device=(1, 0)))
    assert not host.is_cuda
    np.testing.assert_array_equal(host.numpy(), wanted)
    copied = torch.from_dlpack(array.__dlpack__(copy=True, stream=1))
    assert copied.data_ptr() != array._address
    np.testing.assert_array_equal(copied.cpu().numpy(), wanted)
