"""Row kernels without a device: every kernel compiles, and the decisions behind them are right."""

import math

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.answer import Code, Decline
from graphdnn.engines.contract import Policy, Support
from graphdnn.engines.nvrtc import rows
from graphdnn.engines.nvrtc.compile import compile_cubin
from graphdnn.engines.nvrtc.emit import literal
from graphdnn.engines.nvrtc.engine import NvrtcEngine, family_of
from graphdnn.engines.nvrtc.places import Run
from graphdnn.engines.nvrtc.rows_layout import Layout
from graphdnn.engines.nvrtc.rows_phases import phases
from graphdnn.engines.nvrtc.rows_places import result_place
from graphdnn.engines.nvrtc.rows_program import Program, Term
from graphdnn.engines.nvrtc.rows_source import accumulator, neutral
from graphdnn.ir.graph import Value
from graphdnn.ir.region import Region
from graphdnn.ir.types import DType, channels_last, row_major
from graphdnn.target import Target
from tests.engines.cudnn.layouts import whole
from tests.engines.nvrtc.row_regions import (
    ROWS,
    Case,
    folds_of_two_inputs,
    several_folds,
    softmax_beside_a_fold,
    spelled_norm,
)
from tests.ir.samples import SAMPLES, Sample

H200 = Target.named("h200")
FAMILIES = ("softmax", "layer_norm", "rms_norm", "instance_norm", "group_norm", "batch_norm", "reduce", "global")
OURS = [s for s in SAMPLES if s.name.startswith(FAMILIES)]


def compiled(region: Region, arch: str) -> None:
    assert family_of(region) is rows.FAMILY
    for kernel in rows.generate(region, H200).kernels:
        cubin = compile_cubin(kernel.source, arch)
        assert isinstance(cubin, bytes), cubin


def planned(case: Case) -> tuple[Program, Layout]:
    return rows.planned(case.region(), H200)


def region_of(build: object, last: bool = False) -> Region:
    return Case("region", build, layout=channels_last if last else row_major).region()  # type: ignore[arg-type]


@pytest.mark.parametrize("case", ROWS[::4], ids=str)
def test_kernels_compile(case: Case) -> None:
    compiled(case.region(), "sm_80")


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("case", ROWS, ids=str)
def test_all_kernels_compile(case: Case, arch: str) -> None:
    compiled(case.region(), arch)


@pytest.mark.parametrize(
    ("fn", "dtype", "begins"),
    [
        ("sum", gd.float16, 0.0),
        ("mean", gd.float64, 0.0),
        ("max", gd.bfloat16, -math.inf),
        ("min", gd.float32, math.inf),
        ("max", gd.int8, -(2**31)),  # held in 32 bits
        ("min", gd.uint8, 2**31 - 1),
        ("min", gd.int64, 2**63 - 1),
    ],
)
def test_a_fold_begins_with_what_changes_no_result(fn: str, dtype: DType, begins: float) -> None:
    term = Term(dtype, False, 1, fold=fn)
    assert neutral(term) == literal(begins, accumulator(term))


def test_threads_beyond_the_last_row_store_nothing() -> None:
    """Where rows share a block and are no multiple of how many do."""
    kinds = set()
    for case in ROWS:
        region = case.region()
        _, layout = rows.planned(region, H200)
        odd = layout.row_vectors % layout.lanes != 0
        kinds.add(odd)
        for kernel in rows.generate(region, H200).kernels:
            live = f"const bool live = {f'line < {layout.row_vectors}' if odd else 'true'};"
            assert live in kernel.source, case
    assert kinds == {False, True}


@pytest.mark.parametrize("build", [folds_of_two_inputs, softmax_beside_a_fold])
def test_folds_of_inputs_that_nothing_else_reads(build: object) -> None:
    region = region_of(build)
    compiled(region, "sm_90")
    assert len(rows.planned(region, H200)[0].loads) == 2
    assert gd.compile(region.graph, H200).report.kernel_count == 1


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(24, 24), (24, 12), (1, 24)])
def test_folds_over_other_rows_have_kernels_too(axis: int, shape: tuple[int, ...]) -> None:
    g = gd.GraphBuilder("folds")
    x = g.reduce_max(g.input("x", (24, 24), gd.float32), axes=1)
    z = g.reduce_mean(g.input("z", shape, gd.float32), axes=axis)
    y = g.add(x, z if z.type.shape != (12,) else g.reduce_sum(z, axes=0))
    report = gd.compile(g.build({"y": y}), H200).report
    assert {n for r in report.regions for n in r.nodes} >= {"reduce_max", "reduce_mean"}


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("keepdims", [False, True])
def test_folds_of_one_element_beside_others_have_kernels(rows: int, keepdims: bool) -> None:
    g = gd.GraphBuilder("folds")
    one = g.reduce_max(g.input("x", (rows, 1), gd.float32), axes=1, keepdims=keepdims)
    many = g.reduce_sum(g.input("z", (rows, 24), gd.float32), axes=1, keepdims=keepdims)
    report = gd.compile(g.build({"y": g.add(one, many)}), H200).report
    assert {n for r in report.regions for n in r.nodes} == {"reduce_max", "reduce_sum", "add"}


