"""The recorder of candidate lists on the device: every plan with all that is known of it, none of them wrong."""

from pathlib import Path

import pytest

from tests.gpu.record_candidates import main
from tests.recorded.lists import read

pytestmark = pytest.mark.gpu


def test_two_cases_are_recorded_whole(tmp_path: Path) -> None:
    path = tmp_path / "lists.json"
    assert main(["--out", str(path), "--rows", "softmax 8192x1024,matmul 512x384x1152"]) == 0
    found = {r.case.split()[0]: r for r in read(path)}
    assert set(found) == {"softmax", "matmul"}
    for recording in found.values():
        assert [o.engine for o in recording.offers] == ["cudnn", "cublaslt", "nvrtc"]
        assert (recording.fastest.us or 0.0) > 1
    offers = {o.engine: o for o in found["matmul"].offers}
    assert all(any(p.us for p in o.plans) for o in offers.values())
    assert next(o for o in found["softmax"].offers if o.engine == "cudnn").refusal
