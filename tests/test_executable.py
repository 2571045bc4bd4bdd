"""What compiling leaves for later, and what it leaves as it was."""

import copy
import gc
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest

import graphdnn as gd
from graphdnn import compiler
from graphdnn.executable import LazyReport


def graph() -> gd.Graph:
    g = gd.GraphBuilder("small")
    x = g.input("x", (4, 8), gd.float32)
    return g.build({"y": g.relu(g.add(x, 1.0))})


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """One entry for each report that was written."""
    found: list[object] = []
    account = compiler.account

    def noted(decisions: compiler.Decisions) -> gd.CompileReport:
        found.append(decisions)
        return account(decisions)

    monkeypatch.setattr(compiler, "account", noted)
    return found


def test_a_report_is_written_when_first_asked_for(written: list[object]) -> None:
    exe = gd.compile(graph(), target="cpu")
    exe({"x": np.ones((4, 8), np.float32)})
    other = exe.context()
    assert written == []
    assert "small" in exe.explain()
    assert other.report is exe.report
    assert len(written) == 1


def test_threads_get_one_report() -> None:
    barrier, calls = Barrier(8), []
    report = gd.compile(graph(), target="cpu").report

    def write() -> gd.CompileReport:
        calls.append(1)
        return report.model_copy()

    once = LazyReport(write)

    def read(_: int) -> gd.CompileReport:
        barrier.wait()
        return once()

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(read, range(8)))
    assert len({id(r) for r in found}) == len(calls) == 1


def test_a_report_that_could_not_be_written_is_tried_again() -> None:
    answers = iter([ValueError("no"), gd.compile(graph(), target="cpu").report])

    def write() -> gd.CompileReport:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    once = LazyReport(write)
    with pytest.raises(ValueError, match="no"):
        once()
    assert once().graph == "small"


@pytest.fixture
def collector() -> Iterator[None]:
    yield
    gc.enable()


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize("is_on", [True, False])
def test_the_garbage_collector_is_as_it_was(is_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    meanwhile = []
    fitted = compiler.fitted

    def noted(*given: object) -> object:
        meanwhile.append(gc.isenabled())
        return fitted(*given)

    monkeypatch.setattr(compiler, "fitted", noted)
    gc.enable() if is_on else gc.disable()
    gd.compile(graph(), target="cpu")
    assert (gc.isenabled(), meanwhile) == (is_on, [False])
    monkeypatch.setattr(compiler, "fitted", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        gd.compile(graph(), target="cpu")
    assert gc.isenabled() == is_on


def test_a_graph_that_runs_nowhere_here_says_for_what_it_was_planned(written: list[object]) -> None:
    exe = gd.compile(graph(), target=gd.Target.named("h200"))
    with pytest.raises(gd.ExecutionError, match="planned for h200"):
        exe({"x": np.ones((4, 8), np.float32)})
    assert written == []


@pytest.mark.parametrize("transfer", [pickle.dumps, copy.copy, copy.deepcopy])
def test_it_is_neither_pickled_nor_copied(transfer: Callable[[object], object]) -> None:
    with pytest.raises(gd.ExecutionError, match=r"cannot be pickled or copied; save and .*load"):
        transfer(gd.compile(graph(), target="cpu"))


def test_outputs_to_bind_are_named() -> None:
    exe, x = gd.compile(graph(), target="cpu"), np.ones((4, 8), np.float32)
    with pytest.raises(gd.ExecutionError, match=r"outputs of graph .* are a list; a mapping"):
        exe.bind({"x": x}, [x])  # type: ignore[arg-type]


@pytest.mark.parametrize("write", ["save", "save_lock"])
def test_a_file_that_cannot_be_written_is_named_as_the_caller_named_it(write: str, tmp_path: Path) -> None:
    exe, path = gd.compile(graph(), target="cpu"), tmp_path / "none" / "file"
    with pytest.raises(FileNotFoundError) as said:
        getattr(exe, write)(path)
    assert said.value.filename == str(path)
    assert list(tmp_path.iterdir()) == []


def test_plans_are_known_by_what_disables_them(tmp_path: Path) -> None:
    exe = gd.compile(graph(), target="cpu")
    exe.save(tmp_path / "small.gdn")
    disabled = {f"{region.engine}:{region.plan}" for region in exe.report.regions}
    for one in (exe, gd.load(tmp_path / "small.gdn")):
        assert {step.name for step in one._present().schedule.steps} == disabled
