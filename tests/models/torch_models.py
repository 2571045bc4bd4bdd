"""MiniLM in PyTorch, as an independent definition."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from examples.models.bert import Config, Weights

Array = npt.NDArray[Any]


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
