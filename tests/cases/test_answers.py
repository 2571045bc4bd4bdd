"""Right answers when something is not possible (cases A1 to A5)."""

from dataclasses import replace

import numpy as np
import pytest
from cuda.bindings import nvrtc

import graphdnn as gd
from graphdnn.answer import Code, Decline
from graphdnn.engines import manifest
from graphdnn.engines.choose import Selector
from graphdnn.engines.contract import Policy
from graphdnn.engines.nvrtc import compile as nvrtc_compile
from graphdnn.passes.select import Cover
from graphdnn.planning.planner import Problem, planned
from tests.cases import graphs
from tests.cases.fake_engine import FakeEngine
from tests.planned import H200, answers, h200_report


def test_a1_odd_activations_are_offered_whole_and_run_by_what_costs_less() -> None:
    graph = graphs.odd_activations()
    report = h200_report(graph)
    (whole,) = answers(report, "cudnn", *(n.name for n in graph.nodes))
    assert (whole.verdict, whole.reason) == ("slower", "a cheaper cover won")
    (done,) = (r for r in report.regions if r.nodes)
    assert set(done.nodes) == {n.name for n in graph.nodes}
    assert done.engine == "nvrtc"
    assert whole.estimated_us is not None
    assert done.estimated_us < whole.estimated_us


def test_a1_what_was_done_instead_is_told() -> None:
    """Without cuDNN a generated kernel takes the whole chain, and the report counts it as a last resort."""
    report = h200_report(graphs.odd_activations(), disabled_engines=("cudnn",))
    region = next(r for r in report.regions if "conv" in r.nodes)
    assert (region.engine, region.last_resort) == ("nvrtc", True)
    assert report.last_resort_count == 1


def test_a2_shapes_that_do_not_broadcast_are_named() -> None:
    g = gd.GraphBuilder("wrong")
    a, b = g.input("first", (2, 1, 16, 16), gd.float32), g.input("second", (2, 1, 16, 256), gd.float32)
    with pytest.raises(gd.GraphError) as caught:
        g.add(a, b, name="sum")
    message = str(caught.value)
    for word in ("sum", "first", "second", "2x1x16x16", "2x1x16x256", "axis 3", "16 against 256"):
        assert word in message, word
    assert "\n" not in message


PRESENT = replace(H200, present=True)


@pytest.fixture
def without_nvrtc(monkeypatch: pytest.MonkeyPatch):
    """The loader finds no NVRTC, and nothing of earlier searches is remembered."""

    def hidden() -> object:
        raise RuntimeError("No such file or directory")  # loaders do not always say of what

    monkeypatch.setattr(nvrtc, "nvrtcVersion", hidden)
    nvrtc_compile.compiler_version.cache_clear()
    yield
    nvrtc_compile.compiler_version.cache_clear()


def covered(graph: gd.Graph, *engines: str) -> Cover:
    """The cover on a present H200 by these engines."""
    selector = Selector([manifest.load_engine(e) for e in engines], PRESENT, Policy())
    return planned(Problem(graph, selector, None, gd.CompileOptions())).cover


def softmax() -> gd.Graph:
    g = gd.GraphBuilder("rows")
    return g.build({"y": g.softmax(g.input("x", (3, 65), gd.float16), name="rows")})


@pytest.mark.usefixtures("without_nvrtc")
def test_a3_a_missing_library_is_named_with_its_package_where_nothing_else_takes_the_work() -> None:
    with pytest.raises(gd.SetupError) as caught:
        covered(softmax(), "cudnn", "nvrtc")
    message = str(caught.value)
    for word in ("rows", "NVRTC", "libnvrtc", "nvidia-cuda-nvrtc"):
        assert word in message, word
    assert "\n" not in message


