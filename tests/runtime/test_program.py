"""Calls, bound calls, contexts, streams, errors: on the CPU, and on a fake device whose work runs as late as it may."""

import threading

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided, sliding_window_view

import graphdnn as gd
from graphdnn.errors import ExecutionError
from graphdnn.ir.graph import Graph
from graphdnn.ir.region import Region
from graphdnn.runtime.arrays import DeviceArray
from graphdnn.runtime.context import GRAPHS_KEPT
from graphdnn.runtime.program import Program
from graphdnn.runtime.schedule import Step, schedule
from tests.runtime.fake import FakeDevice, FakePlan, Foreign, fake_program, host_program, on_device

SIDE = 12345


def affine() -> Graph:
    g = gd.GraphBuilder("affine")
    x = g.input("x", (3, 5), gd.float32)
    w = g.constant(np.arange(5, dtype=np.float32), name="w")
    h = g.add(g.mul(x, w), 1.0)
    return g.build({"y": g.relu(h), "z": g.neg(h)})


def expected(x: np.ndarray) -> dict[str, np.ndarray]:
    h = x * np.arange(5, dtype=np.float32) + 1
    return {"y": np.maximum(h, 0), "z": -h}


def check(found: dict, x: np.ndarray) -> None:
    for name, array in expected(x).items():
        got = found[name]
        np.testing.assert_array_equal(got if isinstance(got, np.ndarray) else got.numpy(), array)


