"""Whatever a plan does in the child, this process is told in words and lives on."""

import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

import graphdnn as gd
from graphdnn import compiler
from graphdnn.answer import Code, Decline
from graphdnn.engines.contract import Policy
from graphdnn.engines.manifest import MANIFEST
from graphdnn.ir.region import Region
from graphdnn.runtime.cache import DiskStore
from graphdnn.runtime.child import DEPTH_VARIABLE, Child, Ended, last_words
from graphdnn.runtime.device import HostDevice
from graphdnn.runtime.probe import KIND, WORK, ChildProber, asked, work
from tests.runtime.faulty import PLACE

ROOT = Path(__file__).parents[2]
POLICY = Policy("tf32", True, 1 << 20)
HERE = {"device": "cpu", "graphdnn": "0"}
ENGINES = {**MANIFEST, "faulty": PLACE}


def some_region(scale: float = 2.0) -> Region:
    """Part of a graph with a large constant and a state; one input is a view that starts 10 bytes into its memory."""
    g = gd.GraphBuilder("small")
    table = g.constant(np.ones((600, 5), np.float16), name="table")
    rows = g.slice(g.input("x", (3, 5), gd.float16), starts=(1, 0), stops=(3, 5))
    old = g.state("old", (2, 5), gd.float16)
    new = g.add(g.mul(rows, scale, name="scaled"), old, name="sum")
    graph = g.build({"y": g.matmul(new, g.transpose(table, (1, 0)))}, updates={"old": new})
    region = Region.of(graph, [n for n in graph.nodes if n.name in ("scaled", "sum")])
    assert region.alignments == (2, 16)
    return region


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    return DiskStore(tmp_path)


@pytest.fixture
def prober(store: DiskStore) -> Iterator[ChildProber]:
    with ChildProber(ENGINES, HostDevice(store), POLICY, HERE, seconds=20) as made:
        yield made


def ended(prober: ChildProber, plan: str, region: Region | None = None, code: Code = Code.RUN) -> str:
    answer = prober.probe(region or some_region(), "faulty", plan)
    assert isinstance(answer, Decline)
    assert answer.code is code
    assert f"plan {plan} of faulty" in answer.reason
    return answer.reason


FAULTS = {
    "abort": "SIGABRT",
    "raise": "RuntimeError: not even an error of ours",
    "vanish": "exit status 0",
    "garble": "no answer",
}
MORE_FAULTS = {
    "crash": "SIGSEGV",
    "lose": "CUDA_ERROR_ILLEGAL_ADDRESS",
    "exit": "exit status 3",
    "in build abort": "SIGABRT",
    "leave another behind": "SIGABRT",
}


@pytest.mark.parametrize("faults", [FAULTS, pytest.param(MORE_FAULTS, marks=pytest.mark.slow)], ids=["few", "more"])
def test_every_fault_becomes_a_decline_and_the_next_plan_runs(faults: dict[str, str], prober: ChildProber) -> None:
    for plan, word in faults.items():
        assert word in ended(prober, plan), plan
    assert prober.probe(some_region(), "faulty", "good") is None


def test_where_it_died_is_told(prober: ChildProber) -> None:
    reason = ended(prober, "in build abort")
    assert "Fatal Python error: Aborted" in reason
    assert "faulty.py" in reason


@pytest.mark.parametrize("plan", ["hang in a library", pytest.param("hang", marks=pytest.mark.slow)])
def test_a_plan_that_hangs_is_given_up(plan: str, store: DiskStore) -> None:
    with ChildProber(ENGINES, HostDevice(store), POLICY, HERE, seconds=1.0) as prober:
        begun = time.monotonic()
        reason = ended(prober, plan)
        assert "did not answer within 1 s" in reason
        assert "faulty.py" in reason
        assert time.monotonic() - begun < 15


