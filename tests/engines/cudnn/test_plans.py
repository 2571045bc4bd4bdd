import json
import subprocess
import sys

import pytest

from graphdnn.engines.cudnn.plans import KNOBS, PlanName
from tests.engines.cudnn.test_surface import PATTERNS


@pytest.mark.parametrize("text", ["eng0", "eng4_k24=2", "eng41_k2=0_k13=1_k18=0_k25=1_k27=1_k28=2", "eng7_k24=-1"])
def test_names_are_read_and_written_back(text: str) -> None:
    assert str(PlanName.parse(text)) == text


@pytest.mark.parametrize("text", ["", "engine4", "eng4_k24", "eng4_24=2", "eng4_k24=2_"])
def test_other_names_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is needed"):
        PlanName.parse(text)


def test_a_knob_without_a_name_in_the_frontend_cannot_be_set() -> None:
    assert PlanName.parse("eng4_k24=2").is_settable
    assert not PlanName.parse("eng4_k43=1").is_settable


def test_knobs_are_the_frontends() -> None:
    import cudnn

    named = {n for n in dir(cudnn.knob_type) if n.isupper() and n != "NOT_SET"}
    assert set(KNOBS.values()) == named


@pytest.mark.parametrize("name", ["conv_plain", "conv_bias_relu", "conv_odd_channels_bias_relu"])
def test_heuristics_answer_for_a_device_that_is_not_here(name: str) -> None:
    """Precompiled engines only: the others look for a driver."""
    made = subprocess.run(
        [sys.executable, "-m", "tests.engines.cudnn.offline", name], check=True, capture_output=True, text=True
    )
    found = json.loads(made.stdout)
    assert len({n for n, *_ in found}) == len(found) > 20
    engines = {n.split("_")[0] for n, *_ in found}
    assert len(engines & set(PATTERNS[name]["engines"])) >= 3
    assert any(workspace > 0 for _, workspace, *_ in found)
    assert all(0 <= workspace < 1 << 30 for _, workspace, *_ in found)
    assert any(deterministic for *_, deterministic in found)
