"""Which memory a bound call's outputs may share: none, on the CPU and on a device the same."""

import numpy as np
import pytest

from graphdnn.errors import ExecutionError
from graphdnn.runtime.program import Program
from tests.runtime.fake import FakeDevice, Foreign, fake_program, host_program, on_device
from tests.runtime.test_program import affine, check, draw, expected


@pytest.fixture(params=["host", "device"])
def program(request: pytest.FixtureRequest, rng: np.random.Generator) -> Program:
    return host_program(affine(), rng) if request.param == "host" else fake_program(affine(), FakeDevice(), rng, 1)


def test_bound_outputs_have_memory_of_their_own(program: Program) -> None:
    x, both = np.zeros((3, 5), np.float32), np.zeros((3, 5), np.float32)
    with pytest.raises(ExecutionError, match=r"^output z shares memory with output y; memory of its own is needed$"):
        program.bind({"x": x}, {"y": both, "z": both})


@pytest.mark.parametrize("part", [np.s_[:, :], np.s_[::-1, :], np.s_[1:4, :]])
def test_bound_outputs_are_apart_from_inputs(program: Program, part: tuple[slice, slice]) -> None:
    """On the CPU and on a device the same, whole or in part."""
    rows = np.zeros((4, 5), np.float32)
    with pytest.raises(ExecutionError, match=r"^output z shares memory with input x; memory of its own is needed$"):
        program.bind({"x": rows[:3]}, {"z": rows[:3][part] if part[0].start is None else rows[part]})


def test_bound_arrays_may_lie_between_each_other(program: Program, rng: np.random.Generator) -> None:
    table = np.full((3, 15), np.nan, np.float32)
    x = table[:, ::3]
    x[...] = draw(rng)
    program.bind({"x": x}, {"y": table[:, 1::3], "z": table[:, 2::3]})()
    check({"y": table[:, 1::3], "z": table[:, 2::3]}, x)


def test_bound_outputs_may_be_columns_of_one_array(program: Program, rng: np.random.Generator) -> None:
    x, table = draw(rng), np.full((3, 10), np.nan, np.float32)
    program.bind({"x": x}, {"y": table[:, ::2], "z": table[:, 1::2]})()
    np.testing.assert_array_equal(table[:, ::2], expected(x)["y"])
    np.testing.assert_array_equal(table[:, 1::2], expected(x)["z"])


def test_on_a_device_they_are_told_apart_as_exactly(rng: np.random.Generator) -> None:
    """Also from an input that lies in another way and is copied; what lies between its rows is apart."""
    device = FakeDevice()
    program, table = fake_program(affine(), device, rng, 1), on_device(rng.standard_normal((6, 16), np.float32), device)
    x = Foreign(table.array[::2, :5], device)
    taken, free = (Foreign(table.array[row, :15].reshape(3, 5), device) for row in (2, 1))
    with pytest.raises(ExecutionError, match=r"^output y shares memory with input x; memory of its own is needed$"):
        program.bind({"x": x}, {"y": taken})
    found = program.bind({"x": x}, {"y": free})()
    check({"z": found["z"], "y": free.array}, x.array)
