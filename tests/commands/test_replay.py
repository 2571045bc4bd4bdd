"""A saved graph run plan by plan in a child: which plan dies is told, and this process lives on."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import graphdnn as gd
from graphdnn.commands import cli, replay
from graphdnn.commands.replay import Outcome, Suspect, Watch
from graphdnn.engines.manifest import MANIFEST
from graphdnn.errors import ContextLostError
from graphdnn.ir.region import Region
from graphdnn.runtime.child import Child, Ended
from graphdnn.runtime.program import Program
from graphdnn.runtime.schedule import Step, schedule
from tests.runtime import fake

UNFUSED = {"disabled_passes": ["fuse"]}
FAULTY = "tests.runtime.faulty:FaultyReference"


def some_graph() -> gd.Graph:
    """Six operations, a region each where nothing is fused."""
    g = gd.GraphBuilder("sample")
    x = g.input("x", (2, 6, 9), gd.float32)
    length = g.input("length", (2,), gd.int32)
    w = g.constant(np.full((9, 40), 0.1, np.float32), name="w")
    y = g.relu(g.matmul(x, w), name="first")
    z = g.tanh(g.softmax(y, axis=1), name="second")
    s = g.reduce_sum(z, axes=2, name="third")
    count = g.state("count", (2,), gd.int32)
    return g.build({"s": s}, updates={"count": g.add(count, length)})


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    some_graph().save(str(tmp_path / "sample.json"))
    return tmp_path / "sample.json"


def lines_of(path: Path, **arguments: object) -> tuple[Outcome, list[str]]:
    lines: list[str] = []
    given = {"options": UNFUSED, **arguments}
    return replay.replay(path, target="cpu", tell=lines.append, **given), lines


def test_every_plan_is_told_in_order(saved: Path) -> None:
    outcome, lines = lines_of(saved)
    assert outcome == Outcome()
    assert outcome.is_healthy
    report = gd.compile(some_graph(), target="cpu", options=gd.CompileOptions(**UNFUSED)).report
    assert lines[0] == f"graph sample on cpu: {len(report.regions)} plans, one after the other"
    assert len(lines) == 1 + len(report.regions) > 3
    for line, region in zip(lines[1:], report.regions, strict=True):
        assert line.startswith("ran in")
        assert f"region {region.name} ({region.pattern}), engine reference, plan numpy" in line


def test_a_saved_executable_is_run_as_it_is(tmp_path: Path) -> None:
    exe = gd.compile(some_graph(), target="cpu", options=gd.CompileOptions(**UNFUSED))
    saved = tmp_path / "sample.saved"  # what a file is, its content says and not its name
    exe.save(saved)
    lines: list[str] = []
    assert replay.replay(saved, tell=lines.append).is_healthy
    assert len(lines) == 1 + len(exe.report.regions)


def test_the_graph_of_a_saved_executable_is_compiled_anew_with_options(tmp_path: Path) -> None:
    gd.compile(some_graph(), target="cpu").save(tmp_path / "sample.gdn")
    report = gd.compile(some_graph(), target="cpu", options=gd.CompileOptions(**UNFUSED)).report
    outcome, lines = lines_of(tmp_path / "sample.gdn")
    assert outcome.is_healthy
    assert len(lines) == 1 + len(report.regions)


@pytest.mark.parametrize(
    ("deed", "word"),
    [
        ("abort", "SIGABRT"),
        ("lose", "lost"),
        pytest.param("crash", "SIGSEGV", marks=pytest.mark.slow),
        pytest.param("exit", "exit status 3", marks=pytest.mark.slow),
        pytest.param("raise", "RuntimeError", marks=pytest.mark.slow),
    ],
)
def test_the_plan_at_fault_is_named(deed: str, word: str, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MANIFEST, "reference", FAULTY)
    monkeypatch.setenv("FAULTY_DEED", deed)
    outcome, lines = lines_of(saved)
    assert outcome.culprit is not None
    assert "tanh" in outcome.culprit.pattern
    assert (outcome.culprit.engine, outcome.culprit.plan) == ("reference", "numpy")
    assert word in outcome.reason
    assert not outcome.is_healthy
    assert lines[-1].startswith(f"FAILED: region {outcome.culprit.region}")
    assert any("matmul" in line for line in lines[1:-1])
    assert "disabled_plans=('reference:numpy',)" in outcome.advice


def test_a_plan_that_hangs_is_named(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MANIFEST, "reference", FAULTY)
    monkeypatch.setenv("FAULTY_DEED", "hang")
    monkeypatch.setattr(replay, "PLAN_SECONDS", 1.0)
    outcome, _ = lines_of(saved)
    assert outcome.culprit is not None
    assert "tanh" in outcome.culprit.pattern
    assert "did not answer within 1 s" in outcome.reason


@pytest.mark.parametrize(("deed", "word"), [("abort", "SIGABRT"), ("lose", "CUDA_ERROR_ILLEGAL_ADDRESS")])
def test_a_plan_that_fails_while_compiling_is_named(
    deed: str, word: str, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MANIFEST, "reference", FAULTY)
    monkeypatch.setenv("FAULTY_DEED", deed)
    monkeypatch.setenv("FAULTY_PHASE", "build")
    outcome, lines = lines_of(saved)
    assert outcome.culprit == Suspect("reference", "numpy", "tanh")
    assert word in outcome.reason
    assert len(lines) == 1
    assert lines[0].startswith("FAILED: tanh, while compiling, engine reference, plan numpy: ")
    assert "disabled_plans=('reference:numpy',)" in outcome.advice


def test_inputs_are_read_from_a_file(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = {"x": np.ones((2, 6, 9), np.float32), "length": np.array([3, 4], np.int32)}
    np.savez(tmp_path / "inputs.npz", **arrays)
    outcome, _ = lines_of(saved, inputs=tmp_path / "inputs.npz")
    assert outcome.is_healthy


WRONG_INPUTS = {
    "x is missing": {"length": np.zeros(2, np.int32)},
    "y is no input": {"x": np.zeros((2, 6, 9), np.float32), "length": np.zeros(2, np.int32), "y": np.zeros(1)},
    "length is int64 of shape (2,)": {"x": np.zeros((2, 6, 9), np.float32), "length": np.zeros(2, np.int64)},
    "x is float32 of shape (9,)": {"x": np.zeros(9, np.float32), "length": np.zeros(2, np.int32)},
    "allow_pickle": {"x": np.array([{}], object), "length": np.zeros(2, np.int32)},
}


@pytest.mark.parametrize("word", WRONG_INPUTS)
def test_wrong_inputs_are_refused(word: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "inputs.npz", **WRONG_INPUTS[word])
    with pytest.raises((gd.ExecutionError, ValueError), match=word.replace("(", r"\(").replace(")", r"\)")):
        replay.given(some_graph(), str(tmp_path / "inputs.npz"))


def test_a_file_without_plain_arrays_is_named(tmp_path: Path) -> None:
    text, objects = tmp_path / "text.npz", tmp_path / "objects.npz"
    text.write_text("no archive")
    np.savez(objects, x=np.array([{}], object))
    with pytest.raises(gd.ExecutionError, match=r"text\.npz: it is no \.npz file"):
        replay.given(some_graph(), str(text))
    with pytest.raises(gd.ExecutionError, match=r"objects\.npz: its arrays cannot be read"):
        replay.given(some_graph(), str(objects))


def test_halves_that_numpy_writes_as_bytes_are_read(tmp_path: Path) -> None:
    g = gd.GraphBuilder("half")
    graph = g.build({"y": g.relu(g.input("x", (3,), gd.bfloat16))})
    array = np.array([1.5, -2.0, 3.0], ml_dtypes.bfloat16)
    np.savez(tmp_path / "x.npz", x=array)
    np.testing.assert_array_equal(replay.given(graph, str(tmp_path / "x.npz"))["x"], array)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"path": "nothing.json"}, "nothing.json"),
        ({"path": "a lost CUDA context.json"}, "a lost CUDA context.json"),
        ({"inputs": "nothing.npz"}, "nothing.npz"),
        ({"options": {"precision": "exact"}}, "precision is 'exact'"),
    ],
)
def test_what_is_wrong_is_one_error(arguments: dict[str, object], word: str, saved: Path) -> None:
    with pytest.raises(gd.ExecutionError, match=word):
        lines_of(Path(str(arguments.pop("path", saved))), **arguments)


def test_no_child_is_an_error(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Child, "start", staticmethod(lambda entry: Ended("there is no interpreter", True)))
    with pytest.raises(gd.ExecutionError, match="there is no interpreter"):
        replay.replay(saved)


class Heard:
    """A parent that notes what it is told, and that nothing is under way when it is."""

    def __init__(self, device: fake.FakeDevice) -> None:
        self.device = device
        self.messages: list[tuple[object, object]] = []

    def send(self, message: dict[str, object]) -> None:
        assert not self.device.pending
        self.messages.append((message["what"], message["index"]))

    def allow(self, seconds: float) -> None: ...


def on_fake_device(device: fake.FakeDevice) -> tuple[Program, dict[str, np.ndarray]]:
    graph = some_graph()
    rng = np.random.default_rng(3)
    return fake.fake_program(graph, device, rng, longest=1), replay.given(graph, None)


def test_on_a_device_each_plan_is_over_before_the_next() -> None:
    device = fake.FakeDevice()
    program, arrays = on_fake_device(device)
    heard = Heard(device)
    replay.run_by_plan(program, arrays, Watch(heard, 60.0))  # type: ignore[arg-type]
    count = len(program.schedule.steps)
    assert count > 3
    assert heard.messages == [(what, i) for i in range(count) for what in ("starts", "ran")]


def test_on_a_device_an_input_of_any_name_is_no_output() -> None:
    device = fake.FakeDevice()
    g = gd.GraphBuilder()
    graph = g.build({"y": g.relu(g.input("output y", (8,), gd.float32))})
    region = Region.of(graph, graph.nodes)
    program = Program(graph, schedule(graph, [Step(region, fake.FakePlan(region, device))]), device)
    replay.run_by_plan(program, replay.given(graph, None), Watch(Heard(device), 60.0))  # type: ignore[arg-type]
    assert device.kernels == 1


def test_on_a_device_the_wait_behind_a_plan_tells_its_fault() -> None:
    device = fake.FakeDevice()
    program, arrays = on_fake_device(device)
    number = next(i for i, s in enumerate(program.schedule.steps) if "tanh" in s.region.pattern)

    def lose(*_: object) -> None:
        raise ContextLostError("an illegal address")

    program.schedule.steps[number].plan._run = lose  # type: ignore[union-attr]
    heard = Heard(device)
    with pytest.raises(ContextLostError):
        replay.run_by_plan(program, arrays, Watch(heard, 60.0))  # type: ignore[arg-type]
    assert heard.messages[-1] == ("starts", number)


def test_the_command_line(saved: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.main(["doctor", "--replay", str(saved), "--target", "cpu"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "every plan ran to its end"
    monkeypatch.setitem(MANIFEST, "reference", FAULTY)
    monkeypatch.setenv("FAULTY_DEED", "abort")
    options = '{"precision": "tf32"}'
    assert cli.main(["doctor", "--replay", str(saved), "--target", "cpu", "--options", options]) == 1
    printed = capsys.readouterr().out.splitlines()
    assert "tanh" in printed[-2]
    assert "SIGABRT" in printed[-2]
    assert "disabled_plans=('reference:numpy',)" in printed[-1]
    assert cli.main(["doctor", "--replay", "nothing.json"]) == 1
    assert "nothing.json" in capsys.readouterr().err


@pytest.mark.parametrize("options", ["{", "[1]"])
def test_options_that_are_no_object_are_a_matter_of_usage(options: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        cli.main(["doctor", "--replay", "x.json", "--options", options])
    assert "JSON" in capsys.readouterr().err
