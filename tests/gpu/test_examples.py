"""Examples on the device: they choose it by themselves, and say the same things there."""

import re

import pytest

from tests.examples.test_examples import EXAMPLES, said_by


@pytest.mark.gpu
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_example_runs_on_the_device(path) -> None:
    printed = said_by(path)
    if path.stem != "07_symptoms":
        return
    assert "first step on cpu" not in printed
    cold, warm, entries = re.findall(r"compiled in (\S+) s, again in (\S+) s, with (\d+) entries", printed)[0]
    assert float(warm) < float(cold)
    assert int(entries) > 0
    assert re.search(r"plans that may differ from run to run: cudnn \w", printed)
    assert re.search(r"ruled out: [1-9]\d* plans: cudnn \w", printed)
