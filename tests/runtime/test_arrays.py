"""DLPack both ways against numpy and PyTorch on the CPU, and on a fake device; what arrays are refused."""

import gc

import numpy as np
import pytest
import torch

import graphdnn as gd
from graphdnn.errors import ExecutionError
from graphdnn.ir.types import (
    DTYPES,
    TensorType,
    as_dtype,
    bfloat16,
    bool_,
    channels_last,
    dense_strides,
    float16,
    float32,
    int64,
)
from graphdnn.runtime import dlpack
from graphdnn.runtime.arrays import DeviceArray, StreamOrder, empty
from graphdnn.runtime.buffers import Memory, host_view
from graphdnn.runtime.driver import LEGACY_STREAM, PER_THREAD_STREAM, stream_handle
from graphdnn.runtime.pool import Lease
from graphdnn.runtime.reading import Source, read, read_checked, read_writable
from tests.runtime.fake import POISON, FakeDevice, Foreign

SHAPES = [(), (1,), (7,), (3, 5), (2, 1, 23), (4, 3, 5, 7), (1, 1, 1, 1)]
TORCH = {t: getattr(torch, t.name) for t in DTYPES.values()}


class Exported:
    """CPU memory handed out by our exporter."""

    def __init__(self, array: np.ndarray, versioned: bool) -> None:
        self.array = array
        self.versioned = versioned

    def __dlpack_device__(self) -> tuple[int, int]:
        return (dlpack.CPU, 0)

    def __dlpack__(self, **_: object) -> object:
        steps = [s // self.array.itemsize for s in self.array.strides]
        return dlpack.export(self.array.ctypes.data, self.array.shape, steps, as_dtype(self.array.dtype),
                             (dlpack.CPU, 0), self.array, self.versioned)  # fmt: skip


def numbers(shape: tuple[int, ...], dtype: object) -> np.ndarray:
    return np.asarray(np.arange(int(np.prod(shape))) % 5 + 1).reshape(shape).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_torch_tensors_are_read_in_place(shape: tuple[int, ...], dtype: object) -> None:
    wanted = numbers(shape, dtype.numpy)
    tensor = torch.tensor(wanted.astype(np.float64)).to(TORCH[dtype])
    for turned in (tensor, tensor.movedim(0, -1) if shape else tensor):
        source = read(turned, LEGACY_STREAM, None)
        assert (source.dtype, source.shape, source.on_host) == (dtype, tuple(turned.shape), True)
        assert source.address == turned.data_ptr()
        np.testing.assert_array_equal(source.array.astype(np.float64), turned.to(torch.float64).numpy())
    if shape:
        tensor[...] = 0
        assert (read(tensor, LEGACY_STREAM, None).array.astype(np.float64) == 0).all()


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_torch_reads_what_we_export(shape: tuple[int, ...], dtype: object, versioned: bool) -> None:
    array = numbers(shape, dtype.numpy)
    for turned in (array, array.T):
        tensor = torch.from_dlpack(Exported(turned, versioned))
        assert tensor.dtype == TORCH[dtype]
        assert tuple(tensor.shape) == turned.shape
        assert tensor.data_ptr() == turned.ctypes.data
        np.testing.assert_array_equal(tensor.to(torch.float64).numpy(), turned.astype(np.float64))


@pytest.mark.parametrize("versioned", [False, True])
def test_numpy_reads_what_we_export(versioned: bool) -> None:
    array = numbers((3, 5, 2), np.int32).transpose(1, 0, 2)
    np.testing.assert_array_equal(np.from_dlpack(Exported(array, versioned)), array)
    source = read(Exported(array, versioned), LEGACY_STREAM, None)
    assert source.strides == (2, 10, 1)
    np.testing.assert_array_equal(source.array, array)


@pytest.mark.parametrize("versioned", [False, True])
def test_what_others_write_into_a_tensor_is_read(versioned: bool) -> None:
    """A first element away from the data's address, elements of several lanes: numpy and PyTorch give neither."""
    array = numbers((6,), np.float32)
    name, kind = (dlpack.VERSIONED_NAME, dlpack.Versioned) if versioned else (dlpack.LEGACY_NAME, dlpack.Managed)
    capsule = Exported(array, versioned).__dlpack__()
    tensor = kind.from_address(dlpack._pointer(capsule, name)).tensor
    tensor.byte_offset = 8
    assert dlpack.describe(capsule).address == array.ctypes.data + 8
    tensor.element.lanes = 2
    found = dlpack.describe(capsule)
    assert (found.dtype, found.element) == (None, "DLPack type 2 of 32 bits and 2 lanes")


def test_memory_that_may_not_be_written_says_so() -> None:
    type = TensorType((6,), float32)
    array = Exported(numbers((6,), np.float32), True)
    capsule = array.__dlpack__()
    managed = dlpack.Versioned.from_address(dlpack._pointer(capsule, dlpack.VERSIONED_NAME))
    array.__dlpack__ = lambda **_: capsule  # type: ignore[method-assign]
    for flags, read_only in ((0, False), (dlpack.READ_ONLY, True), (2 | dlpack.READ_ONLY, True), (2, False)):
        managed.flags = flags
        assert read(array, LEGACY_STREAM, None).read_only is read_only
    managed.flags = dlpack.READ_ONLY
    with pytest.raises(ExecutionError, match="output y is a read-only array; one that can be written is needed"):
        read_writable("output y", array, type, LEGACY_STREAM, None)


@pytest.mark.parametrize("versioned", [False, True])
def test_memory_lives_until_the_consumer_is_done(versioned: bool) -> None:
    class Owner:
        gone = False

        def __del__(self) -> None:
            Owner.gone = True

    array, before = np.arange(6, dtype=np.float32), len(dlpack._exported)

    def capsule() -> object:
        return dlpack.export(array.ctypes.data, (6,), (1,), float32, (dlpack.CPU, 0), Owner(), versioned)

    untaken = capsule()
    assert not Owner.gone
    del untaken
    assert Owner.gone
    Owner.gone = False
    tensor = torch.from_dlpack(capsule())
    gc.collect()
    assert not Owner.gone
    piece = tensor[2:4]
    del tensor
    assert not Owner.gone
    del piece
    assert Owner.gone
    assert len(dlpack._exported) == before


def test_what_we_read_is_kept_alive() -> None:
    tensor = torch.arange(1000, dtype=torch.bfloat16)
    source = read(tensor, LEGACY_STREAM, None)
    del tensor
    torch.full((1000,), 7.0, dtype=torch.bfloat16)
    assert source.array[5] == 5
    array = source.array
    del source
    assert array[6] == 6


def test_a_taken_capsule_and_other_things_are_refused() -> None:
    array = np.zeros(3, np.float32)
    capsule = Exported(array, False).__dlpack__()
    torch.from_dlpack(capsule)
    with pytest.raises(ValueError, match="holds no DLPack tensor"):
        dlpack.describe(capsule)
    with pytest.raises(ValueError, match="a int that holds no DLPack tensor"):
        dlpack.describe(3)


REFUSED = [
    (
        torch.zeros((3, 5), requires_grad=True),
        r"input x is a torch.Tensor that cannot be read; one that gives its memory by DLPack is needed: .*detach\(\)",
    ),
    (
        torch.empty((3, 5), device="meta"),
        "input x is a torch.Tensor that cannot be read; one that gives its memory by DLPack is needed: .*meta.*",
    ),
    (np.zeros((3, 5), "V0"), r"input x is \|V0; float32 is needed"),
    (torch.zeros((3, 5), dtype=torch.complex64), "input x is DLPack type 5 of 64 bits and 1 lanes; float32 is needed"),
    (torch.zeros((3, 5), dtype=torch.int16), "input x is DLPack type 0 of 16 bits and 1 lanes; float32 is needed"),
    (torch.zeros((3, 5), dtype=torch.float64), "input x is float64; float32 is needed"),
    (torch.zeros((5, 3)), r"input x has shape \(5, 3\); \(3, 5\) is needed"),
    (np.zeros((3, 5), "M8[s]"), r"input x is datetime64\[s\]; float32 is needed"),
    ("text", "input x is a str; a numpy array, or one with .* is needed"),
]


@pytest.mark.parametrize(("array", "message"), REFUSED, ids=[str(type(a)) for a, _ in REFUSED])
def test_refusals_are_one_sentence(array: object, message: str) -> None:
    with pytest.raises(ExecutionError, match=f"^{message}$"):
        read_checked("input x", array, TensorType((3, 5), float32), LEGACY_STREAM, None)


def test_strides_of_parts_of_elements_are_refused() -> None:
    """A field of packed records: read at whole elements, it would be other numbers."""
    packed = {"shape": (3, 5), "typestr": "<f4", "data": (4096, False), "strides": (30, 6), "version": 3}
    with pytest.raises(ExecutionError, match=r"strides of \(30, 6\) bytes; whole elements of 4 are needed$"):
        read_checked("input x", type_only(packed), TensorType((3, 5), float32), LEGACY_STREAM, FakeDevice())


def test_strides_of_single_elements_do_not_matter() -> None:
    tensor = torch.zeros(4, 1, 3).as_strided((4, 1, 3), (3, 99, 1))
    assert read(tensor, LEGACY_STREAM, None).lies_as(TensorType((4, 1, 3), float32))
    assert not read(tensor.expand(4, 2, 3), LEGACY_STREAM, None).lies_as(TensorType((4, 2, 3), float32))
    image = torch.zeros(2, 3, 5, 7).to(memory_format=torch.channels_last)
    source = read(image, LEGACY_STREAM, None)
    assert source.lies_as(TensorType((2, 3, 5, 7), float32, channels_last((2, 3, 5, 7))))
    assert not source.lies_as(TensorType((2, 3, 5, 7), float32))


def made(device: FakeDevice, type: TensorType, array: np.ndarray, pool: list[Memory] | None = None) -> DeviceArray:
    memory = device.allocate(type.span_bytes)
    np.copyto(host_view(memory.handle, type, None), array)
    order = StreamOrder(device)
    order.leave(LEGACY_STREAM, None)
    return DeviceArray(type, memory if pool is None else Lease(memory, LEGACY_STREAM, pool), order, device)


@pytest.mark.parametrize("dtype", [float16, bfloat16, bool_, int64], ids=str)
def test_a_device_array_says_what_it_is(dtype: object) -> None:
    device = FakeDevice()
    type = TensorType((3, 5, 7), dtype, dense_strides((3, 5, 7), (2, 0, 1)))
    wanted = numbers((3, 5, 7), dtype.numpy)
    array = made(device, type, wanted)
    assert (array.shape, array.dtype, array.strides, array.nbytes) == ((3, 5, 7), dtype, (5, 1, 15), type.nbytes)
    host = array.numpy()
    assert host.strides == tuple(s * dtype.itemsize for s in type.layout)
    np.testing.assert_array_equal(host, wanted)
    assert str(array) == f"DeviceArray({type}, {device})"
    found = dlpack.describe(array.__dlpack__(max_version=(1, 1)))
    assert found == (array._address, (3, 5, 7), (5, 1, 15), dtype, dtype.name, dlpack.CUDA, 0, False)
    assert dlpack.describe(array.__dlpack__()) == found
    if dtype is bfloat16:
        assert not hasattr(array, "__cuda_array_interface__")
        return
    source = read(type_only(array.__cuda_array_interface__), 5, device)
    assert (source.address, source.shape, source.dtype, source.strides) == (
        array._address,
        (3, 5, 7),
        dtype,
        (5, 1, 15),
    )


def type_only(interface: dict) -> object:
    """An object that has nothing but the CUDA array interface."""
    return type("Interface", (), {"__cuda_array_interface__": interface})()


def test_dlpack_to_the_cpu_and_copies() -> None:
    device = FakeDevice()
    type, wanted = TensorType((3, 5), float32), numbers((3, 5), np.float32)
    array = made(device, type, wanted)
    host = torch.from_dlpack(array.__dlpack__(dl_device=(dlpack.CPU, 0)))
    np.testing.assert_array_equal(host.numpy(), wanted)
    copied = array.__dlpack__(copy=True, stream=7)
    assert dlpack.describe(copied).address != array._address
    device.synchronize(7)
    np.testing.assert_array_equal(host_view(dlpack.describe(copied).address, type, None), wanted)
    for wrong in ({"stream": 0}, {"dl_device": (dlpack.CUDA, 3)}, {"dl_device": (dlpack.CPU, 0), "copy": False}):
        with pytest.raises(BufferError):
            array.__dlpack__(**wrong)


def test_a_lease_goes_back_unless_the_memory_travelled() -> None:
    device, pool = FakeDevice(), []
    type = TensorType((7,), float32)
    array = made(device, type, np.zeros(7), pool)
    capsule = array.__dlpack__(stream=LEGACY_STREAM)
    address = array._address
    del array
    assert not pool
    del capsule
    assert [m.handle for m in pool] == [address]
    array = made(device, type, np.zeros(7), pool)
    address = array._address
    capsule = array.__dlpack__(stream=9)
    del array, capsule
    assert len(pool) == 1
    assert address not in device.live


def speaking(version: int, handle: int) -> object:
    """A stream of another library."""
    return type("Stream", (), {"__cuda_stream__": lambda self: (version, handle)})()


@pytest.mark.parametrize(
    ("stream", "expected"),
    [(None, 1), (0, 1), (1, 1), (2, 2), (1234, 1234), (speaking(0, 1234), 1234), (speaking(0, 0), 1)],
)
def test_stream_handles(stream: object, expected: int) -> None:
    assert stream_handle(stream) == expected


def test_order_records_at_once_behind_a_bare_number() -> None:
    """A stream given as a number may be destroyed before anybody asks; an object is held."""
    device = FakeDevice()
    recorded: list[int] = []
    device.record = lambda event, stream: recorded.append(stream)
    order = StreamOrder(device)
    order.leave(55, 55)
    assert recorded == [55]
    order.join(9)
    assert recorded == [55]
    order.leave(66, object())
    assert recorded == [55]
    order.join(9)
    order.join(10)
    order.join(66)
    assert recorded == [55, 66]
    order.leave(LEGACY_STREAM, 0)
    assert recorded == [55, 66]


def test_a_stream_that_is_being_captured_waits_for_nothing() -> None:
    """Its work runs when the graph is replayed; that it waited for work of now would end the capture."""
    device = FakeDevice()
    waited: list[int] = []
    device.wait = lambda stream, event: waited.append(stream)
    order = StreamOrder(device)
    order.leave(55, 55)
    device.capturing[77] = []
    order.join(77)
    assert waited == []
    order.join(78)
    assert waited == [78]


def test_the_per_thread_stream_is_another_one_in_each_thread() -> None:
    """Its handle tells no thread where the work is: that is recorded by the thread that put it, and waited for."""
    device = FakeDevice()
    calls: list[tuple[str, int]] = []
    device.record = lambda event, stream: calls.append(("record", stream))
    device.wait = lambda stream, event: calls.append(("wait", stream))
    order = StreamOrder(device)
    order.leave(PER_THREAD_STREAM, object())
    assert calls == [("record", PER_THREAD_STREAM)]
    assert not order.is_at(PER_THREAD_STREAM)
    order.enter(PER_THREAD_STREAM)
    assert calls[1:] == [("wait", PER_THREAD_STREAM)]


@pytest.mark.parametrize("refused", [PER_THREAD_STREAM, 7])
def test_a_producer_that_refuses_the_per_thread_stream_orders_before_the_legacy_one(refused: int) -> None:
    """As PyTorch does; the per-thread stream waits for the legacy one, another stream does not."""
    asked = []

    class Refusing(Foreign):
        def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None) -> object:
            asked.append(stream)
            if stream == refused:
                raise BufferError("this stream is not supported")
            return super().__dlpack__(stream=stream, max_version=max_version)

    array = Refusing(np.arange(3.0), FakeDevice())
    if refused == PER_THREAD_STREAM:
        assert read(array, refused, None).address == array.array.ctypes.data
        assert asked == [PER_THREAD_STREAM, LEGACY_STREAM]
    else:
        with pytest.raises(TypeError, match="this stream is not supported"):
            read(array, refused, None)
        assert asked == [refused]


