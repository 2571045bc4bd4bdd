"""Pointwise kernels without a device: the table is complete, the decisions are right, every kernel compiles."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.answer import Code, Decline
from graphdnn.engines.contract import Policy
from graphdnn.engines.nvrtc.compile import compile_cubin
from graphdnn.engines.nvrtc.emit import literal
from graphdnn.engines.nvrtc.engine import NvrtcEngine, family_of
from graphdnn.engines.nvrtc.functions import EXPRESSIONS
from graphdnn.engines.nvrtc.indexing import Space, collapsed, ordered, split_index, vector_width
from graphdnn.engines.nvrtc.pointwise import estimate, in_place, outline, pace, plan_walk
from graphdnn.ir.graph import Node
from graphdnn.ir.ops.pointwise import FUNCTIONS, TAKES, Pointwise
from graphdnn.ir.region import Region
from graphdnn.ir.types import DTYPES, DType, channels_last, dense_strides, row_major
from graphdnn.target import Target
from tests.engines.cudnn.layouts import Layout, laid_out, whole
from tests.ir.samples import pointwise

H200 = Target.named("h200")


def compiled(region: Region, arch: str = "sm_90") -> bytes:
    """The cubin of the region's one kernel."""
    family = family_of(region)
    assert not isinstance(family, Decline), family
    (kernel,) = family.generate(region, H200).kernels
    cubin = compile_cubin(kernel.source, arch)
    assert isinstance(cubin, bytes), cubin
    return cubin


def every_function(dtype: DType) -> Region:
    """All functions that take a type, each an output of one region; one element a thread, for the compiler's sake."""
    g = gd.GraphBuilder()
    operands = [g.input("a", (5, 3), dtype), g.input("b", (3,), dtype)]
    outputs = {}
    for fn, row in FUNCTIONS.items():
        if TAKES[row.takes](dtype):
            numbers = tuple(1 if default is None else default for _, default in row.parameters)
            outputs[fn] = g._add(
                Pointwise(fn=fn, parameters=numbers), *operands[: row.arity], name=None, whole=dtype.is_integer
            )[0]
    return whole(g.build(outputs))


def test_every_function_has_its_row_and_no_other() -> None:
    assert set(EXPRESSIONS) == set(FUNCTIONS)


def test_rows_for_integers_are_there_where_integers_are_taken() -> None:
    integers = {fn for fn, row in FUNCTIONS.items() if row.takes in ("number", "integer", "any")}
    assert {fn for fn, row in EXPRESSIONS.items() if row.integers is not None} == integers


@pytest.mark.parametrize("dtype", list(DTYPES.values()), ids=str)
def test_every_function_compiles_for_every_type(dtype: DType) -> None:
    compiled(every_function(dtype), "sm_80")


@pytest.mark.parametrize("sample", pointwise.SAMPLES[::7], ids=str)
def test_samples_compile(sample: pointwise.Sample, rng: np.random.Generator) -> None:
    compiled(whole(sample.graph(rng)))


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("sample", pointwise.SAMPLES, ids=str)
def test_all_samples_compile(sample: pointwise.Sample, arch: str, rng: np.random.Generator) -> None:
    compiled(whole(sample.graph(rng)), arch)


@pytest.mark.parametrize(("source", "target"), list(product(DTYPES.values(), repeat=2)), ids=str)
def test_every_cast_is_emitted(source: DType, target: DType) -> None:
    g = gd.GraphBuilder()
    region = whole(g.build({"y": g.cast(g.input("x", (7,), source), target)}))
    assert f"narrow<{target.text}>(x0)" in family_of(region).generate(region, H200).kernels[0].source


def test_every_pair_of_types_casts_in_one_kernel() -> None:
    g = gd.GraphBuilder()
    xs = {s: g.input(s, (1,), t) for s, t in DTYPES.items()}
    compiled(whole(g.build({f"{s}_{t}": g.cast(x, dtype) for s, x in xs.items() for t, dtype in DTYPES.items()})))


@pytest.mark.parametrize(
    ("number", "dtype", "text"),
    [
        (-0.5, gd.float32, "(-0.5f)"),
        (1.0, gd.float16, "(1.0f)"),
        (0.1, gd.bfloat16, "(0.1f)"),
        (0.1, gd.float64, "(0.1)"),
        (1e30, gd.float32, "(1e+30f)"),
        (2.0**-149, gd.float32, "(1e-45f)"),
        (float("inf"), gd.float32, "((float)__longlong_as_double(0x7ff0000000000000ll))"),
        (1e300, gd.float32, "((float)__longlong_as_double(0x7ff0000000000000ll))"),
        (float("-inf"), gd.float64, "(-__longlong_as_double(0x7ff0000000000000ll))"),
        (float("nan"), gd.float64, "(__longlong_as_double(0x7ff8000000000000ll))"),
        (-7, gd.int8, "((i8)(-7))"),
        (-(2**31), gd.int32, "((i32)(-2147483647 - 1))"),
        (2**40, gd.int64, "((i64)(1099511627776ll))"),
        (-(2**63), gd.int64, "((i64)(-9223372036854775807ll - 1))"),
        (True, gd.bool, "true"),
    ],
)
def test_literals(number: float, dtype: DType, text: str) -> None:
    assert literal(number, dtype) == text


