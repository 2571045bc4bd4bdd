"""Memory of outputs that is lent again: on the stream that it was used on, and not without bound."""

import numpy as np
import pytest

from graphdnn.ir.types import TensorType, float32
from graphdnn.runtime import dlpack
from graphdnn.runtime.buffers import host_view
from graphdnn.runtime.driver import LEGACY_STREAM, PER_THREAD_STREAM
from graphdnn.runtime.pool import SPARES_KEPT, STREAMS_KEPT, OutputPool
from tests.runtime.fake import FakeDevice, fake_program, on_device
from tests.runtime.test_program import affine, expected


def test_memory_is_lent_again_on_the_stream_it_was_used_on(seed: int) -> None:
    """Another graph, and another library, may still read an output there after its holder let it go."""
    device = FakeDevice(seed)
    rng = np.random.default_rng(seed)
    first, second = (fake_program(affine(), device, rng, 1) for _ in range(2))
    held, found = [], []
    for turn in range(8):
        for number, stream in enumerate((11, 12)):
            x = on_device(np.full((3, 5), 10 * turn + number, np.float32), device)
            middle = first.run({"x": x}, stream)["y"]
            held.append(x)
            found.append((expected(expected(x.array)["y"])["y"], second.run({"x": middle}, stream)["y"]))
            del middle
    device.drain()
    for wanted, array in found:
        np.testing.assert_allclose(array.numpy(), wanted, rtol=1e-6)


def test_a_pool_is_bounded_in_streams_and_blocks() -> None:
    device = FakeDevice()
    pool = OutputPool(device, 100)  # type: ignore[arg-type]
    leases = [pool.lend(stream) for stream in range(10, 10 + 3 * STREAMS_KEPT)]
    leases += [pool.lend(10 + 3 * STREAMS_KEPT) for _ in range(3 * SPARES_KEPT)]
    del leases
    assert len(pool.free()) <= SPARES_KEPT + STREAMS_KEPT
    assert len(device.live) == len(pool.free())
    blocks = len(pool.free())
    for _ in range(2):
        pool.lend(PER_THREAD_STREAM)
    assert len(device.live) == len(pool.free()) == blocks


def test_what_was_lent_on_the_per_thread_stream_is_not_lent_again() -> None:
    """The next thread's stream of that handle is another one, and would not wait for the last holder's work."""
    device = FakeDevice()
    pool = OutputPool(device, 100)  # type: ignore[arg-type]
    next_block(pool, PER_THREAD_STREAM)
    assert (pool.free(), device.live) == ([], {})


def test_blocks_beyond_the_bound_go_at_once_and_not_at_the_next_call() -> None:
    device = FakeDevice()
    pool = OutputPool(device, 100)  # type: ignore[arg-type]
    leases = [pool.lend(LEGACY_STREAM) for _ in range(3 * SPARES_KEPT)]
    del leases
    assert len(device.live) == len(pool.free()) == SPARES_KEPT


def next_block(pool: OutputPool, stream: int) -> int:
    """The address of the block that is lent next on a stream, which comes back."""
    return pool.lend(stream).memory.handle


def test_short_lived_streams_do_not_push_out_the_default_streams_blocks() -> None:
    device = FakeDevice()
    pool = OutputPool(device, 100)  # type: ignore[arg-type]
    first, mine = next_block(pool, LEGACY_STREAM), next_block(pool, 11)
    for stream in range(100, 100 + 2 * STREAMS_KEPT):
        next_block(pool, stream)
        assert next_block(pool, 11) == mine
    for stream in range(200, 200 + STREAMS_KEPT):  # meanwhile nobody uses stream 11
        next_block(pool, stream)
    made = device.allocations
    assert next_block(pool, LEGACY_STREAM) == first
    assert device.allocations == made
    next_block(pool, 11)
    assert device.allocations == made + 1


@pytest.mark.parametrize("copy", [False, True])
def test_memory_that_is_read_on_a_later_stream_is_not_lent_again(copy: bool) -> None:
    """The context works on that stream by then and has nothing to wait for; the reader's work counts all the same."""
    device = FakeDevice()
    program = fake_program(affine(), device, np.random.default_rng(0), 1)
    first, second = (on_device(np.full((3, 5), n, np.float32), device) for n in (1, 2))
    wanted, type = expected(first.array)["y"], TensorType((3, 5), float32)
    array = program.run({"x": first}, 11)["y"]
    program.run({"x": first}, 12)
    found = dlpack.describe(capsule := array.__dlpack__(stream=12, copy=copy)).address
    seen: list[np.ndarray] = []
    device.enqueue(12, lambda: seen.append(host_view(found, type, None).copy()))
    del array
    if not copy:
        del capsule
    program.run({"x": second}, 11)
    device.drain()
    np.testing.assert_allclose(seen[0], wanted, rtol=1e-6)
