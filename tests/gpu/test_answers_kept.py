"""Answers of engines on a device that is here: kept in its cache, and not worked out again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.engines import answers
from graphdnn.engines.answers import ANSWERS, KIND, StoredAnswers
from graphdnn.runtime.cache import DiskStore

pytestmark = pytest.mark.gpu


def test_a_warm_compile_works_no_answer_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    g = gd.GraphBuilder("net")
    x = g.input("x", (4, 16, 32, 32), gd.float16)
    w = g.constant(np.full((16, 16, 3, 3), 0.01, np.float16))
    rows = g.reshape(g.relu(g.conv(x, w, padding=1)), (64, 1024))
    graph = g.build({"y": g.softmax(g.matmul(rows, g.constant(np.eye(1024, dtype=np.float16))))})
    options = gd.CompileOptions(cache_dir=str(tmp_path))
    worked_out: list[bool] = []
    note = StoredAnswers.note

    def spied(self: StoredAnswers, question: Any, region: Any, answer: Any, is_new: bool) -> None:
        worked_out.append(is_new)
        note(self, question, region, answer, is_new)

    monkeypatch.setattr(answers, "is_as_loaded", lambda: True)
    monkeypatch.setattr(StoredAnswers, "note", spied)
    ANSWERS.clear()
    cold = gd.compile(graph, "cuda", options).report
    assert any(worked_out)
    assert [e.kind for e in DiskStore(tmp_path).entries()].count(KIND) == 1
    worked_out.clear()
    ANSWERS.clear()
    warm = gd.compile(graph, "cuda", options).report
    assert worked_out
    assert not any(worked_out)
    assert [(r.nodes, r.engine, r.plan) for r in warm.regions] == [(r.nodes, r.engine, r.plan) for r in cold.regions]