def test_neighbouring_axes_that_all_walk_alike_become_one() -> None:
    image, channel = (200, 40, 8, 1), (0, 0, 0, 1)
    assert collapsed(Space((3, 5, 5, 8), (image, image))) == Space((600,), ((1,), (1,)))
    assert collapsed(Space((3, 5, 5, 8), (image, channel))) == Space((75, 8), ((8, 1), (0, 1)))
    assert collapsed(Space((3, 1, 5, 8), ((80, 99, 16, 2),))) == Space((120,), ((2,),))
    assert collapsed(Space((1, 1), ((7, 9), (0, 0)))) == Space((1,), ((0,), (0,)))


def test_the_walk_follows_the_leader() -> None:
    shape, last = (2, 3, 4, 5), channels_last((2, 3, 4, 5))
    walk = ordered(Space(shape, ((60, 20, 5, 1), last)), 1)
    assert walk == Space((2, 4, 5, 3), ((60, 5, 1, 20), (60, 15, 3, 1)))


@pytest.mark.parametrize(
    ("space", "sizes", "width"),
    [
        (Space((1003,), ((1,), (1,))), (2, 2), 8),  # one dimension: its tail is guarded
        (Space((5,), ((1,),)), (2,), 4),
        (Space((7, 16), ((16, 1), (0, 1))), (2, 2), 8),
        (Space((7, 12), ((12, 1), (0, 1))), (2, 2), 4),
        (Space((7, 16), ((20, 1), (16, 1))), (2, 2), 4),  # rows 20 apart start at multiples of 4 only
        (Space((7, 16), ((17, 1), (16, 1))), (2, 2), 1),
        (Space((7, 16), ((16, 1), (16, 1))), (4, 2), 8),  # the smaller type decides
        (Space((7, 16), ((16, 1), (1, 7))), (4, 4), 4),  # one that is gathered does not forbid
        (Space((7, 16), ((1, 7), (0, 0))), (4, 4), 1),
        (Space((7, 15), ((15, 1),)), (1,), 1),
        (Space((7, 32), ((32, 1),)), (1,), 16),
    ],
)
def test_vector_widths(space: Space, sizes: tuple[int, ...], width: int) -> None:
    assert vector_width(space, sizes) == width


def test_large_tensors_are_indexed_in_64_bits() -> None:
    assert Space((2**15, 2**15), ((2**15, 1),)).fits_int
    assert not Space((2**16, 2**15), ((2**15, 1),)).fits_int
    assert not Space((4, 5), ((2**30, 1),)).fits_int
    g = gd.GraphBuilder()
    region = whole(g.build({"y": g.relu(g.input("x", (3, 2**30), gd.float16))}))
    assert "const i64 group" in family_of(region).generate(region, H200).kernels[0].source


def test_a_flat_index_is_taken_apart_from_the_last_axis_on() -> None:
    scope: dict[str, int] = {"flat": 2 * 35 + 4 * 7 + 6}
    for line in split_index("flat", (3, 5, 7), ("a", "b", "c"), "int"):
        name, value = line.removeprefix("const int ").rstrip(";").split(" = ")
        scope[name] = eval(value.replace("/", "//"), {}, scope)
    assert (scope["a"], scope["b"], scope["c"]) == (2, 4, 6)


def test_one_vector_may_lie_along_two_axes() -> None:
    g = gd.GraphBuilder()
    x, b = g.input("x", (4, 4, 4), gd.float32), g.relu(g.input("b", (4,), gd.float32))
    region = whole(g.build({"y": g.add(g.bias(x, b, axis=1), b)}))
    strides = {a.strides for a in plan_walk(region, H200).loads.values() if a.value.name == "b"}
    assert strides == {(0, 1, 0), (0, 0, 1)}


