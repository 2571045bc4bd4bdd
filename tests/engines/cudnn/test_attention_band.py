"""Causal flag and window against the frontend's band: its left bound is exclusive."""

from types import SimpleNamespace

import pytest

from graphdnn.engines.cudnn.rules.attention import band
from graphdnn.ir.ops.attention import Attention

EMIT = SimpleNamespace(cudnn=SimpleNamespace(diagonal_alignment=SimpleNamespace(TOP_LEFT="top", BOTTOM_RIGHT="bottom")))


@pytest.mark.parametrize(
    ("causal", "window", "corner", "left", "right"),
    [
        (None, None, "top", None, None),
        ("top_left", None, "top", None, 0),
        ("bottom_right", None, "bottom", None, 0),
        (None, (1, 0), "top", 2, 0),
        (None, (0, 0), "top", 1, 0),
        ("top_left", (1, None), "top", 2, 0),
        ("top_left", (3, 5), "top", 4, 0),
        (None, (None, 5), "top", None, 5),
        ("bottom_right", (3, None), "bottom", 4, 0),
        ("bottom_right", (2**63, 2**63), "bottom", None, 0),
        (None, (11, 12), "top", 12, None),
    ],
)
def test_bounds(causal, window, corner, left, right) -> None:
    found = band(EMIT, Attention(scale=1.0, causal=causal, window=window), sq=4, skv=8)  # type: ignore[arg-type]
    assert found["diagonal_alignment"] == corner
    assert found.get("diagonal_band_left_bound") == left
    assert found.get("diagonal_band_right_bound") == right
