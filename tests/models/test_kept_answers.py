"""Every answer about whole models comes back from the disk as it was given, and a fresh process works none out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import graphdnn as gd
from examples.models import bert, llama, resnet, unet
from examples.models.convolutional import half_rounded
from graphdnn.engines import answers
from graphdnn.engines.answers import KIND, Answers, StoredAnswers
from graphdnn.engines.answers_file import Answer, decode_answers
from graphdnn.ir.region import Region
from graphdnn.runtime.cache import DiskStore

H200 = gd.Target.named("h200")
CONFIG = llama.Config(hidden=1024, heads=8, kv_heads=2, inner=3584)

MODELS: dict[str, Callable[[gd.DType], gd.Graph]] = {
    "resnet50": lambda t: resnet.build(half_rounded(resnet.random_parameters(0)), 32, t, is_channels_last=True),
    "u_net": lambda t: unet.build(half_rounded(unet.random_parameters(0)), 4, t),
    "bert": lambda t: bert.bert_layer(bert.random_layer_weights(0, bert.LARGE, t), 16, 512, bert.LARGE, t),
    "llama": lambda t: llama.layer(llama.random_weights(0, CONFIG, t), 1, 4096, CONFIG, t),
}


@pytest.mark.parametrize("dtype", [gd.float16, gd.float32], ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_all_answers_come_back(model: str, dtype: gd.DType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "is_as_loaded", lambda: True)
    monkeypatch.setattr(answers, "ANSWERS", Answers())
    graph, options = MODELS[model](dtype), gd.CompileOptions(cache_dir=str(tmp_path))
    given: dict[answers.AnswerKey, Answer] = {}
    note = StoredAnswers.note

    def spied(self: StoredAnswers, question: answers.Question, region: Region, answer: Answer, is_new: bool) -> None:
        given[*question, answers.wording_of(answer, region)] = answer
        worked_out.append(is_new)
        note(self, question, region, answer, is_new)

    monkeypatch.setattr(StoredAnswers, "note", spied)
    worked_out: list[bool] = []
    first = gd.compile(graph, H200, options).report
    (entry,) = DiskStore(tmp_path).entries()
    kept = decode_answers(DiskStore(tmp_path).get(KIND, str(entry.key())) or b"")
    assert len(given) > 50
    assert repr(kept) == repr(given), "equal, and of the same types"
    monkeypatch.setattr(answers, "ANSWERS", Answers())
    worked_out.clear()
    assert gd.compile(graph, H200, options).report.model_dump_json() == first.model_dump_json()
    assert worked_out
    assert not any(worked_out)
