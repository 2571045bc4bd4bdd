"""Whole models on the device, against PyTorch in float64."""

import numpy as np
import pytest
import torch

import graphdnn as gd
from examples.models.bert import encode, load_config, load_weights, published_folder, sentence_encoder
from examples.models.resnet import build, random_parameters, resnet50
from tests.models.torch_models import TorchLayers, minilm
from tests.numbers import relative_error

pytestmark = pytest.mark.gpu

SENTENCES = ["A cat sits on the mat.", "The feline rests upon a rug.", "Interest rates rose again this quarter, sadly."]


@pytest.mark.parametrize(("dtype", "limit"), [(gd.float16, 1e-2), (gd.float32, 1e-5)], ids=str)
def test_resnet50(dtype: gd.DType, limit: float, rng: np.random.Generator) -> None:
    parameters = random_parameters(seed=0)
    image = rng.standard_normal((4, 3, 224, 224)).astype(dtype.numpy)
    exe = gd.compile(build(parameters, 4, dtype), target="cuda")
    found = exe({"x": image})["logits"]
    with torch.inference_mode():
        layers = TorchLayers(parameters, "cuda", torch.float64)
        expected = resnet50(layers, torch.from_numpy(image).to("cuda", torch.float64)).cpu().numpy()
    assert relative_error(found, expected) <= limit
    convs = [r for r in exe.report.regions if "conv" in r.pattern.split("+")]
    if dtype == gd.float16:
        assert len(convs) == 53
        assert sum(r.pattern.endswith("relu") for r in convs) == 49
        assert sum("add" in r.pattern.split("+") for r in convs) == 16
        assert exe.report.last_resort_count == 0


@pytest.mark.parametrize(("dtype", "limit"), [(gd.float16, 5e-3), (gd.float32, 1e-5)], ids=str)
def test_minilm(dtype: gd.DType, limit: float) -> None:
    folder = published_folder()
    config, inputs = load_config(folder), encode(folder, SENTENCES, 32)
    graph = sentence_encoder(load_weights(folder, dtype), len(SENTENCES), 32, dtype, config)
    found = gd.compile(graph, target="cuda")(inputs)["embedding"]
    expected = minilm(load_weights(folder, gd.float32), inputs["ids"], inputs["lengths"], config)
    assert relative_error(found, expected) <= limit
