"""What a constant is made from: anything that numpy reads, and PyTorch's bfloat16, which numpy does not."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

import graphdnn as gd
from graphdnn.ir.types import Array


def held(given: Any) -> Array:
    g = gd.GraphBuilder()
    value = g.constant(given)
    array = g.build({"y": value}).payloads[value.name].array()
    assert (array.shape, array.dtype) == (value.type.shape, value.type.dtype.numpy)
    return array


def test_all_numbers_of_bfloat16_come_from_torch() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    tensor = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
    array = held(tensor)
    assert array.dtype == gd.bfloat16.numpy
    np.testing.assert_array_equal(array.view(np.uint16), bits)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int8, torch.bool])
def test_tensors_are_copied_whatever_their_strides(dtype: torch.dtype) -> None:
    tensor = torch.arange(6).reshape(2, 3).to(dtype).t()
    wanted = tensor.float().numpy().copy()
    array = held(tensor)
    tensor.zero_()
    np.testing.assert_array_equal(array.astype(np.float32), wanted)
    assert held(torch.tensor(1, dtype=dtype)).shape == ()


class Broken:
    def __array__(self, *asked: object, **more: object) -> Array:
        raise OSError


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        (torch.zeros(2, requires_grad=True), "Tensor", "Use tensor.detach().numpy() instead."),
        (torch.zeros(2, dtype=torch.bfloat16, requires_grad=True), "Tensor", "Use tensor.detach().numpy() instead."),
        (torch.nn.Parameter(torch.zeros(2)), "Parameter", "Use tensor.detach().numpy() instead."),
        (torch.zeros(2, device="meta"), "Tensor", "Use Tensor.cpu() to copy the tensor to host memory first."),
        (torch.zeros(2, device="meta", dtype=torch.bfloat16), "Tensor", "to copy the tensor to host memory first."),
        (torch.zeros(2).to(torch.float8_e4m3fn), "Tensor", "Got unsupported ScalarType Float8_e4m3fn"),
        (torch.zeros(2, 2).to_sparse(), "Tensor", "Use Tensor.to_dense() first."),
        ([torch.ones((), requires_grad=True)], "list", "Use tensor.detach().numpy() instead."),
        (Broken(), "Broken", "OSError"),
    ],
)
def test_what_numpy_cannot_read_is_quoted(given: Any, kind: str, said: str) -> None:
    with pytest.raises(gd.GraphError) as caught:
        gd.GraphBuilder().constant(given, name="w")
    text = str(caught.value)
    assert text.startswith(f"constant w is a {kind} that numpy cannot read; numbers in host memory are needed: ")
    assert text.endswith(said)
    assert "\n" not in text
    assert caught.value.__cause__ is not None


def test_a_constant_imports_no_torch() -> None:
    code = "import sys, graphdnn as gd; gd.GraphBuilder().constant([1.0]); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
