"""The explanation as a reader sees it: reports made by hand, so that each line is known."""

import pytest

import graphdnn as gd
from graphdnn.report.explain import SHOWN_CHANGES, SHOWN_LINES, encloses, explain, lessons, shorten
from graphdnn.report.model import CandidateReport, CompileReport, FixReport, PassReport, RegionReport, Verdict


def candidate(
    engine: str, pattern: str, nodes: str, verdict: Verdict = "declined", code: str | None = "pattern",
    reason: str = "it is not taken", us: float | None = None, fix: FixReport | None = None,
) -> CandidateReport:  # fmt: skip
    taken = us is not None
    return CandidateReport(
        id=f"{engine} {pattern} {nodes}", engine=engine, pattern=pattern, nodes=tuple(nodes.split()),
        verdict="slower" if taken and verdict == "declined" else verdict, code=None if taken else code,
        reason="a cheaper cover won" if taken else reason, estimated_us=us, fix=fix,
    )  # fmt: skip


def region(name: str, pattern: str, nodes: str, *others: CandidateReport, us: float = 10.0) -> RegionReport:
    return RegionReport(
        name=name, nodes=tuple(nodes.split()), pattern=pattern, engine="cudnn", plan="", kernels=1,
        precision="float32", estimated_us=us, workspace_bytes=0, read_bytes=2048, written_bytes=3 << 20,
        deterministic=True, last_resort=False, alternatives=others,
    )  # fmt: skip


def report(*regions: RegionReport, passes: tuple[PassReport, ...] = ()) -> CompileReport:
    return CompileReport(
        graph="block", target="h200 (described)", regions=regions, candidates=(), kernel_count=len(regions),
        unfused_kernel_count=9, read_bytes=2048, written_bytes=512, unfused_bytes=1 << 30, arena_bytes=0, peak_bytes=0,
        last_resort_count=0, exact_cover=True, passes=passes, versions={}, options={},
    )  # fmt: skip


FIX = FixReport(
    target="x",
    attribute="dtype",
    before="float32",
    after="float16",
    sentence="change dtype of x from float32 to float16",
)


def told(*others: CandidateReport, pattern: str = "conv+relu", nodes: str = "c r") -> list[str]:
    one = region("c", pattern, nodes, *others)
    return [lesson.text for lesson in lessons(one, [one])]


def test_a_change_that_would_be_accepted_stands_first_on_a_line_of_its_own() -> None:
    lines = told(
        candidate("nvrtc", "conv+relu", "c r", us=12.0), candidate("other", "conv+relu", "c r", code="dtype", fix=FIX)
    )
    assert lines[0].splitlines() == [
        "declined: other conv+relu: it is not taken",
        "    to have it: change dtype of x from float32 to float16",
    ]
    assert lines[1:] == ["close: nvrtc at 12.0 us"]


def test_engines_for_other_work_are_noise() -> None:
    assert told(candidate("cublaslt", "conv+relu", "c r"), candidate("cublaslt", "conv+relu", "c r", code="op")) == []


def test_a_refusal_of_this_very_work_is_told() -> None:
    (line,) = told(candidate("other", "conv+relu", "c r", code="layout", reason="%x lies badly"))
    assert line == "declined: other conv+relu: %x lies badly"


def test_what_the_engine_refused_before_passes_made_it_what_it_runs_is_left_out() -> None:
    assert told(candidate("cudnn", "conv+relu", "c r", code="attribute", reason="%c has a mask")) == []


def test_a_plain_kernel_has_its_reasons() -> None:
    """What other engines say to each op that none of them takes; what they take for a price is no reason."""
    others = (
        candidate("cublaslt", "conv", "c", reason="it is for products"),
        candidate("cublaslt", "relu", "r", us=3.0),
        candidate("other", "conv", "c", code="op", reason="%x is i8"),
        candidate("other", "relu", "r", code="layout", reason="%c lies badly"),
    )
    plain = region("c", "conv+relu", "c r", *others).model_copy(update={"last_resort": True})
    assert [one.text for one in lessons(plain, [plain])] == ["declined: other conv: %x is i8"]


def test_parts_of_the_region_that_were_merely_slower_are_noise() -> None:
    assert told(candidate("cudnn", "conv", "c", us=9.0), candidate("nvrtc", "relu", "r", us=3.0)) == []


def test_only_close_estimates_are_named() -> None:
    assert told(candidate("nvrtc", "conv+relu", "c r", us=14.9)) == ["close: nvrtc at 14.9 us"]
    assert told(candidate("nvrtc", "conv+relu", "c r", us=15.1)) == []


@pytest.mark.parametrize("verdict", ["failed", "wrong", "conflict", "excluded"])
def test_trouble_is_always_told(verdict: Verdict) -> None:
    (line,) = told(candidate("cudnn", "conv", "c", verdict, "build", "plan0 needs 300 registers"))
    assert line == f"{verdict}: cudnn conv: plan0 needs 300 registers"