@pytest.mark.parametrize("sample", OURS, ids=str)
def test_every_sample_is_taken(sample: Sample, rng: np.random.Generator) -> None:
    region = whole(sample.graph(rng))
    answer = NvrtcEngine().supports(region, H200, Policy())
    assert isinstance(answer, Support), answer
    assert answer.estimated_us > 0
    assert not answer.last_resort
    assert answer.deterministic


def test_names_of_cases_are_unique() -> None:
    assert len({c.name for c in ROWS}) == len(ROWS)


@pytest.mark.parametrize("case", ROWS[::5], ids=str)
def test_equal_regions_give_equal_text(case: Case) -> None:
    first, second = (rows.generate(case.region(), H200) for _ in range(2))
    assert first == second
    assert [k.source for k in first.kernels] == [k.source for k in second.kernels]


def test_one_kernel_folds_the_flagship_rows_in_registers() -> None:
    for dtype, width in ((gd.float16, 8), (gd.float32, 4), (gd.float64, 2)):
        region = region_of(lambda g, t=dtype: g.softmax(g.input("x", (16384, 4096), t)))
        program, layout = rows.planned(region, H200)
        assert (layout.width, layout.splits, layout.across) == (width, 1, False)
        assert layout.kept * layout.members * layout.width == 4096
        assert program.phases == 2
        (kernel,) = rows.generate(region, H200).kernels
        assert kernel.source.count("expf(" if dtype != gd.float64 else "exp(") >= 1


def test_exponentials_are_kept_and_sums_are_found_again() -> None:
    work = phases(planned_of(lambda g: g.softmax(g.input("x", (64, 4096), gd.float16))), True)
    assert [len(w.keeps) for w in work] == [0, 1, 0]
    assert [len(w.reused) for w in work] == [0, 0, 1]
    assert not work[2].loads

    def norm(g: gd.GraphBuilder) -> Value:
        return g.layer_norm(g.input("x", (64, 4096), gd.float16) + g.input("r", (64, 4096), gd.float16))

    work = phases(planned_of(norm), True)
    assert not any(w.keeps for w in work)
    assert [len(w.loads) for w in work] == [2, 2, 2]


def planned_of(build: object) -> Program:
    return rows.planned(region_of(build), H200)[0]


@pytest.mark.parametrize(("count", "before"), [(128, True), (512, True), (8192, False)])
def test_few_rows_load_everything_before_the_first_fold(count: int, before: bool) -> None:
    """Where all blocks run in one wave nothing else hides the way to memory behind a fold."""

    def norm(g: gd.GraphBuilder) -> Value:
        x, scale, shift = g.input("x", (count, 384), gd.float16), *(g.input(n, (384,), gd.float16) for n in "sb")
        return g.layer_norm(x, scale, shift)

    _, layout = rows.planned(region_of(norm), H200)
    (kernel,) = rows.generate(region_of(norm), H200).kernels
    body = kernel.source[kernel.source.index("void __launch_bounds__") :]
    assert layout.kept
    assert body.count("= load_pack<") == 3
    assert ("= load_pack<" not in body[body.index("fold_", body.index("= load_pack<")) :]) is before


def test_an_output_is_stored_in_the_phase_that_has_it() -> None:
    work = phases(rows.planned(Case("folds", several_folds).region(), H200)[0], True)
    assert [len(w.stores) for w in work] == [1, 2]
    work = phases(rows.planned(Case("norm", spelled_norm).region(), H200)[0], True)
    assert [len(w.folds) for w in work] == [1, 1, 0]
    assert [len(w.stores) for w in work] == [0, 1, 1]


@pytest.mark.parametrize("length", [1, 2, 3, 5, 8, 33, 64, 129, 300, 768, 1000, 1024, 4096, 5120, 8192, 16384, 100003])
@pytest.mark.parametrize("count", [1, 7, 512, 100000])
@pytest.mark.parametrize("dtype", [gd.float16, gd.float32], ids=str)
def test_threads_cover_each_row_once(length: int, count: int, dtype: DType) -> None:
    _, layout = rows.planned(region_of(lambda g: g.softmax(g.input("x", (count, length), dtype))), H200)
    assert layout.across == (length == 1 and count > 1)
    assert layout.vectors * (1 if layout.across else layout.width) == length
    assert layout.blocks * layout.lanes >= layout.row_vectors > (layout.blocks - 1) * layout.lanes
    assert 32 <= layout.threads <= 1024
    assert layout.threads % 32 == 0
    assert layout.members <= 32 or layout.lanes == 1 or layout.across
    assert layout.members > 32 or layout.members & (layout.members - 1) == 0
    if layout.kept:
        assert layout.kept * layout.members >= layout.vectors
    assert layout.share * layout.splits >= layout.vectors


