"""memory_limit: the number that an error names is the least limit that is met, and nothing that fits is refused."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.answer import Decline
from graphdnn.engines.contract import Policy, Support
from graphdnn.ir.region import Region
from tests.engines.scripted import Act, Clock, Scripted

H200 = gd.Target.named("h200")
CPU = gd.Target.cpu()


def chain(*ops: str) -> gd.Graph:
    """Ops on a (64, 16) tensor, whose values have 4096 bytes."""
    g = gd.GraphBuilder("chain")
    v = g.input("x", (64, 16), gd.float32)
    for op in ops:
        v = getattr(g, op)(v)
    return g.build({"y": v})


def convolution() -> gd.Graph:
    g = gd.GraphBuilder("a6")
    x = g.input("x", (32, 64, 56, 56), gd.float16)
    return g.build({"y": g.conv(x, g.input("w", (64, 64, 3, 3), gd.float16), padding=1, name="c")})


def perceptron(dtype: gd.DType) -> gd.Graph:
    g = gd.GraphBuilder("perceptron")
    v = g.input("x", (64, 256), dtype)
    for i in range(3):
        up = g.gelu(g.matmul(v, g.input(f"a{i}", (256, 1024), dtype)))
        v = g.layer_norm(g.add(v, g.matmul(up, g.input(f"b{i}", (1024, 256), dtype))))
    return g.build({"y": v})


def images() -> gd.Graph:
    g = gd.GraphBuilder("images")
    v, channels = g.input("x", (4, 3, 32, 32), gd.float16), 3
    for i in range(3):
        v = g.relu(g.conv(v, g.input(f"w{i}", (16, channels, 3, 3), gd.float16), padding=1))
        channels = 16
    return g.build({"y": g.max_pool(v, kernel=2)})


def skipping() -> gd.Graph:
    g = gd.GraphBuilder("skipping")

    def w(i: int, *shape: int) -> gd.Value:
        return g.input(f"w{i}", shape, gd.float16)

    a = g.relu(g.conv(g.input("x", (2, 8, 32, 32), gd.float16), w(0, 8, 8, 3, 3), padding=1))
    b = g.relu(g.conv(g.max_pool(a, kernel=2), w(1, 16, 8, 3, 3), padding=1))
    c = g.conv_transpose(b, w(2, 16, 8, 2, 2), stride=2)
    return g.build({"y": g.conv(g.concat([a, c], axis=1), w(3, 4, 16, 3, 3), padding=1)})


def products(dtype: gd.DType = gd.float32) -> gd.Graph:
    g = gd.GraphBuilder("products")
    x = g.input("x", (1024, 1024), dtype)
    for i in range(3):
        x = g.softmax(g.matmul(x, g.input(f"w{i}", (1024, 1024), dtype)))
    return g.build({"y": x})


def head() -> gd.Graph:
    g = gd.GraphBuilder("head")
    m = g.matmul(g.input("x", (64, 8192), gd.float16), g.input("w", (8192, 512), gd.float16), name="score")
    return g.build({"p": g.softmax(g.add(m, g.input("b", (512,), gd.float16), name="bias"), name="p")})


GRAPHS: dict[str, Callable[[], gd.Graph]] = {
    "convolution": convolution,
    "perceptron half": lambda: perceptron(gd.float16),
    "perceptron": lambda: perceptron(gd.float32),
    "images": images,
    "skipping": skipping,
    "products": products,
    "products half": lambda: products(gd.float16),
    "head": head,
    "chain": lambda: chain("softmax", "layer_norm", "softmax"),
}


def compiled(graph: gd.Graph, target: gd.Target | str, limit: int | None, **options: Any) -> gd.CompileReport:
    return gd.compile(graph, target, gd.CompileOptions(memory_limit=limit, **options)).report


def need(graph: gd.Graph, target: gd.Target | str, limit: int, **options: Any) -> int | None:
    """The number of the error; None where the limit is met."""
    try:
        assert compiled(graph, target, limit, **options).arena_bytes <= limit
    except gd.CompileError as error:
        return int(re.findall(r"arena of (\d+) bytes", str(error))[0])
    return None


def assert_is_least(graph: gd.Graph, target: gd.Target | str, **options: Any) -> None:
    least = need(graph, target, 0, **options)
    if least is not None:
        assert least > 0
        assert need(graph, target, least, **options) is None
        assert need(graph, target, least - 1, **options) == least
        assert need(graph, target, least // 2, **options) == least


@pytest.mark.parametrize("target", [H200, CPU], ids=["h200", "cpu"])
@pytest.mark.parametrize("name", GRAPHS)
def test_the_error_names_the_least_limit_that_is_met(name: str, target: gd.Target) -> None:
    assert_is_least(GRAPHS[name](), target)


@pytest.mark.parametrize(
    "acts",
    [
        {"big": Act(1, workspace=1 << 20), "mid": Act(2, workspace=4096)},
        {"a": Act(workspace=5000), "b": Act(workspace=700), "c": Act(workspace=900)},
        {f"p{n}": Act(workspace=n * n * 100 + 1) for n in range(20, 0, -1)},
        {"none": Act(workspace=0), "some": Act(workspace=1)},
    ],
)
@pytest.mark.parametrize("selection", ["heuristic", "autotune", "measure"])
@pytest.mark.parametrize("ops", [("softmax",), ("softmax", "layer_norm", "softmax")])
def test_so_it_does_for_plans_of_any_scratch(
    ops: tuple[str, ...], selection: str, acts: dict[str, Act], clock: Clock, with_engines: Any
) -> None:
    with_engines(Scripted("fake", acts, clock, takes=("softmax", "layer_norm")))
    assert_is_least(chain(*ops), "cpu", selection=selection)
    if len(ops) == 1:
        least = -(-min(a.workspace for a in acts.values()) // 256) * 256
        assert need(chain(*ops), "cpu", max(least - 1, 0)) == (least or None)


@pytest.mark.parametrize("target", [H200, CPU], ids=["h200", "cpu"])
def test_a_graph_that_fits_without_other_layouts_is_not_refused(target: gd.Target) -> None:
    report = compiled(convolution(), target, 0)
    assert report.arena_bytes == 0
    assert "left out for memory_limit=0: layout" in report.effects


@pytest.mark.parametrize("limit", [25165823, 20 << 20, 16 << 20, 12 << 20, 8388608])
def test_a_smaller_workspace_limit_gives_no_faster_cover(limit: int) -> None:
    graph = products()
    own = compiled(graph, H200, limit)
    assert own.arena_bytes <= limit
    for workspace in (0, 4 << 20, 8 << 20, 12 << 20, 16 << 20):
        try:
            other = compiled(graph, H200, limit, workspace_limit=workspace)
        except gd.CompileError:
            continue
        assert own.estimated_us <= other.estimated_us + 1e-9


@pytest.mark.parametrize("limit", [8192, 10_000, 12_000])
def test_a_change_that_is_named_lets_the_plan_in(limit: int, clock: Clock, with_engines: Any) -> None:
    graph = chain("softmax", "layer_norm", "softmax")
    greedy = Scripted("greedy", {"fast": Act(1, workspace=1 << 20)}, clock, 1.0, ("softmax", "layer_norm"))
    modest = Scripted(
        "modest", {"middle": Act(5, workspace=600), "plain": Act(9)}, clock, 5.0, ("softmax", "layer_norm")
    )
    with_engines(greedy, modest)
    entries = [c for c in compiled(graph, "cpu", limit).candidates if c.engine == "greedy" and c.fix]
    assert entries
    for entry in entries:
        assert entry.fix is not None
        assert (entry.fix.attribute, entry.fix.before) == ("memory_limit", str(limit))
        wider = compiled(graph, "cpu", int(entry.fix.after))
        assert [c.verdict for c in wider.candidates if (c.engine, c.nodes) == (entry.engine, entry.nodes)] == ["chosen"]


@pytest.mark.parametrize("option", ["workspace_limit", "memory_limit"])
@pytest.mark.parametrize("selection", ["heuristic", "autotune"])
def test_what_a_limit_costs_on_a_described_device_is_said(option: str, selection: Any) -> None:
    g = gd.GraphBuilder("head")
    x, w = g.input("x", (64, 8192), gd.float16), g.input("w", (8192, 512), gd.float16)
    graph = g.build({"y": g.matmul(x, w, name="m")})
    free = gd.compile(graph, H200, gd.CompileOptions(selection=selection)).report
    (region,) = free.regions
    assert region.workspace_bytes > 0
    assert not [e for e in free.effects if "rules out" in e]
    report = gd.compile(graph, H200, gd.CompileOptions(**{option: 0, "selection": selection})).report
    (said,) = [e for e in report.effects if "rules out" in e]
    assert said.startswith(f"{option}=0 rules out {region.workspace_bytes} bytes of scratch for m, with which cublaslt")
    assert f"is estimated at {region.estimated_us:.1f} us instead of {report.estimated_us:.1f}" in said
    (entry,) = [c for c in report.candidates if c.engine == "cublaslt"]
    assert str(region.workspace_bytes) in entry.ruled_out
    wider = int(re.findall(rf"change {option} of options from 0 to (\d+)", said)[0])
    again = gd.compile(graph, H200, gd.CompileOptions(**{option: wider, "selection": selection})).report
    assert [(r.engine, r.workspace_bytes) for r in again.regions] == [(region.engine, region.workspace_bytes)]


@pytest.mark.parametrize("option", ["workspace_limit", "memory_limit"])
@pytest.mark.parametrize("selection", ["heuristic", "autotune", "measure"])
def test_what_a_limit_costs_on_this_device_is_said(
    option: str, selection: Any, clock: Clock, with_engines: Any
) -> None:
    with_engines(Scripted("one", {"fast": Act(1, workspace=1 << 20), "plain": Act(9)}, clock, 7.0))
    report = gd.compile(chain("softmax"), "cpu", gd.CompileOptions(**{option: 0, "selection": selection})).report
    (said,) = [e for e in report.effects if "rules out" in e]
    assert said.startswith(f"{option}=0 rules out {1 << 20} bytes of scratch for softmax, with which one ")
    assert f"change {option} of options from 0 to {1 << 20}" in said
    fast, plain = report.candidates[0].plans
    assert (fast.verdict, fast.workspace_bytes, fast.estimated_us) == ("excluded", 1 << 20, 7.0)
    assert plain.verdict == "chosen"
    free = gd.compile(chain("softmax"), "cpu", gd.CompileOptions(**{option: 1 << 20, "selection": selection})).report
    assert not [e for e in free.effects if "rules out" in e]


@dataclass
class Modest(Scripted):
    """An engine that may not say what scratch its plans take."""

    says: bool = True

    def supports(self, region: Region, target: gd.Target, policy: Policy) -> Support | Decline:
        answer = super().supports(region, target, policy)
        return answer if self.says or isinstance(answer, Decline) else replace(answer, workspace_bytes=0)


@pytest.mark.parametrize("is_built", [False, True])
@pytest.mark.parametrize("limit", [0, 100, 4999])
def test_the_error_names_the_least_workspace_limit_for_the_whole_graph(
    limit: int, is_built: bool, clock: Clock, with_engines: Any
) -> None:
    """Whether an engine says what its plans take, or it turns out when they are proposed."""
    graph = chain("tanh", "exp", "sqrt")
    scratch = {"tanh": 100, "exp": 5000, "sqrt": 300}
    with_engines(
        *(Modest(op, {"a": Act(workspace=n)}, clock, 10.0, (op,), says=not is_built) for op, n in scratch.items())
    )
    with pytest.raises(gd.CompileError, match=r"; every node has a plan from workspace_limit=5000 on$"):
        compiled(graph, "cpu", None, workspace_limit=limit)
    assert compiled(graph, "cpu", None, workspace_limit=5000).regions


def test_it_names_none_where_scratch_is_not_all_that_is_lacking(clock: Clock, with_engines: Any) -> None:
    acts = {"a": Act(workspace=100)}
    with_engines(
        Modest("one", acts, clock, 10.0, ("tanh",)), Modest("two", {"b": Act(fails="build")}, clock, takes=("exp",))
    )
    with pytest.raises(gd.CompileError, match=r"no engine takes tanh(?!.*every node)"):
        compiled(chain("tanh", "exp", "sqrt"), "cpu", None, workspace_limit=0)


def test_any_engine_is_asked_what_it_would_do_with_more(with_engines: Any, clock: Clock) -> None:
    class Flexible(Scripted):
        """Splits its work where there is scratch, and does not say that it would."""

        def supports(self, region: Any, target: Any, policy: Any) -> Any:
            answer: Any = super().supports(region, target, policy)
            splits = policy.workspace_limit is None or policy.workspace_limit >= 4096
            return answer and replace(answer, estimated_us=5.0 if splits else 9.0, workspace_bytes=4096 * splits)

    acts = {"split": Act(5, workspace=4096), "plain": Act(9)}
    with_engines(Flexible("flexible", acts, clock), Scripted("other", {"x": Act(8)}, clock, 8.0))
    report = gd.compile(chain("softmax"), "cpu", gd.CompileOptions(workspace_limit=100)).report
    words = "workspace_limit=100 rules out 4096 bytes of scratch, with which flexible is estimated at 5.0 us"
    assert [(c.engine, c.verdict, c.ruled_out) for c in report.candidates] == [
        ("flexible", "slower", words),
        ("other", "chosen", ""),
    ]
    (said,) = report.effects
    assert "for softmax, with which flexible is estimated at 5.0 us instead of 8.0; to have it" in said


def test_numbers_are_the_same_within_less_memory() -> None:
    g = gd.GraphBuilder("small")
    x, w = g.input("x", (2, 8, 9, 9), gd.float32), g.input("w", (8, 8, 3, 3), gd.float32)
    graph = g.build({"y": g.softmax(g.conv(x, w, padding=1), axis=1)})
    rng = np.random.default_rng(0)
    inputs = {n: rng.standard_normal(v.type.shape).astype(np.float32) for n, v in graph.inputs.items()}
    free = gd.compile(graph, "cpu")
    least = need(graph, "cpu", 0) or 0
    assert least < free.report.arena_bytes
    tight = gd.compile(graph, "cpu", gd.CompileOptions(memory_limit=least))
    np.testing.assert_allclose(tight(inputs)["y"], free(inputs)["y"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("selection", "other"),
    [
        ("heuristic", Act(fails="build")),
        ("heuristic", Act(fails="run")),
        ("autotune", Act(fails="build")),
        ("autotune", Act(1, factor=2)),
        ("measure", Act(fails="run")),
        ("measure", Act(1, factor=2)),
    ],
)
def test_what_a_limit_and_a_failure_rule_out_together_is_had_again_without_the_limit(
    selection: str, other: Act, clock: Clock, with_engines: Any
) -> None:
    """An engine that does not say what its plans take, of which one needs scratch and the other is of no use.

    A search for less memory tries no scratch on one way and then any on the next, where the engine stayed declined and
    had the fastest plan at the same time, so that the cover was chosen anew without end.
    """
    acts = {"fast": Act(1, workspace=1000), "useless": other}
    first = Modest("first", acts, clock, 5.0, ("softmax", "layer_norm"), says=False)
    with_engines(first, Scripted("slow", {"s": Act(50)}, clock, 50.0, ("softmax", "layer_norm")))
    graph = chain("softmax", "layer_norm", "softmax")
    assert need(graph, "cpu", 0, selection=selection) == 8192
    report = compiled(graph, "cpu", 8192, selection=selection)
    assert {r.engine for r in report.regions} == {"slow"}
    for entry in (c for c in report.candidates if c.engine == "first" and c.plans):
        assert (entry.verdict, entry.code) == ("excluded", "option")
        assert entry.fix is not None
        assert (entry.fix.attribute, entry.fix.before) == ("memory_limit", "8192")
    assert {r.engine for r in compiled(graph, "cpu", 9216, selection=selection).regions} == {"first"}


def test_the_least_scratch_is_not_that_of_a_plan_that_fails(clock: Clock, with_engines: Any) -> None:
    acts = {"fails": Act(fails="build"), "needy": Act(workspace=700), "needier": Act(workspace=900)}
    with_engines(Modest("one", acts, clock, takes=("softmax",), says=False))
    with pytest.raises(
        gd.CompileError,
        match=r"change workspace_limit of options from 5 to 700; every node has a plan from workspace_limit=700 on",
    ):
        compiled(chain("softmax"), "cpu", None, workspace_limit=5)
