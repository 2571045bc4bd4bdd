"""What a build depends on, read off arrays of several libraries."""

import numpy as np
import pytest
import torch

import graphdnn as gd
from graphdnn.errors import GraphError
from graphdnn.ir.types import DTYPES, TensorType, bfloat16, dense_strides
from graphdnn.specialize.signature import form_of, order_of, signature_text, type_of


class OnlyDlpack:
    """An array that tells nothing but through DLPack."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __dlpack__(self, **options: object) -> object:
        return self._tensor.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class OnlyInterface:
    """An array on a device that tells nothing but through the CUDA array interface."""

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...] | None, typestr: str = "<f2") -> None:
        self.__cuda_array_interface__ = {
            "shape": shape, "strides": strides, "typestr": typestr, "data": (4096, False), "version": 2,
        }  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_libraries_agree_on_types(dtype: gd.DType) -> None:
    expected = (dtype.name, (3, 4), None)
    tensor = torch.zeros(3, 4, dtype=getattr(torch, dtype.name))
    assert form_of(np.zeros((3, 4), dtype.numpy)) == form_of(tensor) == form_of(OnlyDlpack(tensor)) == expected
    if dtype != bfloat16:
        assert form_of(OnlyInterface((3, 4), None, dtype.numpy.str)) == expected
    assert type_of(form_of(tensor)) == TensorType((3, 4), dtype)


def test_a_scalar_is_an_array_without_axes() -> None:
    assert form_of(np.float32(3)) == form_of(np.zeros((), np.float32)) == ("float32", (), None)


@pytest.mark.parametrize("order", [(0, 2, 3, 1), (3, 2, 1, 0), (1, 0, 2, 3)], ids=str)
def test_a_dense_array_in_another_order_has_that_order(order: tuple[int, ...]) -> None:
    tensor = torch.zeros([(2, 3, 4, 5)[a] for a in order], dtype=torch.float16)
    array = tensor.permute([order.index(a) for a in range(4)])
    found = form_of(array)
    steps = tuple(2 * s for s in array.stride())
    assert (
        found
        == form_of(array.numpy())
        == form_of(OnlyInterface((2, 3, 4, 5), steps))
        == ("float16", (2, 3, 4, 5), order)
    )
    assert found == form_of(OnlyDlpack(array))
    assert type_of(found).layout == array.stride() == dense_strides((2, 3, 4, 5), order)


def test_strides_of_size_one_axes_mean_nothing() -> None:
    images = torch.zeros(1, 3, 4, 5).to(memory_format=torch.channels_last)
    odd = torch.as_strided(images, (1, 3, 4, 5), (7, *images.stride()[1:]))
    assert form_of(images) == form_of(odd) == ("float32", (1, 3, 4, 5), (0, 2, 3, 1))
    pixels = torch.zeros(2, 3, 1, 1).to(memory_format=torch.channels_last)
    assert form_of(pixels) == form_of(pixels.numpy()) == ("float32", (2, 3, 1, 1), None)
    assert order_of((4, 3, 1, 1), (3, 1, 3, 3), 1) is None
    assert order_of((4, 1, 3), (1, 99, 4), 1) == (1, 2, 0)


@pytest.mark.parametrize(
    "array",
    [np.zeros((3, 8))[:, ::2], np.zeros((3, 4))[:, ::-1], np.broadcast_to(np.zeros(4), (3, 4)), np.zeros((9, 4))[::3]],
    ids=["gaps", "backwards", "repeated", "rows left out"],
)
def test_an_array_with_gaps_counts_as_row_major(array: np.ndarray) -> None:
    assert form_of(array) == ("float64", (3, 4), None)


def test_subclasses_and_foreign_byte_orders_are_arrays_too() -> None:
    assert form_of(np.ma.masked_array(np.zeros((3, 4), np.float32))) == ("float32", (3, 4), None)
    assert form_of(np.zeros((3, 4), ">f4")) == ("float32", (3, 4), None)


@pytest.mark.parametrize("dtype", ["complex64", "uint32", "datetime64[s]", "f4,i4", "U3", "O"])
def test_a_type_that_graphdnn_lacks_is_refused(dtype: str) -> None:
    with pytest.raises(GraphError, match="is not one of float64"):
        form_of(np.zeros(3, dtype))


def test_types_of_other_libraries_that_graphdnn_lacks_are_refused() -> None:
    with pytest.raises(GraphError, match="complex64 is not one of"):
        form_of(torch.zeros(3, dtype=torch.complex64))
    with pytest.raises(GraphError, match="uint32 is not one of"):
        form_of(OnlyInterface((3,), None, "<u4"))


@pytest.mark.parametrize("thing", [3.0, [1, 2], None, "x", object()], ids=["float", "list", "none", "str", "object"])
def test_what_is_no_array_is_refused(thing: object) -> None:
    with pytest.raises(TypeError, match="a numpy array"):
        form_of(thing)


def test_a_signature_reads_as_types() -> None:
    forms = (form_of(np.zeros((3, 4), np.float32).T), None, form_of(np.zeros(2, np.int32)))
    assert signature_text(("x", "m", "n"), forms) == "x: f32[4x3:1,4], n: i32[2]"
