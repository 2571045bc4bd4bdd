"""Convolutional networks: equal to PyTorch on the CPU, and planned for an H200 without a gap inside."""

import numpy as np
import pytest
import torch

import graphdnn as gd
from tests.models.convolutional import NETWORKS

EACH = pytest.mark.parametrize("name", NETWORKS)


@EACH
def test_equals_pytorch_on_the_cpu(name: str, rng: np.random.Generator) -> None:
    network = NETWORKS[name]
    batch, size = network.small
    image = rng.standard_normal((batch, network.channels, size, size)).astype(np.float32)
    graph = network.build(network.parameters, batch, gd.float32, size)
    found = gd.compile(graph, target="cpu")({"x": image})["y"]
    with torch.inference_mode():
        expected = network.twin(network.parameters, "cpu", torch.float64)(torch.from_numpy(image).double()).numpy()
    assert np.abs(expected).max() > 1e-2
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


@EACH
def test_activations_stay_moderate(name: str, rng: np.random.Generator) -> None:
    network = NETWORKS[name]
    batch, size = network.small
    graph = network.build(network.parameters, batch, gd.float32, size)
    images = {n.name: n.result for n in graph.nodes if n.op.label in ("relu", "hard_swish", "add", "concat")}
    probed = gd.Graph("probed", graph.nodes, graph.inputs, graph.constants, graph.payloads, images)
    x = rng.standard_normal((batch, network.channels, size, size)).astype(np.float32)
    peaks = {n: float(np.abs(a).max()) for n, a in gd.evaluate(probed, {"x": x}).items()}
    assert len(peaks) >= 7
    assert all(1e-2 < peak < 1e3 for peak in peaks.values()), peaks


@pytest.fixture(scope="module")
def reports() -> dict[tuple[str, bool], gd.CompileReport]:
    return {(name, last): n.report(is_channels_last=last) for name, n in NETWORKS.items() for last in (False, True)}


@EACH
def test_layouts_change_at_the_edges_only(name: str, reports) -> None:
    """A first region may turn the input, or pad what lies right; a last one may turn an output that is an image."""
    regions = reports[name, False].regions
    conversions = [i for i, r in enumerate(regions) if r.pattern in ("convert", "pad")]
    assert conversions == ([0, len(regions) - 1] if name.startswith("u_net") else [0])
    inside = [r.pattern for r in reports[name, True].regions[1:]]
    assert not {"convert", "pad"} & set(inside)
    assert reports[name, True].regions[0].pattern != "convert"


@EACH
def test_three_channels_become_four_where_the_image_is_turned_and_that_is_faster(name: str, reports) -> None:
    """A strided 3x3 on 32 images was measured at 36 us on 3 channels and at 330 us on 4."""
    first = reports[name, False].regions[0]
    is_padded = NETWORKS[name].channels == 3 and name != "mobilenet"
    assert (first.pattern, first.nodes, first.kernels) == ("pad" if is_padded else "convert", (), 1)


@EACH
@pytest.mark.parametrize("last", [False, True])
def test_convolutions_carry_their_norms_biases_and_activations(name: str, last: bool, reports) -> None:
    report = reports[name, last]
    assert report.last_resort_count == 0
    pointwise = [r.pattern for r in report.regions if "conv" not in r.pattern and "matmul" not in r.pattern]
    # What is left beside products: pooling, means, joins, and squeeze-and-excitation's product.
    assert set(pointwise) <= {"convert", "pad", "max_pool", "reduce_mean", "concat", "mul"}
    graph = NETWORKS[name].graph()
    activated = sum(n.op.label in ("relu", "hard_swish", "hard_sigmoid") for n in graph.nodes)
    assert sum(r.pattern.split("+")[-1] in ("relu", "hard_swish", "hard_sigmoid") for r in report.regions) == activated
    norms = {n.name for n in graph.nodes if n.op.label == "batch_norm"}
    carried = {o for r in report.regions if r.pattern.startswith("conv+") for o in r.nodes}
    assert norms
    assert norms <= carried


def test_excitation_is_a_generated_kernel_and_the_report_says_why(reports) -> None:
    """cuDNN takes no pointwise graph with an operand that varies over batch and channel and broadcasts over space."""
    report = reports["mobilenet", False]
    products = [r for r in report.regions if r.pattern == "mul"]
    assert len(products) == 8
    assert {r.engine for r in products} == {"nvrtc"}
    for region in products:
        whys = [c.reason for c in region.alternatives if c.engine == "cudnn" and c.verdict == "declined"]
        assert any("one entry a channel" in why for why in whys), whys
