"""Glances at arrays: the address of what lies just as it is read, and nothing for whatever is a little different."""

import numpy as np
import pytest
import torch

import graphdnn as gd
from graphdnn.ir.types import TensorType
from graphdnn.runtime.arrays import DeviceArray, StreamOrder
from graphdnn.runtime.driver import LEGACY_STREAM
from graphdnn.runtime.fast_path import FastPath
from tests.runtime.fake import FakeDevice

SHAPE = (6, 40)
TYPE = TensorType(SHAPE, gd.float32)
HOST = -1
"""What PyTorch gives as the device of a tensor in host memory, on which these tests have to stand in for a device."""


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """PyTorch's current stream, to be set."""
    stream = [0]
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda ordinal: stream[0], raising=False)
    return stream


def aligned(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor that starts at a multiple of 16 bytes."""
    raw = torch.zeros(int(np.prod(shape)) * 8 + 64, dtype=torch.uint8)
    start = -raw.data_ptr() % 16
    nbytes = int(np.prod(shape)) * torch.empty((), dtype=dtype).element_size()
    return raw[start : start + nbytes].view(dtype).reshape(shape)


def test_a_tensor_like_one_that_was_read_is_looked_at(current: list[int]) -> None:
    fast_path = FastPath(TYPE, HOST)
    first, second = aligned(*SHAPE), aligned(*SHAPE)
    assert fast_path.address(first, LEGACY_STREAM) == 0
    fast_path.learn(first)
    for tensor in (first, second):
        assert fast_path.address(tensor, LEGACY_STREAM) == tensor.data_ptr()


@pytest.mark.parametrize(
    "other",
    [
        lambda: aligned(*SHAPE, dtype=torch.float64),
        lambda: aligned(*SHAPE, dtype=torch.int32),
        lambda: aligned(40, 6),
        lambda: aligned(40, 6).T,
        lambda: aligned(6, 80)[:, ::2],
        lambda: aligned(6, 1).expand(SHAPE),
        lambda: aligned(241)[1:].reshape(SHAPE),
        lambda: aligned(*SHAPE).requires_grad_(),
        lambda: torch.nn.Parameter(aligned(*SHAPE)),
        lambda: torch._neg_view(aligned(*SHAPE)),
        lambda: aligned(*SHAPE).to_sparse(),
        lambda: torch.empty(SHAPE, device="meta"),
        lambda: np.zeros(SHAPE, np.float32),
        lambda: None,
        lambda: 3.0,
    ],
)
def test_a_tensor_that_differs_is_read_in_full(current: list[int], other: object) -> None:
    fast_path = FastPath(TYPE, HOST)
    fast_path.learn(aligned(*SHAPE))
    assert fast_path.address(other(), LEGACY_STREAM) == 0  # type: ignore[operator]


def test_a_tensor_of_another_stream_is_read_in_full(current: list[int]) -> None:
    fast_path, tensor = FastPath(TYPE, HOST), aligned(*SHAPE)
    fast_path.learn(tensor)
    assert fast_path.address(tensor, 4096) == 0
    current[0] = 4096
    assert fast_path.address(tensor, 4096) == tensor.data_ptr()
    assert fast_path.address(tensor, LEGACY_STREAM) == 0


def test_free_strides_may_be_any(current: list[int]) -> None:
    """An axis of one element has no stride to speak of: what was read in place once is looked at afterwards."""
    fast_path = FastPath(TensorType((1, 40), gd.float32), HOST)
    tensor = aligned(40, 1).T
    assert tensor.stride() == (1, 1)
    fast_path.learn(tensor)
    assert fast_path.address(tensor, LEGACY_STREAM) == tensor.data_ptr()


def test_our_own_arrays_wait_for_their_call() -> None:
    device = FakeDevice()
    order = StreamOrder(device)  # type: ignore[arg-type]
    made = DeviceArray(TYPE, device.allocate(TYPE.nbytes), order, device)  # type: ignore[arg-type]
    fast_path = FastPath(TYPE, 0)
    fast_path.learn(made)
    written: list[str] = []
    device.enqueue(9, lambda: written.append("made"))
    order.leave(9, 9)
    assert fast_path.address(made, LEGACY_STREAM) == made._address
    device.enqueue(LEGACY_STREAM, lambda: written.append("read"))
    device.drain()
    assert written == ["made", "read"]
    for type in (
        TensorType((40, 6), gd.float32),
        TensorType(TYPE.shape, gd.int32),
        TYPE.with_strides((1, TYPE.shape[0])),
    ):
        other = DeviceArray(type, device.allocate(TYPE.nbytes), order, device)  # type: ignore[arg-type]
        assert fast_path.address(other, LEGACY_STREAM) == 0, type
    assert FastPath(TYPE, 1).address(made, LEGACY_STREAM) == 0
