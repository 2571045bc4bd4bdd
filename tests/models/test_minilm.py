"""MiniLM with its published weights: equal to PyTorch, sensible rankings, a whole plan for an H200."""

import numpy as np
import pytest

import graphdnn as gd
from examples.models.bert import encode, load_config, load_weights, published_folder, sentence_encoder
from tests.models.torch_models import minilm

SENTENCES = ["A cat sits on the mat.", "The feline rests upon a rug.", "Interest rates rose again this quarter, sadly."]
TOKENS = 24


@pytest.fixture(scope="module")
def folder():
    return published_folder()


def test_embeddings_equal_pytorch(folder) -> None:
    weights, config = load_weights(folder, gd.float32), load_config(folder)
    inputs = encode(folder, SENTENCES, TOKENS)
    graph = sentence_encoder(weights, len(SENTENCES), TOKENS, gd.float32, config)
    found = gd.compile(graph, target="cpu")(inputs)["embedding"]
    expected = minilm(weights, inputs["ids"], inputs["lengths"], config)
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
    close = found @ found.T
    assert close[0, 1] > close[0, 2] + 0.2


def test_planned_for_an_h200_without_last_resort_kernels(folder) -> None:
    graph = sentence_encoder(load_weights(folder, gd.float16), 8, 128, gd.float16, load_config(folder))
    report = gd.compile(graph, target=gd.Target.named("h200")).report
    assert report.last_resort_count == 0
    assert sum("attention" in r.pattern.split("+") for r in report.regions) == 6
    assert not [r for r in report.regions if r.pattern == "convert"]
    assert report.kernel_count < report.unfused_kernel_count / 2
