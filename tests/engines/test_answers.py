"""Answers kept across compilations: what is asked again, what is not, and whose words an answer is in."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

import graphdnn as gd
from graphdnn.answer import Code, Decline
from graphdnn.engines import answers
from graphdnn.engines.answers import ANSWERS, Answers, remembered
from graphdnn.engines.contract import Policy, Support
from graphdnn.engines.cudnn.engine import CudnnEngine
from graphdnn.ir.region import Region
from graphdnn.target import Target

H200 = Target.named("h200")
YES, NO = Support(1.0, "float32"), Decline(Code.OP, "%y: no")


class Oracle:
    """Gives what it was told to give, and counts how often it is asked."""

    def __init__(self, answer: Support | Decline) -> None:
        self.answer = answer
        self.asked = 0

    @remembered
    def supports(self, region: Region, target: Target, policy: Policy) -> Support | Decline:
        self.asked += 1
        return self.answer


def region(name: str = "y", rows: int = 8, strides: tuple[int, int] | None = None) -> Region:
    g = gd.GraphBuilder("g")
    x = g.input("x", (rows, 16), gd.float32, strides=strides)
    graph = g.build({"out": g.relu(x, name=name)})
    return Region.of(graph, graph.nodes)


def asked(answer: Support | Decline, *questions: tuple[Region, Target, Policy]) -> int:
    ANSWERS.clear()
    oracle = Oracle(answer)
    for question in questions:
        assert oracle.supports(*question) is answer
    return oracle.asked


def test_the_same_question_is_asked_once() -> None:
    assert asked(YES, (region(), H200, Policy()), (region(), Target.named("h200"), Policy())) == 1
    assert asked(NO, (region(), H200, Policy()), (region(), H200, Policy())) == 1


def test_another_question_is_asked() -> None:
    slower = replace(H200, bandwidth=1e9)
    later = replace(H200, versions={"cudnn": "9.99"})
    weaker = replace(H200, rates={**H200.rates, "float16": 1.0})
    questions = [
        (region(), H200, Policy()),
        (region(rows=9), H200, Policy()),
        (region(strides=(1, 8)), H200, Policy()),
        (region(), slower, Policy()),
        (region(), later, Policy()),
        (region(), weaker, Policy()),
        (region(), H200, Policy(precision="tf32")),
        (region(), H200, Policy(workspace_limit=0)),
    ]
    assert asked(YES, *questions, *questions) == len(questions)


def test_a_no_in_other_words_is_asked_for_again() -> None:
    assert asked(YES, (region("y"), H200, Policy()), (region("z"), H200, Policy())) == 1
    assert asked(NO, (region("y"), H200, Policy()), (region("z"), H200, Policy())) == 2


def test_a_no_says_how_far_into_memory_a_view_starts() -> None:
    """Views of equal alignment are equal structures; what the sentence says of them is not."""

    def view(first: int) -> Region:
        g = gd.GraphBuilder("g")
        x = g.input("x", (64,), gd.float16)
        graph = g.build({"y": g.relu(g.slice(x, [first], [first + 16], name="v"), name="y")})
        return Region.of(graph, [graph.node("y")])

    engine = CudnnEngine()
    for first in (4, 12, 20):
        answer = engine.supports(view(first), H200, Policy())
        assert isinstance(answer, Decline)
        assert f"starts {first} elements" in answer.reason


def test_what_is_missing_may_come() -> None:
    absent = Decline(Code.SETUP, "there is no library")
    assert asked(absent, (region(), H200, Policy()), (region(), H200, Policy())) == 2


def test_engines_do_not_hear_each_other() -> None:
    class Other(Oracle):
        @remembered
        def supports(self, region: Region, target: Target, policy: Policy) -> Support | Decline:
            return NO

    ANSWERS.clear()
    assert Oracle(YES).supports(region(), H200, Policy()) is YES
    assert Other(YES).supports(region(), H200, Policy()) is NO


def test_the_oldest_answers_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    few = Answers(most=3)
    monkeypatch.setattr(answers, "ANSWERS", few)
    oracle = Oracle(YES)
    for rows in (1, 2, 3, 1, 4):  # 2 is the one that was not asked for longest
        oracle.supports(region(rows=rows), H200, Policy())
    assert (len(few), oracle.asked) == (3, 4)
    oracle.supports(region(rows=1), H200, Policy())
    assert oracle.asked == 4
    oracle.supports(region(rows=2), H200, Policy())
    assert (len(few), oracle.asked) == (3, 5)


def test_threads_may_ask_at_once() -> None:
    few = Answers(most=8)
    regions = [region(rows=n) for n in range(1, 33)]
    wrong: list[object] = []

    def ask() -> None:
        for r in regions * 20:
            place = "engine", "machine", r.key
            found = few.get(place, r)
            if found is None:
                few.keep(place, r, Support(float(r.inputs[0].type.shape[0]), "float32"))
            elif found != Support(float(r.inputs[0].type.shape[0]), "float32"):
                wrong.append(found)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(few) == 8


def test_a_second_compilation_asks_nothing_and_says_the_same() -> None:
    g = gd.GraphBuilder("net")
    x = g.input("x", (4, 16, 8, 8), gd.float16)
    w = g.input("w", (16, 16, 3, 3), gd.float16)
    graph = g.build({"y": g.softmax(g.relu(g.conv(x, w, padding=1)), axis=1)})
    ANSWERS.clear()
    first = gd.compile(graph, target=H200).report.model_dump_json()
    known = len(ANSWERS)
    assert known
    assert gd.compile(graph, target=H200).report.model_dump_json() == first
    assert len(ANSWERS) == known
    ANSWERS.clear()
    assert gd.compile(graph, target=H200).report.model_dump_json() == first
