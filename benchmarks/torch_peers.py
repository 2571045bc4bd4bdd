"""The same networks as PyTorch modules, and the ways to run a module that graphdnn is compared with.

Weights are parameters of a module and not closures, since Inductor freezes nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from examples.models import bert, llama
from examples.models.mobilenet import mobilenet_v3_large
from examples.models.resnet import resnet50
from examples.models.unet import u_net, u_net_block

Array = npt.NDArray[Any]
Forward = Callable[..., torch.Tensor]

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
"""torch's type by graphdnn's name of it."""


def tensor(array: Array, device: str, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A numpy array (bfloat16 through ml_dtypes too) on `device`, in its own type unless another is named."""
    array = np.ascontiguousarray(array)
    if array.dtype.name == "bfloat16":
        made = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    else:
        made = torch.from_numpy(array)
    return made.to(device=device, dtype=dtype, copy=True)


class Peer(torch.nn.Module):
    """A module whose parameters are given by name."""

    def __init__(self, weights: Mapping[str, Array], device: str, dtype: torch.dtype) -> None:
        super().__init__()
        for name, array in weights.items():
            made = torch.nn.Parameter(tensor(array, device, dtype), requires_grad=False)
            self.register_parameter(name.replace(".", "_"), made)
        self.eval()

    def weight(self, name: str) -> torch.Tensor:
        return getattr(self, name.replace(".", "_"))


class Convolutional(Peer):
    """A network of examples.models, channels-last; the methods are its Layers."""

    def __init__(self, weights: Mapping[str, Array], device: str, dtype: torch.dtype) -> None:
        super().__init__(weights, device, dtype)
        self.to(memory_format=torch.channels_last)

    def parts(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        return self.weight(f"{name}.weight"), self.weight(f"{name}.bias")

    def conv_norm(
        self,
        x: torch.Tensor,
        conv: str,
        norm: str,
        width: int,
        kernel: int,
        stride: int,
        groups: int = 1,
        eps: float = 1e-5,
    ) -> torch.Tensor:
        w = self.weight(f"{conv}.weight")
        y = functional.conv2d(x, w, stride=stride, padding=kernel // 2, groups=groups)
        mean, variance = self.weight(f"{norm}.running_mean"), self.weight(f"{norm}.running_var")
        return functional.batch_norm(y, mean, variance, *self.parts(norm), eps=eps)

    def conv(self, x: torch.Tensor, name: str, width: int) -> torch.Tensor:
        return functional.conv2d(x, *self.parts(name))

    def upsample(self, x: torch.Tensor, name: str, width: int) -> torch.Tensor:
        return functional.conv_transpose2d(x, *self.parts(name), stride=2)

    def linear(self, x: torch.Tensor, name: str, width: int) -> torch.Tensor:
        return functional.linear(x, *self.parts(name))

    def mean(self, x: torch.Tensor) -> torch.Tensor:
        return functional.adaptive_avg_pool2d(x, 1)

    def flatten(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)

    def max_pool(self, x: torch.Tensor, kernel: int, padding: int) -> torch.Tensor:
        return functional.max_pool2d(x, kernel, 2, padding)

    def relu(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(x)

    def hard_swish(self, x: torch.Tensor) -> torch.Tensor:
        return functional.hardswish(x)

    def hard_sigmoid(self, x: torch.Tensor) -> torch.Tensor:
        return functional.hardsigmoid(x)

    def add(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b

    def mul(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a * b

    def concat(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.cat([a, b], dim=1)


class ResNet50(Convolutional):
    """examples.models.resnet."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return resnet50(self, x)


class MobileNetV3(Convolutional):
    """examples.models.mobilenet."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return mobilenet_v3_large(self, x)


class UNet(Convolutional):
    """examples.models.unet, whole."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return u_net(self, x)


class UNetBlock(Convolutional):
    """One level of examples.models.unet."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return u_net_block(self, x)


class BertLayer(Peer):
    """examples.models.bert.bert_layer."""

    def __init__(self, weights: Mapping[str, Array], config: bert.Config, device: str, dtype: torch.dtype) -> None:
        super().__init__(weights, device, dtype)
        self.config = config

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(x, self.weight(f"{name}.weight"), self.weight(f"{name}.bias"))

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        scale, shift = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return functional.layer_norm(x, x.shape[-1:], scale, shift, self.config.eps)

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:2], self.config.heads, -1).transpose(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (self.heads(self.linear(x, f"attention.self.{part}")) for part in ("query", "key", "value"))
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.norm(self.linear(mixed, "attention.output.dense") + x, "attention.output.LayerNorm")
        inner = functional.gelu(self.linear(x, "intermediate.dense"))
        return self.norm(self.linear(inner, "output.dense") + x, "output.LayerNorm")


class LlamaLayer(Peer):
    """examples.models.llama.layer, at positions 0, 1, ...; the rotary table comes rounded to the graph's type."""

    def __init__(
        self, weights: Mapping[str, Array], table: tuple[Array, Array], config: llama.Config, device: str,
        dtype: torch.dtype,
    ) -> None:  # fmt: skip
        super().__init__({**weights, "cos": table[0], "sin": table[1]}, device, dtype)
        self.config = config

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(x, self.weight(f"{name}.weight"))

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.rms_norm(x, x.shape[-1:], self.weight(f"{name}.weight"), self.config.eps)

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:2], -1, self.config.head_dim).transpose(1, 2)

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, dim=-1)
        return x * self.weight("cos") + torch.cat([-second, first], dim=-1) * self.weight("sin")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm(x, "input_layernorm")
        q = self.rotate(self.heads(self.linear(normed, "self_attn.q_proj")))
        k = self.rotate(self.heads(self.linear(normed, "self_attn.k_proj")))
        v = self.heads(self.linear(normed, "self_attn.v_proj"))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.linear(mixed.transpose(1, 2).flatten(2), "self_attn.o_proj")
        normed = self.norm(x, "post_attention_layernorm")
        gated = functional.silu(self.linear(normed, "mlp.gate_proj")) * self.linear(normed, "mlp.up_proj")
        return x + self.linear(gated, "mlp.down_proj")


@contextmanager
def inductor_settings(freezing: bool) -> Iterator[None]:
    """Inductor's own configuration while a function is traced and compiled.

    Freezing is set for the whole process meanwhile and not through `torch.compile(options=...)`: the tracer, which has
    to keep parameters as constants, does not see those options.
    """
    from torch._inductor import config

    with config.patch(freezing=freezing):
        yield


def inductor(forward: Forward, *inputs: torch.Tensor, freezing: bool = False) -> Forward:
    """`forward` compiled for these very shapes; the call that compiles it is made here, in inference mode."""
    torch._dynamo.reset()
    compiled = torch.compile(forward, dynamic=False)
    with inductor_settings(freezing), torch.inference_mode():
        compiled(*inputs)
    return compiled