def test_empty_has_the_strides_of_its_type() -> None:
    for shape, order in (((), ()), ((3, 5), (1, 0)), ((2, 1, 7), (2, 0, 1))):
        type = TensorType(shape, bfloat16, dense_strides(shape, order))
        array = empty(type)
        assert array.shape == shape
        array[...] = 1
        assert Source(dlpack.describe(Exported(array, True).__dlpack__()), array).lies_as(type)


def test_the_fake_device_poisons() -> None:
    """What the other tests rely on: fresh and freed memory is NaN."""
    device = FakeDevice()
    memory = device.allocate(64)
    view = host_view(memory.handle, TensorType((64,), DTYPES["uint8"]), None)
    assert (view == POISON).all()
    assert np.isnan(view.view(np.float16)).all()
    assert Foreign(np.zeros(3), device).__dlpack_device__() == (dlpack.CUDA, 0)


def test_numpy_scalars_are_arrays_of_rank_0() -> None:
    g = gd.GraphBuilder()
    exe = gd.compile(g.build({"y": g.mul(g.input("x", (), gd.float32), 2.0)}), target="cpu")
    assert exe({"x": np.float32(3)})["y"] == 6


@pytest.mark.parametrize("inputs", [None, [np.float32(3)], "x"])
def test_inputs_that_are_no_mapping_are_named(inputs: object) -> None:
    g = gd.GraphBuilder("twice")
    exe = gd.compile(g.build({"y": g.mul(g.input("x", (), gd.float32), 2.0)}), target="cpu")
    with pytest.raises(gd.ExecutionError, match=r"inputs of graph twice are a .*; a mapping"):
        exe(inputs)