@pytest.mark.parametrize("shape", [(2, 64, 7, 5), (32, 2048, 7, 7), (1, 33, 3, 300), (3, 8, 1, 1), (1, 1000, 129, 65)])
def test_channels_last_means_walk_along_channels(shape: tuple[int, ...]) -> None:
    region = region_of(lambda g: g.global_avg_pool(g.input("x", shape, gd.float16, strides=channels_last(shape))), True)
    _, layout = rows.planned(region, H200)
    assert layout.coalesced
    if shape[2:] != (1, 1):
        assert layout.across
    assert layout.row_vectors * (layout.width if layout.across else 1) == shape[0] * shape[1]
    assert 32 <= layout.threads <= 1024


def test_few_long_rows_are_split_between_blocks_and_many_are_not() -> None:
    many = region_of(lambda g: g.reduce_sum(g.input("x", (4096, 4096), gd.float32), axes=1))
    assert len(rows.generate(many, H200).kernels) == 1
    few = region_of(lambda g: g.reduce_sum(g.input("x", (4096, 4096), gd.float32), axes=None))
    recipe = rows.generate(few, H200)
    assert len(recipe.kernels) == 2
    assert recipe.workspace_bytes > 0
    assert recipe.kernels[0].grid[1] >= 128
    assert recipe.kernels[1].grid == (1, 1, 1)
    norm = region_of(lambda g: g.layer_norm(g.input("x", (2, 3, 500, 512), gd.float16), axes=(2, 3)))
    assert len(rows.generate(norm, H200).kernels) == 3


def test_reading_again_costs() -> None:
    fits = region_of(lambda g: g.softmax(g.input("x", (4096, 16384), gd.float16)))
    long = region_of(lambda g: g.softmax(g.input("x", (512, 131072), gd.float16)))
    assert rows.planned(fits, H200)[1].kept > 0
    assert rows.planned(long, H200)[1].kept == 0
    assert rows.estimate(long, H200) > 1.1 * rows.estimate(fits, H200)


@pytest.mark.parametrize(
    ("build", "microseconds"),
    [
        (lambda g: g.softmax(g.input("x", (16384, 4096), gd.float16)), 68.8),
        (lambda g: g.layer_norm(g.input("x", (8192, 4096), gd.bfloat16)), 38.4),
        (lambda g: g.rms_norm(g.input("x", (8192, 4096), gd.bfloat16)), 34.9),
    ],
)
def test_estimates_are_near_what_was_measured(build: object, microseconds: float) -> None:
    assert rows.estimate(region_of(build), H200) == pytest.approx(microseconds, rel=0.15)


def test_folds_over_two_sets_of_axes_are_declined() -> None:
    def build(g: gd.GraphBuilder) -> Value:
        x = g.input("x", (6, 50), gd.float32)
        return g.reduce_max(x, axes=1, keepdims=True) + g.reduce_max(x, axes=0, keepdims=True)

    answer = rows.takes(region_of(build))
    assert isinstance(answer, Decline)
    assert answer.code is Code.PATTERN
    assert "one kernel folds one set of axes" in answer.reason


def test_a_result_larger_than_the_rows_is_declined() -> None:
    def build(g: gd.GraphBuilder) -> Value:
        rows = g.reduce_max(g.input("x", (6, 50), gd.float32), axes=1, keepdims=True)
        return rows + g.input("wide", (6, 70), gd.float32)

    answer = rows.takes(region_of(build))
    assert isinstance(answer, Decline)
    assert answer.code is Code.BROADCAST


def test_a_diagonal_is_no_place() -> None:
    g = gd.GraphBuilder()
    column, row = g.input("c", (5, 1), gd.float32), g.input("r", (1, 5), gd.float32)
    node = g.build({"y": column + row}).nodes[0]
    assert result_place(node, {column: (Run((0,)), Run()), row: (Run(), Run((1,)))}) == (Run((0,)), Run((1,)))
    assert result_place(node, {column: (Run((0,)), Run()), row: (Run(), Run((0,)))}) is None


def test_an_input_that_is_not_loaded_is_not_written_over() -> None:
    """Here the scale of a norm that nothing reads any more: it is smaller than the result."""
    g = gd.GraphBuilder()
    x, r = g.input("x", (7, 64), gd.float16), g.input("r", (7, 64), gd.float16)
    g.rms_norm(x + r, g.input("scale", (64,), gd.float16))
    region = whole(g.build({"y": g.softmax(r) * x}), row_major)
    answer = NvrtcEngine().supports(region, H200, Policy())
    assert isinstance(answer, Support)
    assert {region.inputs[i].name for i, _ in answer.in_place} <= {"x", "r"}