def draw(rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal((3, 5), np.float32)


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice()


@pytest.fixture(params=["host", "device"])
def program(request: pytest.FixtureRequest, rng: np.random.Generator, device: FakeDevice) -> Program:
    return host_program(affine(), rng) if request.param == "host" else fake_program(affine(), device, rng, 1)


def test_numpy_in_gives_numpy_out_that_stays(program: Program, rng: np.random.Generator) -> None:
    calls = [(x, program.run({"x": x})) for x in (draw(rng) for _ in range(4))]
    for x, found in calls:
        assert all(type(a) is np.ndarray and a.flags.writeable and a.flags.c_contiguous for a in found.values())
        check(found, x)


def test_any_numpy_layout_is_read(program: Program, rng: np.random.Generator) -> None:
    wide = rng.standard_normal((5, 9), np.float32)
    packed = np.zeros(3, np.dtype([("row", np.float32, 5), ("tag", np.int8)]))
    packed["row"] = draw(rng)
    for x in (wide.T[::3], wide[:3, ::2], np.asfortranarray(draw(rng)), draw(rng)[::-1, ::-1], packed["row"],
              draw(rng).astype(">f4"), np.broadcast_to(np.float32(2), (3, 5))):  # fmt: skip
        check(program.run({"x": x}), np.asarray(x, np.float32))


WRONG = [
    ({}, r"input x \(f32\[3x5\]\) of graph affine is missing"),
    ({"x": np.zeros((3, 5), np.float32), "v": 1}, r"v is not an input of graph affine; its inputs are x"),
    ({"x": np.zeros((3, 5))}, r"input x is float64; float32 is needed"),
    ({"x": np.zeros((3, 5), np.complex64)}, r"input x is complex64; float32 is needed"),
    ({"x": np.zeros((5, 3), np.float32)}, r"input x has shape \(5, 3\); \(3, 5\) is needed"),
    ({"x": [1.0]}, r"input x is a list; a numpy array, or one with __dlpack__ or __cuda_array_interface__, is needed"),
]


@pytest.mark.parametrize(("inputs", "message"), WRONG)
def test_wrong_inputs_are_named(program: Program, inputs: dict, message: str) -> None:
    for call in (program.run, program.bind):
        with pytest.raises(ExecutionError, match=f"^{message}$"):
            call(inputs)


def test_an_array_on_a_device_does_not_run_on_the_cpu(rng: np.random.Generator, device: FakeDevice) -> None:
    x = on_device(draw(rng), device)
    with pytest.raises(ExecutionError, match=r"input x lies on cuda:0; an array on the CPU is needed"):
        host_program(affine(), rng).run({"x": x})


def test_bound_calls_read_and_overwrite_fixed_arrays(program: Program, rng: np.random.Generator) -> None:
    x, y = draw(rng), np.full((3, 5), np.nan, np.float32)
    bound = program.bind({"x": x}, {"y": y})
    first = bound()
    check(first, x)
    assert first["y"] is y
    before = y.copy()
    x[...] = draw(rng)
    second = bound()
    check(second, x)
    assert second["y"] is y
    assert second["z"] is first["z"]
    assert (y != before).any()


def test_bound_fields_of_structured_arrays_are_read_as_they_are(program: Program, rng: np.random.Generator) -> None:
    """Their strides are no whole number of elements."""
    packed = np.zeros(3, np.dtype([("row", np.float32, 5), ("tag", np.int8)]))
    results = np.zeros(3, packed.dtype)
    bound = program.bind({"x": packed["row"]}, {"y": results["row"]})
    for _ in range(3):
        packed["row"] = draw(rng)
        found = bound()
        np.testing.assert_array_equal(results["row"], expected(packed["row"])["y"])
        check(found, packed["row"])


def test_bound_outputs_must_fit(program: Program) -> None:
    x = np.zeros((3, 5), np.float32)
    frozen = np.zeros((3, 5), np.float32)
    frozen.flags.writeable = False
    for outputs, message in (
        ({"q": x}, "q is not an output of graph affine; its outputs are y, z"),
        ({"y": x.astype(np.float16)}, "output y is float16; float32 is needed"),
        ({"y": frozen}, "output y is a read-only array; one that can be written is needed"),
        ({"y": None}, "output y is a NoneType; a numpy array, or one with .* is needed"),
        ({"y": as_strided(x.copy(), (3, 5), (0, 4))}, r"output y has strides of \(0, 4\) bytes, which make .*"),
        (
            {"y": sliding_window_view(np.zeros(7, np.float32), 5, writeable=True)},
            r"output y has strides of \(4, 4\) .*",
        ),
    ):
        with pytest.raises(ExecutionError, match=f"^{message}$"):
            program.bind({"x": x}, outputs)


def test_threads_take_turns_in_one_context(program: Program, seed: int) -> None:
    """Case T4 without a device: every thread gets its own results."""
    errors: list[BaseException] = []

    def work(number: int) -> None:
        rng = np.random.default_rng([seed, number])
        own = program.context() if number % 2 else program
        try:
            for _ in range(25):
                x = draw(rng)
                check(own.run({"x": x}), x)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


# From here on only on the device.


@pytest.fixture
def cuda(rng: np.random.Generator, device: FakeDevice) -> Program:
    return fake_program(affine(), device, rng, 1)


def test_device_arrays_are_read_in_place(cuda: Program, rng: np.random.Generator, device: FakeDevice) -> None:
    x = on_device(draw(rng), device)
    cuda.run({"x": x})
    before = device.allocations
    found = cuda.run({"x": x})
    assert all(isinstance(a, DeviceArray) for a in found.values())
    # The first call's outputs were dropped, and nothing else is needed.
    assert device.allocations == before
    check(found, x.array)


def test_other_strides_and_addresses_are_copied(cuda: Program, rng: np.random.Generator, device: FakeDevice) -> None:
    wide = rng.standard_normal((5, 9), np.float32)
    for x in (Foreign(wide.T[::3], device), Foreign(wide[:3, ::2], device), on_device(draw(rng), device, misaligned=1),
              Foreign(np.broadcast_to(np.float32(2), (3, 5)), device), Foreign(draw(rng)[::-1], device)):  # fmt: skip
        check(cuda.run({"x": x}), x.array)
        check(cuda.bind({"x": x})(), x.array)


def test_outputs_are_not_overwritten_while_held(cuda: Program, rng: np.random.Generator, device: FakeDevice) -> None:
    held = []
    for call in range(8):
        x = on_device(draw(rng), device)
        found = cuda.run({"x": x})
        held.append((x, found if call % 2 else {"z": found["z"]}))
    for x, found in held:
        for name, array in found.items():
            np.testing.assert_array_equal(array.numpy(), expected(x.array)[name])


def test_the_second_call_on_the_same_addresses_is_one_launch(
    cuda: Program, rng: np.random.Generator, device: FakeDevice
) -> None:
    x = on_device(draw(rng), device)
    for call in range(5):
        before = device.kernels
        x.array[...] = draw(rng)
        check(cuda.run({"x": x}), x.array)
        assert device.launches == max(0, call)
        # One by one, then captured, then neither.
        assert device.kernels - before == (4 if call < 2 else 0)


def test_captured_graphs_are_bounded(cuda: Program, rng: np.random.Generator, device: FakeDevice) -> None:
    arrays = [on_device(draw(rng), device) for _ in range(2 * GRAPHS_KEPT)]
    for _ in range(2):
        for x in arrays:
            check(cuda.run({"x": x}), x.array)
    assert len(cuda._context._graphs) == GRAPHS_KEPT


def test_a_call_waits_for_its_inputs_and_its_users_wait_for_it(rng: np.random.Generator, device: FakeDevice) -> None:
    """Each call on another stream than the last, its input made by late work on a third one."""
    cuda = fake_program(affine(), device, rng, 1)
    results = []
    for call, stream in enumerate((SIDE, None, SIDE + 1, SIDE)):
        x = on_device(np.zeros((3, 5), np.float32), device)
        x.stream = 500 + call
        value = draw(rng)
        device.enqueue(x.stream, lambda x=x, value=value: np.copyto(x.array, value))
        results.append((x, value, cuda.run({"x": x}, stream)))
    for _, value, found in reversed(results):
        check(found, value)


def test_a_call_waits_for_the_stream_that_an_interface_names(rng: np.random.Generator, device: FakeDevice) -> None:
    cuda = fake_program(affine(), device, rng, 1)
    x, value = on_device(np.zeros((3, 5), np.float32), device).array, draw(rng)
    device.enqueue(500, lambda: np.copyto(x, value))
    interface = {"shape": x.shape, "typestr": x.dtype.str, "data": (x.ctypes.data, False), "version": 3, "stream": 500}
    check(cuda.run({"x": type("Interfaced", (), {"__cuda_array_interface__": interface})()}, SIDE), value)


def test_consumers_wait(cuda: Program, rng: np.random.Generator, device: FakeDevice) -> None:
    other = fake_program(affine(), device, rng, 1)
    x = on_device(draw(rng), device)
    chained = other.run({"x": cuda.run({"x": x}, SIDE)["y"]}, SIDE + 1)
    check(chained, expected(x.array)["y"])
    found = cuda.run({"x": x}, SIDE)
    copied = np.zeros((3, 5), np.float32)
    capsule = found["y"].__dlpack__(stream=9)
    device._move(copied.ctypes.data, found["y"]._address, copied.nbytes, 9)
    device.synchronize(9)
    np.testing.assert_array_equal(copied, expected(x.array)["y"])
    del capsule


def test_memory_used_on_another_stream_is_not_lent_again(
    cuda: Program, rng: np.random.Generator, device: FakeDevice
) -> None:
    x = on_device(draw(rng), device)
    address = cuda.run({"x": x})["y"]._address
    found = cuda.run({"x": x})
    assert found["y"]._address == address
    capsule = found["y"].__dlpack__(stream=9)
    del found, capsule
    assert address not in device.live
    assert not any(memory.handle == address for _, _, pool in cuda._context._pools for memory in pool.free())


def test_bound_device_calls_launch_one_graph(cuda: Program, rng: np.random.Generator, device: FakeDevice) -> None:
    x, y = on_device(draw(rng), device), on_device(np.full((3, 5), np.nan, np.float32), device)
    bound = cuda.bind({"x": x}, {"y": y})
    with pytest.raises(ExecutionError, match="captured by its first call"):
        bound.kernels  # noqa: B018
    for call in range(4):
        x.array[...] = draw(rng)
        before, allocated = device.launches, device.allocations
        found = bound(stream=SIDE if call % 2 else None)
        assert device.launches - before == (call > 0)
        assert device.allocations == allocated
        assert found["y"] is y
        device.drain()
        check({"z": found["z"], "y": y.array}, x.array)
    assert bound.kernels == 4


def test_bound_outputs_on_the_device_must_fit(cuda: Program, rng: np.random.Generator, device: FakeDevice) -> None:
    x = on_device(draw(rng), device)
    turned = Foreign(np.zeros((5, 3), np.float32).T, device)
    for y, message in (
        (x, "output y shares memory with input x; memory of its own is needed"),
        (turned, r"output y has strides \(1, 3\); \(5, 1\) are needed to write in place"),
        (
            on_device(draw(rng), device, misaligned=1),
            "output y starts at address .*; one aligned to 16 bytes is needed",
        ),
    ):
        with pytest.raises(ExecutionError, match=message):
            cuda.bind({"x": x}, {"y": y})
    y = on_device(draw(rng), device)
    with pytest.raises(ExecutionError, match="output z shares memory with output y"):
        cuda.bind({"x": x}, {"y": y, "z": y})


def test_inside_a_capture_of_the_caller(cuda: Program, rng: np.random.Generator, device: FakeDevice) -> None:
    """A bound call puts its plans into the caller's graph and stays alive; a plain call says why it cannot."""
    x = on_device(draw(rng), device)
    bound = cuda.bind({"x": x})
    found = bound()
    device.capturing[SIDE] = []
    with pytest.raises(ExecutionError, match="called on a stream that is being captured"):
        cuda.run({"x": x}, SIDE)
    allocated = device.allocations
    assert bound(stream=SIDE)["y"] is found["y"]
    assert device.allocations == allocated
    with pytest.raises(ExecutionError, match="bound to numpy arrays cannot be captured"):
        cuda.bind({"x": x.array})(stream=SIDE)
    work = device.capturing.pop(SIDE)
    assert len(work) == 4
    address = found["y"]._address
    del bound, found
    assert address in device.live
    x.array[...] = draw(rng)
    for run in work:
        run()
    cuda.close()
    assert not device.kept


def test_mixed_inputs_give_device_arrays(rng: np.random.Generator, device: FakeDevice) -> None:
    g = gd.GraphBuilder()
    a, b = g.input("a", (7,), gd.float32), g.input("b", (7,), gd.float32)
    program = fake_program(g.build({"y": g.sub(a, b)}), device, rng)
    held = []
    for _ in range(3):
        x, y = rng.standard_normal((2, 7), np.float32)
        inputs = {"a": x, "b": on_device(y, device)}
        held.append((x - y, program.run(inputs), inputs))
        bound = program.bind(inputs)
        bound()
        held.append((x - y, bound(), inputs))
    for wanted, found, _ in held:
        np.testing.assert_array_equal(found["y"].numpy(), wanted)


def test_two_contexts_share_no_scratch_memory(cuda: Program, rng: np.random.Generator, device: FakeDevice) -> None:
    other = cuda.context()
    x = on_device(draw(rng), device)
    found = [program.run({"x": x}, stream) for program, stream in ((cuda, SIDE), (other, SIDE + 1))]
    assert cuda._context._arena is not None
    assert cuda._context._arena.handle != other._context._arena.handle
    assert cuda._context.loaded is other._context.loaded
    for results in found:
        check(results, x.array)


def test_without_a_converting_engine_the_strides_are_named(rng: np.random.Generator, device: FakeDevice) -> None:
    graph = affine()
    steps = [Step(r, FakePlan(r, device)) for r in (Region.of(graph, [n]) for n in graph.nodes)]
    program = Program(graph, schedule(graph, steps), device)
    with pytest.raises(
        ExecutionError, match=r"input x has strides \(1, 9\); \(5, 1\) are needed, since no engine copies"
    ):
        program.run({"x": Foreign(np.zeros((5, 9), np.float32)[:, :3].T, device)})


def test_streams_are_ints_or_have_the_protocol(cuda: Program, rng: np.random.Generator, device: FakeDevice) -> None:
    class Stream:
        def __cuda_stream__(self) -> tuple[int, int]:
            return (0, SIDE)

    x = on_device(draw(rng), device)
    check(cuda.run({"x": x}, Stream()), x.array)
    with pytest.raises(
        ExecutionError, match="stream is a str; an int, None or an object with __cuda_stream__ is needed"
    ):
        cuda.run({"x": x}, "side")


def test_held_outputs_of_one_input_array(cuda: Program, rng: np.random.Generator, device: FakeDevice) -> None:
    """The same input address again and again, but each time other outputs."""
    x, held = on_device(draw(rng), device), []
    for turn in range(12):
        value = draw(rng)
        device.drain()
        x.array[...] = value
        held.append((value, cuda.run({"x": x})))
        if turn % 3 == 2:
            del held[-2]
    for value, found in held:
        check(found, value)


def sums() -> Graph:
    g = gd.GraphBuilder("sums")
    x, y = g.input("x", (7,), gd.float32), g.input("y", (7,), gd.float32)
    total = g.state("total", (7,), gd.float32)
    return g.build({"z": g.neg(y)}, {"total": g.add(total, x)})


def test_host_arrays_are_fetched_before_the_next_are_staged(rng: np.random.Generator, device: FakeDevice) -> None:
    """Calls that return at once, each with another host array."""
    y = on_device(rng.standard_normal(7).astype(np.float32), device)
    program = fake_program(sums(), device, rng)
    values = rng.integers(0, 100, (6, 7)).astype(np.float32)
    held = [program.run({"x": value.copy(), "y": y}) for value in values]
    np.testing.assert_array_equal(program.state["total"].numpy(), values.sum(axis=0))
    assert len(held) == 6
    other, x = program.context(), np.zeros(7, np.float32)
    bound = other.bind({"x": x, "y": y})
    for value in values:
        x[...] = value
        bound()
    np.testing.assert_array_equal(other.state["total"].numpy(), values.sum(axis=0))


def test_bound_calls_of_one_context_wait_for_each_other(
    cuda: Program, rng: np.random.Generator, device: FakeDevice
) -> None:
    x, y = on_device(draw(rng), device), on_device(draw(rng), device)
    first = cuda.bind({"x": x}, {"y": y})
    second = cuda.bind({"x": y})
    for turn in range(4):
        device.drain()
        x.array[...] = draw(rng)
        y.array[...] = np.nan
        first(stream=SIDE)
        found = second(stream=SIDE + 1 + turn % 2)
        check(found, expected(x.array)["y"])


def test_on_the_cpu_nothing_is_shared_with_the_caller(rng: np.random.Generator) -> None:
    """An input that is also an output and a state's next value."""
    g = gd.GraphBuilder()
    x, s = g.input("x", (7,), gd.float32), g.state("s", (7,), gd.float32)
    program = host_program(g.build({"y": g.neg(x), "x": x, "old": s}, {"s": x}), rng)
    first, second = np.arange(7, dtype=np.float32), np.ones(7, np.float32)
    found = program.run({"x": first})
    program.state["s"][...] = np.nan
    first[...] = np.nan
    np.testing.assert_array_equal(found["x"], np.arange(7))
    np.testing.assert_array_equal(program.state["s"], np.arange(7))
    bound = program.bind({"x": second})()
    second[...] = np.nan
    np.testing.assert_array_equal(bound["y"], -np.ones(7))
    np.testing.assert_array_equal(bound["x"], np.ones(7))
    second[...] = -1
    np.testing.assert_array_equal(bound["old"], np.arange(7))
    program.state["s"] = second
    second[...] = np.nan
    np.testing.assert_array_equal(program.state["s"], -np.ones(7))


class Matrix(np.matrix):
    """An array whose products are other ones; numpy's own matrix warns, masked arrays leave elements out."""


def test_on_the_cpu_subclasses_are_plain_arrays(rng: np.random.Generator) -> None:
    g = gd.GraphBuilder()
    x, s = g.input("x", (3, 5), gd.float32), g.state("s", (3, 5), gd.float32)
    graph = g.build({"silu": g.silu(x), "mean": g.reduce_mean(x, axes=0), "gated": g.silu(s)}, {"s": s})
    program, array = host_program(graph, rng), draw(rng)
    wanted = gd.evaluate(graph, {"x": array}, states={"s": array})
    masked = np.ma.masked_array(array, mask=array > 0)
    for given in (array.view(Matrix), masked, array.astype(">f4")):
        program.state["s"] = given
        for found in (program.run({"x": given}), program.bind({"x": given})()):
            for name, expected in wanted.items():
                assert type(found[name]) is np.ndarray
                np.testing.assert_array_equal(found[name], expected)
        for dtype in (None, gd.float64):
            found = gd.evaluate(graph, {"x": given}, dtype, states={"s": given})
            assert all(type(a) is np.ndarray and a.dtype.isnative for a in found.values())
            np.testing.assert_allclose(found["silu"], wanted["silu"], rtol=1e-6)


def test_on_the_cpu_chains_of_views_may_be_long(rng: np.random.Generator) -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (3, 1500), gd.float32)
    y = x
    for _ in range(1300):
        y = g.slice(y, [0, 1], [3, None])
    array = rng.standard_normal((3, 1500), np.float32)
    found = host_program(g.build({"y": y, "z": g.relu(y)}), rng).run({"x": array})
    np.testing.assert_array_equal(found["y"], array[:, 1300:])
    np.testing.assert_array_equal(found["z"], np.maximum(array[:, 1300:], 0))
