"""The same networks in PyTorch, as independent definitions."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from examples.models.bert import Config, Weights

Array = npt.NDArray[Any]


class TorchLayers:
    """The layers of examples.models.resnet as PyTorch functions."""

    def __init__(self, parameters: dict[str, Array], device: str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        self.parameters = {
            k: torch.from_numpy(np.ascontiguousarray(v)).to(device, dtype) for k, v in parameters.items()
        }

    def conv_norm(self, x: Any, conv: str, norm: str, width: int, kernel: int, stride: int) -> Any:
        p = self.parameters
        y = functional.conv2d(x, p[f"{conv}.weight"], stride=stride, padding=kernel // 2)
        stats = (p[f"{norm}.{k}"] for k in ("running_mean", "running_var", "weight", "bias"))
        return functional.batch_norm(y, *stats)

    def relu(self, x: Any) -> Any:
        return torch.relu(x)

    def add(self, a: Any, b: Any) -> Any:
        return a + b

    def max_pool(self, x: Any) -> Any:
        return functional.max_pool2d(x, 3, 2, 1)

    def classify(self, x: Any, name: str) -> Any:
        p = self.parameters
        return functional.linear(x.mean((2, 3)), p[f"{name}.weight"], p[f"{name}.bias"])


def minilm(weights: Weights, ids: Array, lengths: Array, config: Config) -> Array:
    """Sentence embeddings by torch.nn.functional, in float64."""
    w = {k: torch.from_numpy(np.asarray(v, np.float64)) for k, v in weights.items()}
    tokens = ids.shape[1]
    inside = torch.arange(tokens)[None] < torch.from_numpy(lengths)[:, None]

    def linear(x: Any, prefix: str) -> Any:
        return functional.linear(x, w[f"{prefix}.weight"], w[f"{prefix}.bias"])

    def norm(x: Any, prefix: str) -> Any:
        return functional.layer_norm(x, x.shape[-1:], w[f"{prefix}.weight"], w[f"{prefix}.bias"], config.eps)

    x = functional.embedding(torch.from_numpy(ids).long(), w["embeddings.word_embeddings.weight"])
    x = x + w["embeddings.position_embeddings.weight"][:tokens] + w["embeddings.token_type_embeddings.weight"][0]
    x = norm(x, "embeddings.LayerNorm")
    for layer in range(config.layers):
        prefix = f"encoder.layer.{layer}"

        def heads(name: str, x: Any = x, prefix: str = prefix) -> Any:
            y = linear(x, f"{prefix}.attention.self.{name}")
            return y.view(*y.shape[:2], config.heads, -1).transpose(1, 2)

        mask = inside[:, None, None, :]
        o = functional.scaled_dot_product_attention(heads("query"), heads("key"), heads("value"), attn_mask=mask)
        o = linear(o.transpose(1, 2).flatten(2), f"{prefix}.attention.output.dense")
        x = norm(o + x, f"{prefix}.attention.output.LayerNorm")
        inner = functional.gelu(linear(x, f"{prefix}.intermediate.dense"))
        x = norm(linear(inner, f"{prefix}.output.dense") + x, f"{prefix}.output.LayerNorm")
    total = (x * inside[:, :, None]).sum(1)
    return functional.normalize(total, dim=1).numpy()