def even_region(rng: np.random.Generator) -> Region:
    """Random pointwise work on tensors of one shape and one layout, of two types, with numbers and several outputs."""
    g = gd.GraphBuilder()
    shape = tuple(int(n) for n in rng.choice([1, 2, 3, 8, 40], int(rng.integers(5))))
    order = [int(a) for a in rng.permutation(len(shape))]
    narrow = (gd.float16, gd.int8)[int(rng.integers(2))]
    pool = [g.input(f"x{i}", shape, (gd.float32, narrow)[i % 2], strides=dense_strides(shape, order)) for i in range(4)]
    for _ in range(int(rng.integers(1, 9))):
        a, b = (pool[int(rng.integers(len(pool)))] for _ in range(2))
        kind = int(rng.integers(5))
        same = a.type.dtype == b.type.dtype
        pool.append(
            g.cast(a, gd.float32 if a.type.dtype == narrow else narrow)
            if kind == 0
            else a + b
            if kind < 3 and same
            else g.maximum(a, 2)
            if kind < 4
            else g.relu(a)
        )
    made = pool[4:]
    outputs = {made[-1], *(v for v in made if rng.random() < 0.3)}
    graph = g.build({f"y{i}": v for i, v in enumerate(v for v in made if v in outputs)})
    placed = laid_out(graph, lambda shape: dense_strides(shape, order))
    wanted = set(placed.outputs.values())
    needed = set().union(*({placed.producer[v], *bits_above(placed, v)} for v in wanted))
    return Region.of(placed, needed)


def bits_above(graph: gd.Graph, value: gd.Value) -> list[Node]:
    above = graph.ancestors[graph.producer[value]]
    return [n for i, n in enumerate(graph.nodes) if above >> i & 1]


@pytest.mark.parametrize("case", range(60))
def test_what_lies_evenly_is_priced_as_its_kernel_is(case: int, rng: np.random.Generator) -> None:
    """The outline follows from one tensor; the walk is found node by node."""
    region = even_region(rng)
    assert region.common_form is not None
    short, walk = outline(region, H200), plan_walk(region, H200)
    assert (short.space.extents, short.width, short.repeat) == (walk.space.extents, walk.width, walk.repeat)
    assert short.space.accesses == walk.space.accesses
    assert short.flops == walk.flops
    assert pace(short) == pace(walk)
    assert in_place(region, short) == in_place(region, walk)
    memory = {(a.value, a.strides, a.offset, a.when) for a in walk.loads.values()}
    assert {(a.value, a.strides, a.offset, a.when) for a in short.loads.values()} == memory
    assert estimate(region, H200) > 0


@pytest.mark.parametrize("other", ["broadcast", "turned", "moved"])
def test_what_lies_otherwise_is_not_even(other: str) -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (4, 6), gd.float32)
    y = {
        "broadcast": lambda: g.input("y", (6,), gd.float32),
        "turned": lambda: g.input("y", (4, 6), gd.float32, strides=(1, 4)),
        "moved": lambda: g.concat([x, x], axis=0),
    }[other]()
    made = g.relu(y) if other == "moved" else x + y
    assert whole(g.build({"y": made}), row_major).common_form is None


def test_a_small_output_is_written_once() -> None:
    g = gd.GraphBuilder()
    x, s = g.input("x", (3, 5, 4, 8), gd.float16), g.sigmoid(g.input("s", (3, 5, 1, 1), gd.float16))
    region = whole(g.build({"y": g.mul(x, s), "s": s}), layout=lambda shape: gd.TensorType(shape, gd.float16).layout)
    only = {store.access.value.type.shape: store.only for store in plan_walk(region, H200).stores}
    assert only == {(3, 5, 4, 8): "", (3, 5, 1, 1): "at1 == 0"}


def test_outputs_that_do_not_share_an_index_space_are_declined() -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (5,), gd.float16)
    outputs = {"y": g.add(x, g.input("a", (3, 5), gd.float16)), "z": g.add(x, g.input("b", (7, 5), gd.float16))}
    answer = NvrtcEngine().supports(whole(g.build(outputs)), H200, Policy())
    assert isinstance(answer, Decline)
    assert answer.code == Code.BROADCAST
    assert "(3, 5)" in answer.reason
    assert "(7, 5)" in answer.reason


def test_cost_follows_the_bytes_and_the_layout() -> None:
    def price(strides: tuple[int, ...] | None, rows: int = 4096) -> float:
        g = gd.GraphBuilder()
        region = whole(g.build({"y": g.relu(g.input("x", (rows, 4096), gd.float16, strides=strides))}))
        answer = NvrtcEngine().supports(region, H200, Policy())
        assert not isinstance(answer, Decline)
        return answer.estimated_us

    floor = 2 * 2 * 4096 * 4096 / H200.bandwidth * 1e6
    assert floor < price(None) < 1.5 * floor
    assert price((1, 4096)) > 3 * price(None)
    assert price(None, 8192) > 1.8 * price(None)