@pytest.mark.usefixtures("without_nvrtc")
def test_a3_a_missing_library_only_declines_its_engine_where_another_takes_the_work() -> None:
    selector = Selector([manifest.load_engine("nvrtc")], PRESENT, Policy())
    g = gd.GraphBuilder("product")
    graph = g.build({"y": g.matmul(g.input("a", (16, 24), gd.float16), g.input("b", (24, 8), gd.float16))})
    cover = covered(graph, "cudnn", "nvrtc")
    assert [o.payload for o in cover.picks] == ["cudnn"]
    answer = selector.support.answers(cover.picks[0].region)["nvrtc"]
    assert isinstance(answer, Decline)
    assert answer.code is Code.SETUP
    assert answer.fix is not None
    assert "nvidia-cuda-nvrtc" in answer.fix.after


def test_a3_planning_for_a_described_device_needs_no_library(without_nvrtc: None) -> None:
    assert [r.engine for r in h200_report(softmax()).regions] == ["nvrtc"]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeEngine]:
    """A fake engine asked before the reference on the CPU."""
    monkeypatch.setitem(manifest.MANIFEST, "fake", "tests.cases.fake_engine:FakeEngine")
    monkeypatch.setitem(manifest.BY_KIND, "cpu", ("fake", "reference"))
    monkeypatch.setattr(FakeEngine, "BUILT", [])
    return FakeEngine


def scaled() -> gd.Graph:
    g = gd.GraphBuilder("scaled")
    return g.build({"y": g.mul(g.input("x", (3, 5), gd.float32), 2.0, name="double")})


X = np.arange(15, dtype=np.float32).reshape(3, 5)


