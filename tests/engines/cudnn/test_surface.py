import json
from pathlib import Path

import pytest

from graphdnn.answer import Decline
from graphdnn.engines.contract import Policy, Support
from graphdnn.engines.cudnn.anatomy import Anatomy
from graphdnn.engines.cudnn.engine import CudnnEngine
from graphdnn.engines.cudnn.lower import Lowering, lower
from graphdnn.ir.region import Region
from graphdnn.ir.types import row_major
from graphdnn.target import Target
from tests.engines.cudnn.layouts import spatial_last, whole
from tests.engines.cudnn.surface_graphs import GRAPHS, NOT_BUILT, ROW_MAJOR

SURFACE = Path(__file__).parents[2] / "data" / "h200_surface.json"
PATTERNS = {p["pattern"]: p for p in json.loads(SURFACE.read_text())["patterns"]}
H200 = Target.named("h200")


def region_of(name: str) -> Region:
    return whole(GRAPHS[name](), row_major if name in ROW_MAJOR else spatial_last)


def test_every_pattern_is_a_graph_or_is_named_as_left_out() -> None:
    assert set(PATTERNS) == set(GRAPHS) | set(NOT_BUILT)


@pytest.mark.parametrize("name", GRAPHS)
def test_rules_answer_as_the_device_did(name: str) -> None:
    answer = CudnnEngine().supports(region_of(name), H200, Policy())
    assert bool(answer) is PATTERNS[name]["accepted"], str(answer)


@pytest.mark.parametrize("name", [n for n in GRAPHS if PATTERNS[n]["accepted"]])
def test_the_real_frontend_builds_every_accepted_pattern(name: str) -> None:
    region = region_of(name)
    frame = Anatomy(region).frame
    assert not isinstance(frame, Decline)
    made = lower(region, frame, sm_version=90)
    assert isinstance(made, Lowering), str(made)
    assert len(made.bindings) == len(region.inputs) + len(region.outputs)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("conv_reduction_avgpool", "all axes but the channels"),
        ("matmul_softmax_matmul_manual", "one of them in a graph"),
        ("batchnorm_inference_relu", "fold it into the weights"),
        ("pointwise_bcast_chain4", "one entry a channel"),
    ],
)
def test_refusals_say_why(name: str, word: str) -> None:
    answer = CudnnEngine().supports(region_of(name), H200, Policy())
    assert isinstance(answer, Decline)
    assert word in answer.reason


def test_estimates_of_swiglu_say_that_heuristics_are_not_to_be_trusted() -> None:
    answer = CudnnEngine().supports(region_of("matmul_swiglu_two"), H200, Policy())
    assert isinstance(answer, Support)
    assert any("heuristics" in note for note in answer.notes)
