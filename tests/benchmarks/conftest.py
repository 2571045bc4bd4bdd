"""Regions of the benchmarks whose weights cost nothing to make."""

from zlib import crc32

import numpy as np
import pytest

import graphdnn as gd
from benchmarks import plan_cases


def by_name(name: str, shape: tuple[int, ...], dtype: gd.DType) -> np.ndarray:
    """One number in all places, another one for another name."""
    return np.broadcast_to(np.array(crc32(name.encode()) % 251 + 1).astype(dtype.numpy), shape)


@pytest.fixture
def numbers_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of the regions of plan choice have no random numbers, as far as only their names matter."""
    monkeypatch.setattr(plan_cases, "drawn", by_name)
