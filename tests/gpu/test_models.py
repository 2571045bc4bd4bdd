"""Whole models on the device, against PyTorch in float64."""

import numpy as np
import pytest
import torch

import graphdnn as gd
from benchmarks.torch_peers import MobileNetV3, ResNet50, UNet, UNetBlock
from examples.models import mobilenet, resnet, unet
from examples.models.bert import encode, load_config, load_weights, published_folder, sentence_encoder
from tests.models.torch_models import minilm
from tests.numbers import relative_error

pytestmark = pytest.mark.gpu

SENTENCES = ["A cat sits on the mat.", "The feline rests upon a rug.", "Interest rates rose again this quarter, sadly."]


CONVOLUTIONAL = {
    "resnet50": (resnet.random_parameters, resnet.build, ResNet50, (4, 3, 224)),
    "mobilenet": (mobilenet.random_parameters, mobilenet.build, MobileNetV3, (4, 3, 224)),
    "u_net": (unet.random_parameters, unet.build, UNet, (2, 3, 128)),
    "u_net_block": (unet.random_block_parameters, unet.build_block, UNetBlock, (2, 128, 64)),
}
"""How the parameters are drawn, the graph is built, its twin, and images, channels and size of the test."""


@pytest.mark.parametrize(("dtype", "limit"), [(gd.float16, 1e-2), (gd.float32, 1e-5)], ids=str)
@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_convolutional(name: str, dtype: gd.DType, limit: float, rng: np.random.Generator) -> None:
    draw, build, twin, (batch, channels, size) = CONVOLUTIONAL[name]
    parameters = draw(seed=0)
    image = rng.standard_normal((batch, channels, size, size)).astype(dtype.numpy)
    exe = gd.compile(build(parameters, batch, dtype, size), target="cuda")
    found = exe({"x": image})["y"]
    with torch.inference_mode():
        expected = twin(parameters, "cuda", torch.float64)(torch.from_numpy(image).to("cuda", torch.float64))
    assert relative_error(found, expected.cpu().numpy()) <= limit
    if dtype == gd.float16:
        assert exe.report.last_resort_count == 0
        inside = {r.pattern for r in exe.report.regions[1:-1]}
        assert not inside & {"convert", "pad"}


def test_resnet50_fuses_as_planned() -> None:
    exe = gd.compile(resnet.build(resnet.random_parameters(seed=0), 4, gd.float16), target="cuda")
    convs = [r for r in exe.report.regions if "conv" in r.pattern.split("+")]
    assert len(convs) == 53
    assert sum(r.pattern.endswith("relu") for r in convs) == 49
    assert sum("add" in r.pattern.split("+") for r in convs) == 16
    pointwise = {"relu", "add", "bias", "mul", "sub", "cast"}
    assert not [r.pattern for r in exe.report.regions if set(r.pattern.split("+")) <= pointwise]


@pytest.mark.parametrize(("dtype", "limit"), [(gd.float16, 5e-3), (gd.float32, 1e-5)], ids=str)
def test_minilm(dtype: gd.DType, limit: float) -> None:
    folder = published_folder()
    config, inputs = load_config(folder), encode(folder, SENTENCES, 32)
    graph = sentence_encoder(load_weights(folder, dtype), len(SENTENCES), 32, dtype, config)
    found = gd.compile(graph, target="cuda")(inputs)["embedding"]
    expected = minilm(load_weights(folder, gd.float32), inputs["ids"], inputs["lengths"], config)
    assert relative_error(found, expected) <= limit