def test_a4_every_failure_is_recorded_and_the_next_good_plan_runs(
    fake: type[FakeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake, "PLANS", ("build", "run", "good", "good"))
    exe = gd.compile(scaled(), target="cpu")
    np.testing.assert_array_equal(exe({"x": X})["y"], 2 * X)
    (region,) = exe.report.regions
    assert (region.engine, region.plan) == ("fake", "plan2")
    (entry,) = answers(exe.report, "fake", "double")
    assert entry.verdict == "chosen"
    assert [(p.name, p.verdict) for p in entry.plans] == [
        ("plan0", "failed"),
        ("plan1", "failed"),
        ("plan2", "chosen"),
        ("plan3", "slower"),
    ]
    assert "300 registers" in entry.plans[0].reason
    assert "illegal memory access" in entry.plans[1].reason
    assert fake.BUILT == ["plan0", "plan1", "plan2"]


def test_a4_an_engine_that_fails_everywhere_gives_way_to_the_next(
    fake: type[FakeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake, "PLANS", ("build", "run"))
    exe = gd.compile(scaled(), target="cpu")
    np.testing.assert_array_equal(exe({"x": X})["y"], 2 * X)
    assert [r.engine for r in exe.report.regions] == ["reference"]
    (entry,) = answers(exe.report, "fake", "double")
    assert (entry.verdict, entry.code) == ("failed", "build")
    assert [p.verdict for p in entry.plans] == ["failed", "failed"]
    for word in ("none of fake's 2 plans is usable", "plan0", "300 registers", "plan1", "illegal memory access"):
        assert word in entry.reason, word
    assert "300 registers" in exe.explain()


def test_a4_a_plan_in_host_memory_fails_on_its_first_run_and_not_in_the_users_call(
    fake: type[FakeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake, "PLANS", ("host run", "good"))
    exe = gd.compile(scaled(), target="cpu")
    np.testing.assert_array_equal(exe({"x": X})["y"], 2 * X)
    (entry,) = answers(exe.report, "fake", "double")
    assert [(p.name, p.verdict) for p in entry.plans] == [("plan0", "failed"), ("plan1", "chosen")]
    assert entry.plans[0].reason == "failed on its first run: the library ran out of threads"
    monkeypatch.setattr(fake, "PLANS", ("host run",))
    assert [r.engine for r in gd.compile(scaled(), target="cpu").report.regions] == ["reference"]
    monkeypatch.setitem(manifest.BY_KIND, "cpu", ("fake",))
    with pytest.raises(gd.CompileError, match="the library ran out of threads"):
        gd.compile(scaled(), target="cpu")


def test_a4_a_decline_is_recorded(fake: type[FakeEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake, "PLANS", ("declines",))
    report = gd.compile(scaled(), target="cpu").report
    (entry,) = answers(report, "fake", "double")
    assert (entry.verdict, entry.code, entry.reason) == ("declined", "pattern", "fake does not take mul")
    assert entry in report.regions[0].alternatives


def test_a4_where_nothing_else_takes_the_work_the_error_names_engine_and_reason(
    fake: type[FakeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake, "PLANS", ("build", "run"))
    monkeypatch.setitem(manifest.BY_KIND, "cpu", ("fake",))
    with pytest.raises(gd.CompileError) as caught:
        gd.compile(scaled(), target="cpu")
    assert not isinstance(caught.value, gd.SetupError)
    for word in ("double", "fake", "plan0", "300 registers", "illegal memory access"):
        assert word in str(caught.value), word


def test_a4_failures_are_told_of_each_region_that_they_concern(
    fake: type[FakeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal regions share one plan, so each plan is tried once; the report says it for both."""
    monkeypatch.setattr(fake, "PLANS", ("run", "good"))
    g = gd.GraphBuilder("twice")
    outputs = {n: g.relu(g.input(f"{n}_in", (3, 5), gd.float32), name=n) for n in ("first", "second")}
    exe = gd.compile(g.build(outputs), target="cpu")
    for name in outputs:
        (entry,) = answers(exe.report, "fake", name)
        assert [p.verdict for p in entry.plans] == ["failed", "chosen"]
    assert fake.BUILT == ["plan0", "plan1"]


def two_inputs() -> gd.Graph:
    g = gd.GraphBuilder("two_inputs")
    a, b = g.input("a", (3, 5), gd.float32), g.input("b", (5,), gd.float32)
    return g.build({"y": g.relu(g.add(a, b))})


A, B = X - 7, np.float32([1, 2, 3, 4, 5])
WRONG = [
    ({"a": A}, ("b", "missing")),
    ({"a": A, "b": B, "c": B}, ("c", "not an input")),
    ({"a": A.astype(np.float64), "b": B}, ("a", "float64", "float32")),
    ({"a": A, "b": np.arange(5)}, ("b", "int64", "float32")),
    ({"a": A.T, "b": B}, ("a", "(5, 3)", "(3, 5)")),
    ({"a": A, "b": B.reshape(1, 5)}, ("b", "(1, 5)", "(5,)")),
]


@pytest.mark.parametrize(("inputs", "words"), WRONG)
@pytest.mark.parametrize("bound", [False, True])
def test_a5_a_wrong_input_is_named_in_one_sentence(inputs: dict, words: tuple[str, ...], bound: bool) -> None:
    exe = gd.compile(two_inputs(), target="cpu")
    with pytest.raises(gd.ExecutionError) as caught:
        exe.bind(inputs) if bound else exe(inputs)
    for word in words:
        assert word in str(caught.value), word
    assert "\n" not in str(caught.value)


def test_a5_arrays_that_are_not_contiguous_work() -> None:
    exe = gd.compile(two_inputs(), target="cpu")
    wide = np.zeros((6, 10), np.float32)
    wide[::2, ::2] = A
    for a in (wide[::2, ::2], np.asfortranarray(A), A[::-1][::-1]):
        np.testing.assert_array_equal(exe({"a": a, "b": np.repeat(B, 2)[::2]})["y"], np.maximum(A + B, 0))
    np.testing.assert_array_equal(exe.bind({"a": wide[::2, ::2], "b": B})()["y"], np.maximum(A + B, 0))


def test_a5_a_described_device_refuses_to_run_and_says_what_would() -> None:
    exe = gd.compile(two_inputs(), target=H200)
    with pytest.raises(gd.ExecutionError, match=r"two_inputs was planned for h200.*target=\"auto\""):
        exe({"a": A, "b": B})


def test_a4_an_engine_whose_only_plan_fails_is_not_counted(
    fake: type[FakeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake, "PLANS", ("build",))
    (entry,) = answers(gd.compile(scaled(), target="cpu").report, "fake", "double")
    assert entry.reason == "fake's only plan is not usable: plan0: plan0 needs 300 registers"