def test_equal_regions_have_equal_sources() -> None:
    def text(name: str) -> str:
        g = gd.GraphBuilder(name)
        region = whole(g.build({name: g.gelu(g.input(f"{name}_in", (33, 8), gd.float16), name=f"{name}_node")}))
        return family_of(region).generate(region, H200).kernels[0].source

    assert text("one") == text("other")


def pairs(
    outputs: Callable[[gd.GraphBuilder], dict[str, gd.Value]], layout: Layout = row_major
) -> set[tuple[str, str]]:
    """Names of inputs and outputs that may share memory; their parameters alone are without __restrict__."""
    g = gd.GraphBuilder()
    region = whole(g.build(outputs(g)), layout)
    answer = NvrtcEngine().supports(region, H200, Policy())
    assert not isinstance(answer, Decline), answer
    names = {v: n for n, v in region.graph.outputs.items()}
    source = family_of(region).generate(region, H200).kernels[0].source
    shared = {i for i, _ in answer.in_place} | {len(region.inputs) + o for _, o in answer.in_place}
    for number, _ in enumerate((*region.inputs, *region.outputs)):
        assert (f"* p{number}" in source) is (number in shared)
        assert (f"* __restrict__ p{number}" in source) is (number not in shared)
    return {(region.inputs[i].name, names[region.outputs[o]]) for i, o in answer.in_place}


def test_what_lies_as_an_output_may_be_written_over() -> None:
    def several(g: gd.GraphBuilder) -> dict[str, gd.Value]:
        a, b = g.input("a", (5, 7), gd.float16), g.input("b", (7,), gd.float16)
        c = g.input("c", (5, 7), gd.float32)
        return {"y": g.relu(a) + b, "z": g.cast(c, gd.float16), "w": g.exp(c)}

    assert pairs(several) == {("a", "y"), ("a", "z"), ("c", "w")}  # not b, which every row reads


def test_an_operand_that_is_read_in_two_ways_is_not_written_over() -> None:
    def vector(g: gd.GraphBuilder) -> dict[str, gd.Value]:
        b = g.input("b", (4,), gd.float32)
        return {"y": g.bias(g.bias(g.input("x", (4, 4), gd.float32), b, axis=0), b, axis=1)}

    assert pairs(vector) == {("x", "y")}


def test_a_small_output_is_written_over_nothing() -> None:
    """Its operand is read all over the space."""

    def small(g: gd.GraphBuilder) -> dict[str, gd.Value]:
        s = g.sigmoid(g.input("s", (3, 5, 1), gd.float16))
        return {"y": g.mul(g.input("x", (3, 5, 8), gd.float16), s), "s": s}

    assert pairs(small) == {("x", "y")}


def test_another_layout_is_not_written_over() -> None:
    assert pairs(lambda g: {"y": g.relu(g.input("x", (6, 5), gd.float16, strides=(1, 6)))}) == set()
    assert pairs(lambda g: {"y": g.relu(g.input("x", (6, 5), gd.float16, strides=(0, 1)))}) == set()


@pytest.mark.parametrize(("length", "shared"), [(300, True), (4096, True), (2_000_003, False)])
def test_rows_are_written_over_where_they_are_kept(length: int, shared: bool) -> None:
    def sums(g: gd.GraphBuilder) -> dict[str, gd.Value]:
        total = g.input("x", (700, length), gd.float16) + g.input("r", (700, length), gd.float16)
        return {"sum": total, "y": g.softmax(total)}

    assert pairs(sums) == ({(i, o) for i in ("x", "r") for o in ("sum", "y")} if shared else set())


def test_what_a_later_phase_loads_is_not_written_over_by_an_earlier_one() -> None:
    def late(g: gd.GraphBuilder) -> dict[str, gd.Value]:
        x = g.input("x", (70, 300), gd.float16)
        return {"early": g.relu(x), "y": g.softmax(x) * g.input("late", (70, 300), gd.float16)}

    assert pairs(late) == {("x", "early"), ("x", "y"), ("late", "y")}


def test_a_written_slice_is_written_in_place_where_it_lies_as_its_operand() -> None:
    def written(strides: tuple[int, ...] | None) -> tuple[tuple[int, int], ...]:
        g = gd.GraphBuilder()
        x, u = g.input("x", (3, 65, 7), gd.float16, strides=strides), g.input("u", (3, 5, 7), gd.float16)
        return family_in_place(whole(g.build({"y": g.write_slice(x, u, 9, axis=1)}), row_major))

    assert written(None) == ((0, 0),)
    assert written((455, 1, 65)) == ()


def family_in_place(region: Region) -> tuple[tuple[int, int], ...]:
    family = family_of(region)
    assert not isinstance(family, Decline)
    return family.generate(region, H200).in_place
