"""Examples on the device: they choose it by themselves, and say the same things there."""

import pytest

from tests.examples.test_examples import EXAMPLES, said_by

SLOW = ("04_resnet50", "05_minilm")
"""Whole networks, which test_models.py runs on the device."""


@pytest.mark.gpu
@pytest.mark.parametrize("path", [p for p in EXAMPLES if p.stem not in SLOW], ids=lambda p: p.stem)
def test_example_runs_on_the_device(path) -> None:
    printed = said_by(path)
    if path.stem == "07_symptoms":
        assert "first step on cpu" not in printed
        assert "ruled out" in printed