def test_the_next_larger_fusion_says_why_it_was_not_taken() -> None:
    nearest = candidate("cudnn", "conv+relu+pool", "c r p", reason="no pooling")
    far = candidate("cudnn", "conv+relu+pool+conv", "c r p d", reason="two convolutions")
    assert told(far, nearest) == ["declined: cudnn conv+relu+pool: no pooling"]
    other = candidate("nvrtc", "conv+relu+pool", "c r p", code="layout", reason="%x lies badly")
    assert told(nearest, other) == ["declined: nvrtc conv+relu+pool: %x lies badly"]


def test_a_larger_fusion_that_lost_is_set_against_what_won() -> None:
    whole = candidate("cudnn", "matmul+gelu", "m g", us=30.0)
    parts = [region("m", "matmul", "m", whole, us=11.0), region("g", "gelu", "g", whole, us=4.0)]
    (lesson,) = lessons(parts[0], parts)
    assert lesson.text == "slower: cudnn matmul+gelu at 30.0 us; the 2 regions in its place take 15.0 us"
    assert lessons(parts[0], parts[:1])[0].text == "slower: cudnn matmul+gelu at 30.0 us"


def test_a_composite_whose_parts_run_counts_as_larger() -> None:
    part = region("att", "matmul+mul", "att")
    assert encloses(candidate("cudnn", "attention", "att"), part)
    assert not encloses(candidate("cudnn", "matmul", "att"), part)
    assert not encloses(candidate("cudnn", "matmul+mul", "att"), part)


def test_each_region_gets_few_lines() -> None:
    many = [candidate(f"e{i}", "conv", "c", "failed", "build", f"reason {i}") for i in range(9)]
    assert len(told(*many)) == SHOWN_LINES


def test_what_is_alike_is_said_once() -> None:
    regions = [
        region(f"c{i}", "conv+relu", f"c{i} r{i}", candidate("nvrtc", "conv+relu", f"c{i} r{i}", us=11.0))
        for i in range(20)
    ]
    text = explain(report(*regions))
    assert text.count("close: nvrtc") == 1
    assert "  likewise c1, c2, c3, ... (19 in all)" in text
    assert len(text.splitlines()) < len(regions) + 15
    assert all(f"\n c{i} " in text for i in range(20))


def test_one_change_is_proposed_once() -> None:
    whole = candidate("cudnn", "attention", "att", code="dtype", fix=FIX)
    text = explain(report(region("att", "matmul", "att", whole), region("att.2", "softmax", "att", whole)))
    assert text.count("to have it") == 1


def test_long_names_and_patterns_keep_the_table_straight() -> None:
    name = "encoder.layer.11.attention.output.LayerNorm"
    table = explain(report(region(name, "+".join(["multiply"] * 9), name), region("x", "relu", "x")))
    rows = [line for line in table.splitlines() if line.startswith((f" {name} ", " x "))]
    assert len(rows) == 2
    assert len({len(row) for row in rows}) == 1
    assert "..." in rows[0]


def test_passes_say_each_thing_once_and_not_too_much() -> None:
    changes = ("x: moves nothing", "x: moves nothing", *(f"n{i}: gone" for i in range(30)))
    text = explain(report(passes=(PassReport(name="sink", changes=changes, nodes_before=40, nodes_after=8),)))
    assert text.count("moves nothing") == 1
    assert f"  and {31 - SHOWN_CHANGES} more" in text
    assert "pass sink" in text


def test_a_promotion_is_told_once() -> None:
    g = gd.GraphBuilder("mixed")
    x, w = g.input("x", (4, 8), gd.float16), g.input("w", (8, 8), gd.float32)
    text = gd.compile(g.build({"y": g.matmul(x, w, name="product")}), target=gd.Target.named("h200")).explain()
    assert "product: A is float16 and is computed in float32" in text
    assert "cast from" not in text


def test_the_summary_counts_and_uses_units() -> None:
    first = explain(report(region("c", "conv", "c"))).splitlines()[0]
    assert first == (
        "graph block for h200 (described): 1 kernel (unfused 9), 2.5 KiB moved (unfused 1.0 GiB), estimated 10.0 us"
    )


def test_long_patterns_are_shortened() -> None:
    assert shorten("conv+relu") == "conv+relu"
    assert len(shorten("x" * 61)) == 60


def test_names_that_look_like_markup_are_shown_as_they_are() -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (8, 16), gd.float16)
    graph = g.build({"y": g.relu(g.gelu(x, name="[red]act"), name="[/x]")})
    text = gd.compile(graph, target=gd.Target.named("h200")).explain()
    assert "[/x]" in text
