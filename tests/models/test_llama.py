"""A Llama layer: equal to PyTorch on the CPU, and planned for an H200 without gaps."""

import numpy as np
import pytest
import torch

import graphdnn as gd
from benchmarks.torch_peers import LlamaLayer, tensor
from examples.models.llama import Config, layer, random_weights, rotary_table, shapes
from tests.numbers import TOLERANCE, relative_error

SMALL = Config(hidden=96, heads=6, kv_heads=2, head_dim=16, inner=200)


@pytest.mark.parametrize("dtype", [gd.float32, gd.bfloat16], ids=str)
@pytest.mark.parametrize(("batch", "tokens"), [(1, 33), (3, 7), (2, 1)])
def test_equals_pytorch_on_the_cpu(batch: int, tokens: int, dtype: gd.DType, rng: np.random.Generator) -> None:
    weights = random_weights(1, SMALL, dtype)
    x = rng.standard_normal((batch, tokens, SMALL.hidden)).astype(dtype.numpy)
    found = gd.compile(layer(weights, batch, tokens, SMALL, dtype), target="cpu")({"x": x})["y"]
    twin = LlamaLayer(weights, rotary_table(tokens, SMALL, dtype), SMALL, "cpu", torch.float64)
    expected = twin(tensor(x, "cpu", torch.float64)).numpy()
    assert relative_error(found, expected) <= TOLERANCE[dtype.name]


def test_positions_and_causality_matter(rng: np.random.Generator) -> None:
    weights = random_weights(1, SMALL, gd.float32)
    x = rng.standard_normal((1, 9, SMALL.hidden)).astype(np.float32)
    run = gd.compile(layer(weights, 1, 9, SMALL, gd.float32), target="cpu")
    before = run({"x": x})["y"].copy()
    swapped = run({"x": x[:, [1, 0, *range(2, 9)]]})["y"]
    assert np.abs(swapped[0, 8] - before[0, 8]).max() > 1e-4
    x[0, 8] += 1
    after = run({"x": x})["y"]
    assert np.abs(after[0, :8] - before[0, :8]).max() == 0
    assert np.abs(after[0, 8] - before[0, 8]).max() > 1e-2


def test_matrices_keep_the_size_of_activations() -> None:
    weights = random_weights(2, SMALL, gd.float32)
    for name, array in weights.items():
        if array.ndim == 2:
            assert np.std(array) * np.sqrt(array.shape[1]) == pytest.approx(1, rel=0.1), name


@pytest.fixture(scope="module")
def report() -> gd.CompileReport:
    """Planned for Llama-3-8B's sizes; weights that differ from one another suffice, since no number is computed."""
    weights = {n: np.full(s, i + 1, gd.bfloat16.numpy) for i, (n, s) in enumerate(shapes(Config()).items())}
    return gd.compile(layer(weights, 1, 4096, Config(), gd.bfloat16), target=gd.Target.named("h200")).report


def test_planned_for_an_h200_without_gaps(report) -> None:
    assert report.last_resort_count == 0
    assert not [r.name for r in report.regions if r.pattern == "convert"]
    assert report.kernel_count < report.unfused_kernel_count


def test_queries_keys_and_values_are_one_product(report) -> None:
    parts = {f"self_attn.{name}_proj" for name in "qkv"}
    (merged,) = (r for r in report.regions if parts & set(r.nodes))
    assert set(merged.nodes) == parts
    assert (merged.pattern, merged.kernels) == ("matmul", 1)
    assert merged.written_bytes == 4096 * (32 + 8 + 8) * 128 * 2


def test_residuals_ride_on_the_products(report) -> None:
    attended = next(r for r in report.regions if "self_attn.o_proj" in r.nodes)
    fed = next(r for r in report.regions if "mlp.down_proj" in r.nodes)
    assert "add" in attended.pattern.split("+")
    assert "add" in fed.pattern.split("+")


def test_each_rotation_is_one_kernel_that_reads_a_slice(report) -> None:
    rotations = [r for r in report.regions if "concat" in r.pattern]
    assert [r.pattern for r in rotations] == ["mul+neg+concat+mul+add"] * 2
    for region, heads in zip(rotations, (32, 8), strict=True):
        assert region.kernels == 1
        tensor = 4096 * heads * 128 * 2
        assert region.written_bytes == tensor
        assert region.read_bytes == tensor + 2 * 4096 * 128 * 2  # x once, cos and sin


def test_attention_is_one_region_and_keys_are_not_repeated(report) -> None:
    attention = next(r for r in report.regions if "self_attn" in r.nodes)
    assert attention.pattern == "attention"
    width = 2 * 4096 * 128
    assert attention.read_bytes == (32 + 8 + 8) * width
    assert attention.written_bytes == 32 * width


def planned(batch: int, tokens: int) -> gd.CompileReport:
    """Without numbers, as above."""
    weights = {n: np.full(s, i + 1, gd.bfloat16.numpy) for i, (n, s) in enumerate(shapes(Config()).items())}
    return gd.compile(layer(weights, batch, tokens, Config(), gd.bfloat16), target=gd.Target.named("h200")).report


@pytest.mark.parametrize(("batch", "tokens"), [(4, 256), (1, 1)])
def test_gate_and_up_are_one_product_and_silu_reads_its_slices(batch: int, tokens: int) -> None:
    report = planned(batch, tokens)
    (merged,) = (r for r in report.regions if "mlp.gate_proj" in r.nodes)
    half = batch * tokens * Config().inner * 2
    assert set(merged.nodes) == {"mlp.gate_proj", "mlp.up_proj"}
    assert (merged.pattern, merged.written_bytes) == ("matmul", 2 * half)
    (gated,) = (r for r in report.regions if r.pattern == "silu+mul")
    assert (gated.read_bytes, gated.written_bytes) == (2 * half, half)
    assert not [r.name for r in report.regions if r.pattern == "convert"]


def test_where_gate_and_up_stay_apart_both_costs_are_told(report) -> None:
    (merge,) = (p for p in report.passes if p.name == "merge")
    (refusal,) = (r for r in merge.refusals if set(r.nodes) == {"mlp.gate_proj", "mlp.up_proj"})
    assert "as one product they and what reads them would take" in refusal.reason
    assert {r.pattern for r in report.regions if "mlp.gate_proj" in r.nodes} == {"matmul+silu+mul"}
