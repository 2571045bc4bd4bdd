"""Arrays whose own code is broken: each is refused in one sentence that quotes it, with its exception as the cause."""

from typing import Any

import numpy as np
import pytest

from graphdnn.errors import ExecutionError
from graphdnn.ir.types import TensorType, float32
from graphdnn.runtime.driver import LEGACY_STREAM
from graphdnn.runtime.reading import read_checked
from tests.runtime.fake import FakeDevice

WHOLE = {"shape": (2, 3), "typestr": "<f4", "data": (4096, False), "version": 3}


def interfaced(interface: object) -> object:
    return type("Interfaced", (), {"__cuda_array_interface__": interface})()


def exporting(**methods: Any) -> object:
    """An object with these methods of DLPack."""
    return type("Exporting", (), {f"__{name}__": method for name, method in methods.items()})()


def raising(error: Exception) -> Any:
    def method(self: object, **asked: object) -> object:
        raise error

    return method


def giving(answer: object) -> Any:
    return lambda self, **asked: answer


def refusal(array: object) -> ExecutionError:
    with pytest.raises(ExecutionError) as caught:
        read_checked("input x", array, TensorType((2, 3), float32), LEGACY_STREAM, FakeDevice())
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("interface", "said"),
    [
        ("text", "whose __cuda_array_interface__ is a str; a mapping is needed"),
        (7, "whose __cuda_array_interface__ is a int; a mapping is needed"),
        (WHOLE | {"mask": 1}, "with a mask; a plain array is needed"),
        (WHOLE | {"strides": (13, 4)}, "with strides of (13, 4) bytes; whole elements of 4 are needed"),
    ],
)
def test_an_interface_that_is_none(interface: object, said: str) -> None:
    error = refusal(interfaced(interface))
    assert str(error) == f"input x is a {__name__}.Interfaced {said}"
    assert error.__cause__ is None


@pytest.mark.parametrize(
    ("interface", "said"),
    [
        ({}, "there is no entry shape"),
        ({"shape": (2, 3)}, "there is no entry typestr"),
        ({"shape": (2, 3), "typestr": "<f4"}, "there is no entry data"),
        (WHOLE | {"typestr": "xx"}, "data type 'xx' not understood"),
        (WHOLE | {"data": None}, "cannot unpack non-iterable NoneType object"),
        (WHOLE | {"data": ("a", False)}, "'str' object cannot be interpreted as an integer"),
        (WHOLE | {"shape": 3}, "'int' object is not iterable"),
        (WHOLE | {"strides": ("a", 4)}, "'str' object cannot be interpreted as an integer"),
        (WHOLE | {"stream": "a"}, "'str' object cannot be interpreted as an integer"),
    ],
)
def test_an_interface_with_broken_entries(interface: object, said: str) -> None:
    error = refusal(interfaced(interface))
    assert str(error) == (
        f"input x is a {__name__}.Interfaced that cannot be read; one that gives its memory by "
        f"__cuda_array_interface__ is needed: {said}"
    )
    assert isinstance(error.__cause__, TypeError | ValueError)


def test_an_interface_of_elements_of_the_other_byte_order() -> None:
    """On a device nothing turns the bytes around; on the host numpy does."""
    assert str(refusal(interfaced(WHOLE | {"typestr": ">f4"}))) == "input x is >f4; float32 is needed"
    turned = np.arange(6, dtype=">f4").reshape(2, 3)
    source = read_checked("input x", turned, TensorType((2, 3), float32), LEGACY_STREAM, FakeDevice())
    np.testing.assert_array_equal(source.array, turned)


def test_an_interface_of_elements_without_bytes() -> None:
    assert (
        str(refusal(interfaced(WHOLE | {"typestr": "|V0", "strides": (1, 1)}))) == "input x is |V0; float32 is needed"
    )


@pytest.mark.parametrize("error", [KeyError("k"), RuntimeError("no"), TypeError("t"), BufferError(), OSError("a\nb")])
@pytest.mark.parametrize("where", ["dlpack", "dlpack_device", "property"])
def test_an_export_that_raises(error: Exception, where: str) -> None:
    if where == "property":
        array = exporting(dlpack=property(raising(error)), dlpack_device=giving((1, 0)))
    else:
        array = exporting(**{"dlpack": giving(None), "dlpack_device": giving((1, 0)), where: raising(error)})
    found = refusal(array)
    said = " ".join(str(error).split()) or type(error).__name__
    protocol = "__dlpack__" if where == "property" else "DLPack"
    assert str(found) == (
        f"input x is a {__name__}.Exporting that cannot be read; one that gives its memory by {protocol} is needed: "
        f"{said}"
    )
    assert found.__cause__ is error


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        ({"dlpack": giving(None)}, "with __dlpack__ and no __dlpack_device__; both are needed"),
        (
            {"dlpack": giving(None), "dlpack_device": giving(None)},
            "whose __dlpack_device__ gives None; a pair of whole numbers is needed",
        ),
        (
            {"dlpack": giving(None), "dlpack_device": giving(("cpu", 0))},
            "whose __dlpack_device__ gives ('cpu', 0); a pair of whole numbers is needed",
        ),
        (
            {"dlpack": giving(3), "dlpack_device": giving((1, 0))},
            "whose __dlpack__ gives a int that holds no DLPack tensor",
        ),
    ],
)
def test_an_export_of_something_else(methods: dict[str, Any], said: str) -> None:
    assert str(refusal(exporting(**methods))) == f"input x is a {__name__}.Exporting {said}"


def test_a_producer_of_another_kind_is_not_disturbed() -> None:
    """A TypeError of a producer from before version 1.0 only says that it knows no max_version."""
    array = np.ones((2, 3), np.float32)
    old = exporting(dlpack=lambda self, stream=None: array.__dlpack__(), dlpack_device=giving((1, 0)))
    source = read_checked("input x", old, TensorType((2, 3), float32), LEGACY_STREAM, None)
    np.testing.assert_array_equal(source.array, array)
