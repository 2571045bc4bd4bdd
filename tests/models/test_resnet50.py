"""ResNet-50: equal to PyTorch on the CPU, and planned for an H200 without gaps."""

import numpy as np
import pytest
import torch

import graphdnn as gd
from benchmarks.torch_peers import ResNet50
from examples.models.resnet import build, random_parameters
from graphdnn.ir.ops.pointwise import FUNCTIONS


@pytest.fixture(scope="module")
def parameters() -> dict[str, np.ndarray]:
    return random_parameters(seed=0)


def test_equals_pytorch_on_the_cpu(parameters, rng) -> None:
    image = rng.standard_normal((2, 3, 96, 96)).astype(np.float32)
    found = gd.compile(build(parameters, 2, gd.float32, size=96), target="cpu")({"x": image})["y"]
    with torch.inference_mode():
        expected = ResNet50(parameters, "cpu", torch.float64)(torch.from_numpy(image).double()).numpy()
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


def test_activations_stay_moderate(parameters, rng) -> None:
    graph = build(parameters, 2, gd.float32, size=64)
    every = {n.name: n.result for n in graph.nodes}
    probed = gd.Graph("probed", graph.nodes, graph.inputs, graph.constants, graph.payloads, every)
    found = gd.evaluate(probed, {"x": rng.standard_normal((2, 3, 64, 64)).astype(np.float32)})
    peaks = {name: float(np.abs(array).max()) for name, array in found.items()}
    assert len(peaks) == len(graph.nodes) > 3 * 53
    assert all(1e-2 < peak < 1e3 for peak in peaks.values()), peaks


@pytest.fixture(scope="module")
def report(parameters) -> gd.CompileReport:
    return gd.compile(build(parameters, 32, gd.float16), target=gd.Target.named("h200")).report


def test_every_conv_is_one_region_with_its_relu_and_add(report) -> None:
    convs = [r for r in report.regions if "conv" in r.pattern.split("+")]
    assert len(convs) == 53
    assert sum(r.pattern.endswith("relu") for r in convs) == 49
    assert sum("add" in r.pattern.split("+") for r in convs) == 16


def test_nothing_is_left_over(report) -> None:
    pointwise = {*FUNCTIONS, "bias", "cast", "select"}
    assert not [r.pattern for r in report.regions if set(r.pattern.split("+")) <= pointwise]
    assert report.last_resort_count == 0


def test_batch_norms_are_listed_under_the_convs_they_fold_into(report) -> None:
    stem = next(r for r in report.regions if "conv1" in r.nodes)
    assert {"conv1", "bn1"} <= set(stem.nodes)