def test_what_a_library_prints_disturbs_nobody(prober: ChildProber, capfd: pytest.CaptureFixture) -> None:
    assert prober.probe(some_region(), "faulty", "chatter") is None
    assert prober.probe(some_region(), "faulty", "good") is None
    assert capfd.readouterr() == ("", "")


def test_one_child_serves_until_it_dies(prober: ChildProber, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    start = Child.start
    monkeypatch.setattr(Child, "start", staticmethod(lambda entry: started.append(entry) or start(entry)))
    for scale in (2.0, 3.0, 4.0):
        assert prober.probe(some_region(scale), "faulty", "good") is None
        assert prober.probe(some_region(scale), "reference", "numpy") is None
    assert len(started) == 1
    ended(prober, "abort")
    assert len(started) == 1
    assert prober.probe(some_region(5.0), "faulty", "good") is None
    assert len(started) == 2


def test_knobs_of_one_engine_need_one_probe(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def ask(self: ChildProber, region: Region, engine: str, plan: str, is_over: object) -> dict[str, str]:
        asked.append(plan)
        return {"verdict": "failed" if plan == "eng8_k1=2" else "passed", "reason": "it died"}

    monkeypatch.setattr(ChildProber, "_ask", ask)
    prober = ChildProber(ENGINES, HostDevice(store), POLICY, HERE)
    plans = ("eng8_k1=2", "eng8_k1=3", "eng8_k1=4", "eng8", "eng80_k1=2", "eng8_k1=2")
    verdicts = [prober.probe(some_region(), "faulty", plan) is None for plan in plans]
    assert verdicts == [False, True, True, True, True, False]
    assert asked == ["eng8_k1=2", "eng8_k1=3", "eng80_k1=2"]
    assert prober.probe(some_region(3.0), "faulty", "eng8_k1=4") is None
    assert prober.probe(some_region(), "reference", "eng8_k1=4") is None
    assert asked[3:] == ["eng8_k1=4", "eng8_k1=4"]


def test_a_child_does_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is installed, cuDNN's frontend would import it."""
    (tmp_path / "torch.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    child = Child.start("tests.runtime.faulty:import_torch")
    assert not isinstance(child, Ended)
    assert child.ask({}, 20) == {"found": False, "loaded": False}
    child.close()


def test_nothing_is_started_before_the_first_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    with ChildProber(ENGINES, HostDevice(), POLICY, HERE):
        pass


def test_verdicts_are_remembered(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with ChildProber(ENGINES, HostDevice(store), POLICY, HERE) as prober:
        assert prober.probe(some_region(), "faulty", "good") is None
        first = ended(prober, "abort")
    assert [e.kind for e in store.entries()] == [KIND, KIND]
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    with ChildProber(ENGINES, HostDevice(store), POLICY, HERE) as prober:
        assert prober.probe(some_region(), "faulty", "good") is None
        assert ended(prober, "abort").startswith(first)
    with pytest.raises(pytest.fail.Exception, match="started"):
        ChildProber(ENGINES, HostDevice(store), POLICY, HERE).probe(some_region(7.0), "faulty", "good")


@pytest.mark.parametrize("content", [b"", b"{}", b"[" * 100_000, b'{"verdict": "failed"}', b'{"verdict": 1}', b"\xff"])
def test_a_verdict_that_cannot_be_read_is_asked_for_again(
    content: bytes, store: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DiskStore, "get", lambda *_: content)
    monkeypatch.setattr(ChildProber, "_ask", lambda *_: {"verdict": "failed", "reason": "asked"})
    with pytest.warns(RuntimeWarning, match="a cached trial of faulty:good is dropped"):
        answer = ChildProber(ENGINES, HostDevice(store), POLICY, HERE).probe(some_region(7.0), "faulty", "good")
    assert "asked" in str(answer)


def test_a_verdict_holds_in_its_environment_only(store: DiskStore) -> None:
    with ChildProber(ENGINES, HostDevice(store), POLICY, HERE) as prober:
        ended(prober, "raise")
    with ChildProber(ENGINES, HostDevice(store), POLICY, {**HERE, "driver": "13.1"}) as prober:
        assert "tried earlier" not in ended(prober, "raise")
    with ChildProber(ENGINES, HostDevice(store), replace(POLICY, precision="ieee"), HERE) as prober:
        assert "tried earlier" not in ended(prober, "raise")
    assert len(store.entries()) == 3


def test_a_verdict_of_a_compilation_holds_for_the_code_that_made_the_plan(
    store: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What faulted, or passed, may do otherwise once an engine is changed, whose version stays the same meanwhile."""
    monkeypatch.setattr(compiler, "MANIFEST", ENGINES)
    for digest, is_known in (("a", False), ("a", True), ("b", False)):
        monkeypatch.setattr(compiler, "code_digest", lambda digest=digest: digest)
        with compiler.prober_for(gd.Target.cpu(), HostDevice(store), POLICY) as prober:
            assert ("tried earlier" in ended(prober, "raise")) is is_known


HUNGRY = ("hungry", "out of device memory", "in build out of device memory", "out of host memory")


@pytest.mark.parametrize("plan", ["starve", *HUNGRY, "not built"])
def test_what_says_nothing_of_the_plan_is_not_remembered(plan: str, prober: ChildProber, store: DiskStore) -> None:
    answer = prober.probe(some_region(), "faulty", plan)
    assert isinstance(answer, Decline)
    assert not store.entries()
    if plan == "not built":
        assert answer == Decline(Code.BUILD, "it needs 300 registers")
    else:
        assert answer.code is Code.TRANSIENT
        assert "could not be tried" in answer.reason
        assert ("not enough memory" in answer.reason) is (plan in HUNGRY)
    assert prober.probe(some_region(), "faulty", "good") is None


def test_host_plans_run_on_zeros(prober: ChildProber) -> None:
    assert prober.probe(some_region(), "faulty", "on the host") is None


def test_no_interpreter_is_a_decline(prober: ChildProber, monkeypatch: pytest.MonkeyPatch) -> None:
    strange = [*sys.path, "a\0b"]
    for name, value in (("executable", None), ("executable", "/nowhere/python"), ("frozen", True), ("path", strange)):
        with monkeypatch.context() as patched:
            patched.setattr(sys, name, value, raising=False)
            with ChildProber(ENGINES, HostDevice(), POLICY, HERE) as other:
                for _ in range(2):
                    assert "could not be tried" in ended(other, "good", code=Code.TRANSIENT)


def test_an_interpreter_that_is_none_is_a_decline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs with Python inside call themselves sys.executable, and start again when they are called."""
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nyes 'welcome to the program'\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with ChildProber(ENGINES, HostDevice(), POLICY, HERE) as prober:
        assert "something else than a child of ours" in ended(prober, "good", code=Code.TRANSIENT)


def test_children_do_not_multiply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DEPTH_VARIABLE, "2")
    found = Child.start("graphdnn.runtime.probe:work")
    assert found == Ended("this is the child of a child process already", by_chance=True)


def test_a_depth_that_is_no_number_is_none(prober: ChildProber, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DEPTH_VARIABLE, "deep")
    assert prober.probe(some_region(), "faulty", "good") is None


def test_a_child_that_was_closed_says_so() -> None:
    child = Child.start("tests.runtime.faulty:import_torch")
    assert not isinstance(child, Ended)
    child.close()
    for answer in (child.ask({}, 20), child.next(20)):
        assert answer == Ended("it was closed before", by_chance=True)


@pytest.mark.parametrize("deed", ["hang", "hang in a library"])
def test_a_trial_ends_when_nobody_waits_for_it_any_more(deed: str, prober: ChildProber, store: DiskStore) -> None:
    """And says nothing of the plan; the next question finds another child."""
    end = time.monotonic() + 1
    answer = prober.probe(some_region(), "faulty", deed, lambda: time.monotonic() > end)
    assert time.monotonic() < end + 2
    assert isinstance(answer, Decline)
    assert (answer.code, "given up when timing ended" in answer.reason) == (Code.TRANSIENT, True)
    late = prober.probe(some_region(), "faulty", "good", lambda: True)
    assert isinstance(late, Decline)
    assert late.code is Code.TRANSIENT
    assert not list(store.entries())
    assert prober.probe(some_region(), "faulty", "good", lambda: False) is None


@pytest.mark.parametrize("closing", ["kill", "close"])
def test_a_child_that_is_closed_while_it_is_asked_says_so(closing: str) -> None:
    child = Child.start(WORK)
    assert not isinstance(child, Ended)
    threading.Timer(0.3, getattr(child, closing)).start()
    begun = time.monotonic()
    answer = child.ask(asked(some_region(), PLACE, "hang", POLICY, HostDevice(), None), 20)
    assert isinstance(answer, Ended)
    assert answer.by_chance
    assert time.monotonic() - begun < 10
    child.close()


def test_a_pipe_that_is_closed_between_two_frames_is_an_end() -> None:
    child = Child.start(WORK)
    assert not isinstance(child, Ended)
    for pipe in (child._process.stdin, child._process.stdout):
        assert pipe is not None
        pipe.close()
    assert isinstance(child.ask({}, 20), Ended)


def test_a_child_that_cannot_import_its_work_says_so() -> None:
    found = Child.start("graphdnn.runtime.nothing:work")
    assert isinstance(found, Ended)
    assert "No module named 'graphdnn.runtime.nothing'" in found.how


class OneQuestion:
    """A parent that asks once."""

    def __init__(self, **changes: object) -> None:
        region = some_region()
        question = {
            "graph": region.graph.to_json(),
            "nodes": [n.name for n in region.nodes],
            "key": region.key,
            "engine": PLACE,
            "plan": "good",
            "policy": asdict(POLICY),
            "device": ["cpu", 0, ""],
            "runs": True,
        }
        self.questions = [{**question, **changes}]
        self.answers: list[dict[str, object]] = []

    def receive(self) -> dict[str, object] | None:
        return self.questions.pop() if self.questions else None

    def send(self, answer: dict[str, object]) -> None:
        self.answers.append(answer)


@pytest.mark.parametrize(
    ("changes", "verdict", "word"),
    [
        ({}, "passed", ""),
        ({"graph": "{}"}, "unable", "document"),
        ({"nodes": ["sum"]}, "unable", "not what it was"),
        ({"engine": "graphdnn.nothing:Engine"}, "unable", "No module named"),
        ({"device": ["cuda", "no ordinal", ""]}, "unable", ""),
        ({"policy": asdict(Policy())}, "failed", "the policy arrived as"),
    ],
)
def test_the_child_answers_whatever_it_is_asked(changes: dict[str, object], verdict: str, word: str) -> None:
    parent = OneQuestion(**changes)
    work(parent)  # type: ignore[arg-type]
    assert parent.answers[0]["verdict"] == verdict
    assert word in str(parent.answers[0].get("reason", ""))


def test_threads_take_turns(prober: ChildProber) -> None:
    answers: dict[int, object] = {}

    def ask(number: int) -> None:
        answers[number] = prober.probe(some_region(float(number)), "faulty", "raise" if number % 3 == 0 else "good")

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {n for n, a in answers.items() if a is None} == {1, 2, 4, 5}


SCRIPT = """
import sys
sys.path[:] = [p for p in {path!r}]
import graphdnn as gd
from graphdnn.engines.contract import Policy
from graphdnn.ir.region import Region
from graphdnn.runtime.device import HostDevice
from graphdnn.runtime.probe import ChildProber

g = gd.GraphBuilder("s")
graph = g.build({{"y": g.relu(g.input("x", (4,), gd.float32))}})
prober = ChildProber({{"faulty": {place!r}}}, HostDevice(), Policy("tf32", True, 1 << 20), {{}})
for plan in ("good", "abort"):
    print(prober.probe(Region.of(graph, graph.nodes), "faulty", plan))
"""


def test_a_script_without_a_main_guard_in_an_empty_environment(tmp_path: Path) -> None:
    """Nothing but the parent's own sys.path leads to the modules; a json.py in the working directory is not taken."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(path=[str(ROOT), *(p for p in sys.path if p)], place=PLACE))
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    (tmp_path / "graphdnn.py").write_text("raise SystemExit('the wrong graphdnn')")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, env={}, stdin=subprocess.DEVNULL
    )
    assert done.stderr == ""
    good, bad = done.stdout.splitlines()
    assert good == "None"
    assert "SIGABRT" in bad


@pytest.mark.slow
def test_a_package_in_an_archive_without_a_terminal(tmp_path: Path) -> None:
    """The archive leads sys.path, so that nothing of a checkout is taken."""
    archive = tmp_path / "graphdnn.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for source in sorted((ROOT / "graphdnn").rglob("*.py")):
            file.write(source, source.relative_to(ROOT))
    shutil.copy(ROOT / "tests" / "runtime" / "faulty.py", tmp_path)
    path = [str(archive), str(tmp_path), *(p for p in sys.path if p and Path(p) != ROOT)]
    script = SCRIPT.format(path=path, place="faulty:FaultyEngine") + "\nprint(gd.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert done.stderr == ""
    good, bad, where = done.stdout.splitlines()
    assert good == "None"
    assert "SIGABRT" in bad
    assert str(archive) in where


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="no process groups here")
def test_a_child_ends_with_its_parent(tmp_path: Path) -> None:
    code = SCRIPT.format(path=[str(ROOT), *(p for p in sys.path if p)], place=PLACE) + textwrap.dedent("""
        prober.probe(Region.of(graph, graph.nodes), "faulty", "chatter")
        print(prober._child._process.pid, flush=True)
        import os
        os.kill(os.getpid(), 9)
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    pid = int(done.stdout.splitlines()[-1])
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists() or "(zombie)" in Path(f"/proc/{pid}/status").read_text():
            return
        time.sleep(0.1)
    raise AssertionError(f"process {pid} is still there")


def test_last_words_are_the_error_and_the_innermost_place() -> None:
    said = b"""terminate called after throwing
Fatal Python error: Aborted

Current thread 0x01 (most recent call first):
  File "plans.py", line 3 in enqueue
  File "probe.py", line 7 in work

Extension modules: numpy (total: 1)
"""
    assert last_words(said) == (
        'terminate called after throwing | Fatal Python error: Aborted | File "plans.py", line 3 in enqueue'
    )
    assert last_words(b"Traceback (most recent call last):\n  File 'x'\nValueError: no\n") == "ValueError: no"
    assert last_words(b"") == ""


@pytest.mark.parametrize(("deed", "chosen"), [("abort", "numpy"), ("good", "unknown")])
def test_compiling_goes_on_past_a_plan_that_dies(deed: str, chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MANIFEST, "reference", "tests.runtime.faulty:UnknownReference")
    monkeypatch.setenv("FAULTY_DEED", deed)
    g = gd.GraphBuilder("small")
    exe = gd.compile(g.build({"y": g.relu(g.input("x", (3,), gd.float32))}), target="cpu")
    (region,) = exe.report.regions
    assert region.plan == chosen
    np.testing.assert_array_equal(exe({"x": np.array([-1, 0, 2], np.float32)})["y"], [0, 0, 2])
    plans = {p.name: p for c in exe.report.candidates for p in c.plans}
    assert plans[chosen].verdict == "chosen"
    if deed == "abort":
        assert plans["unknown"].verdict == "failed"
        assert "SIGABRT" in plans["unknown"].reason
