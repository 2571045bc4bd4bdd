"""Kernels that move elements, without a device: the boxes are the right ones, the tiles fit, and all of it compiles."""

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.answer import Decline
from graphdnn.engines.contract import Policy, Support
from graphdnn.engines.nvrtc import movement
from graphdnn.engines.nvrtc.compile import compile_cubin
from graphdnn.engines.nvrtc.copies import BoxCopy, Elements, Start, box_copies, refined
from graphdnn.engines.nvrtc.engine import NvrtcEngine, family_of
from graphdnn.engines.nvrtc.hardware import BLOCK
from graphdnn.engines.nvrtc.packing import Packing, groups_of
from graphdnn.engines.nvrtc.recipe import RAMP_US
from graphdnn.engines.nvrtc.turning import pitch, tile_counts, tile_of
from graphdnn.ir.evaluate import apply
from graphdnn.ir.region import Region
from graphdnn.ir.types import Array, DType, TensorType
from graphdnn.target import Target
from tests.engines.nvrtc.moves import LAST, convert, dense, move
from tests.ir.samples import draw

Rng = np.random.Generator
H200 = Target.named("h200")

REGIONS: dict[str, Region] = {
    "to_channels_last": convert((2, 7, 5, 6), gd.float16, None, LAST),
    "to_channels_first": convert((2, 33, 5, 6), gd.float32, LAST, None),
    "transpose": move("transpose", dense((2, 3, 4, 5, 6), gd.bfloat16), axes=(4, 1, 3, 0, 2)),
    "transpose_inner_kept": move("transpose", dense((2, 5, 3, 16), gd.float16), axes=(0, 2, 1, 3)),
    "transpose_bytes": move("transpose", dense((65, 33), gd.int8), axes=(1, 0)),
    "expand": move("expand", dense((3, 1, 5), gd.float32), shape=(2, 3, 4, 5)),
    "expand_innermost": move("expand", dense((3, 5, 1), gd.float16), shape=(3, 5, 16)),
    "expand_scalar": move("expand", dense((), gd.float64), shape=(3, 4)),
    "unsqueeze": move("unsqueeze", dense((4, 6), gd.float32, (1, 0)), axes=(1,)),
    "squeeze": move("squeeze", dense((4, 1, 6), gd.bool, (2, 1, 0)), axes=(1,)),
    "reshape_merging": move("reshape", dense((6, 4, 5), gd.float16, (1, 0, 2)), shape=(24, 5)),
    "reshape_splitting": move("reshape", dense((6, 4, 5), gd.float16, (2, 1, 0)), shape=(2, 3, 20)),
    "reshape_across": move("reshape", dense((6, 4), gd.float32, (1, 0)), shape=(4, 6)),
    "split": move("split", dense((3, 10, 4), gd.float16), sizes=(2, 5, 3), axis=1),
    "slice": move("slice", dense((7, 9, 5), gd.float32), starts=(1, 3, 0), stops=(7, 8, 4), steps=(2, 1, 1)),
    "slice_of_columns": move("slice", dense((7, 32), gd.float16), starts=(0, 8), stops=(7, 24), steps=(1, 2)),
    "concat": move("concat", dense((2, 3, 5, 4), gd.float16), dense((2, 5, 5, 4), gd.float16), axis=1),
    "concat_of_layouts": move(
        "concat",
        dense((2, 8, 5, 4), gd.float16, LAST),
        dense((2, 16, 5, 4), gd.float16),
        to=[dense((2, 24, 5, 4), gd.float16, LAST)],
        axis=1,
    ),
    "concat_of_many": move("concat", *[dense((4, 3), gd.bool)] * 20, axis=0),
    "pad": move("pad", dense((3, 5), gd.float16), padding=((1, 0), (2, 3)), value=-1.5),
    "pad_last": move(
        "pad",
        dense((2, 3, 4, 5), gd.int32, LAST),
        to=[dense((2, 8, 6, 7), gd.int32, LAST)],
        padding=((0, 0), (0, 5), (1, 1), (2, 0)),
        value=-7.0,
    ),
    "pad_channels": move(
        "pad",
        dense((2, 3, 5, 7), gd.float16),
        to=[dense((2, 4, 5, 7), gd.float16, LAST)],
        padding=((0, 0), (0, 1), (0, 0), (0, 0)),
    ),
    "pad_channels_in_place": move(
        "pad",
        dense((2, 5, 3, 4), gd.float16, LAST),
        to=[dense((2, 8, 3, 4), gd.float16, LAST)],
        padding=((0, 0), (0, 3), (0, 0), (0, 0)),
        value=-1.5,
    ),
    "pad_columns": move("pad", dense((6, 3), gd.float32), padding=((0, 0), (0, 1)), value=2.5),
    "pad_one_row": move("pad", dense((5,), gd.int8), padding=((0, 4),), value=3.0),
    "pad_a_slice_of_rows": move(
        "pad",
        TensorType((2, 3, 5, 6), gd.float16, (240, 80, 16, 1)),
        to=[dense((2, 7, 5, 6), gd.float16, LAST)],
        padding=((0, 0), (0, 4), (0, 0), (0, 0)),
    ),
    "three_channels_to_last": convert((2, 3, 6, 8), gd.float16, None, LAST),
    "four_channels_to_last": convert((3, 4, 5, 7), gd.float32, None, LAST),
    "pad_nothing": move("pad", dense((3, 5), gd.float64), padding=((0, 0), (0, 0)), value=1.0),
    "gather": move("gather", dense((11, 16), gd.float16), dense((4, 3), gd.int32), axis=0),
    "gather_columns": move("gather", dense((5, 7, 3), gd.float32), dense((4,), gd.int64), axis=1),
    "gather_innermost": move("gather", dense((5, 7), gd.bfloat16), dense((9,), gd.int32), axis=1),
    "gather_one": move("gather", dense((5, 7), gd.bfloat16), dense((), gd.int32), axis=0),
    "write_slice": move(
        "write_slice", dense((3, 7, 16), gd.float16), dense((3, 2, 16), gd.float16), dense((1,), gd.int32), axis=1
    ),
    "write_innermost": move(
        "write_slice", dense((3, 9), gd.float32), dense((3, 2), gd.float32), dense((), gd.int64), axis=1
    ),
    "write_fixed": move("write_slice", dense((6, 9), gd.float32), dense((4, 9), gd.float32), axis=0, start=99),
    "write_all": move("write_slice", dense((6, 9), gd.float32), dense((6, 9), gd.float32), axis=0, start=3),
    "iota": move("iota", size=300),
    "iota_long": move("iota", size=129, dtype="int64"),
}


def inputs(region: Region, rng: Rng) -> dict[str, Array]:
    """Random elements; indices and starts from well before the start to well past the end."""
    return {v.name: draw(v.type, rng, *((-20, 20) if v.type.dtype.is_integer else ())) for v in region.inputs}


class Memory:
    """Parameters of a kernel in host memory, moved box by box as the kernels do."""

    def __init__(self, region: Region, arrays: dict[str, Array]) -> None:
        self.flat: list[Array] = []
        self.types: list[TensorType] = [v.type for v in (*region.inputs, *region.outputs)]
        for type in self.types:
            self.flat.append(np.zeros(type.extent, type.dtype.numpy))
        self.written = [np.zeros(type.extent, int) for type in self.types]
        for i, v in enumerate(region.inputs):
            self.tensor(i)[...] = arrays[v.name]

    def tensor(self, parameter: int) -> Array:
        type = self.types[parameter]
        return self.box(self.flat[parameter], type.shape, Elements(parameter, type.layout))

    def box(self, flat: Array, extents: tuple[int, ...], elements: Elements) -> Array:
        steps = tuple(s * flat.itemsize for s in elements.strides)
        return np.lib.stride_tricks.as_strided(flat[elements.offset :], extents, steps)

    def start(self, start: Start) -> int:
        wanted = start.number if start.number is not None else int(self.flat[start.parameter][0])
        return min(max(wanted, 0), start.last)

    def run(self, copy: BoxCopy) -> None:
        target = copy.target
        if copy.into is not None:
            moved = target.offset + self.start(copy.into.start) * copy.into.step
            target = Elements(target.parameter, target.strides, moved)
        goal = self.box(self.flat[target.parameter], copy.extents, target)
        counts = self.box(self.written[target.parameter], copy.extents, target)
        where = np.ones(copy.extents, bool)
        if copy.around is not None:
            first = self.start(copy.around.start)
            along = np.arange(copy.extents[copy.around.axis])
            outside = (along < first) | (along >= first + copy.around.extent)
            where &= outside.reshape([-1 if a == copy.around.axis else 1 for a in range(len(copy.extents))])
        goal[where] = self.elements(copy, goal)[where]
        counts[where] += 1

    def elements(self, copy: BoxCopy, goal: Array) -> Array:
        if copy.counts:
            return np.arange(copy.size).astype(goal.dtype).reshape(copy.extents)
        number = np.frombuffer(copy.bits.to_bytes(goal.itemsize, "little"), goal.dtype)
        if copy.source is None:
            return np.broadcast_to(number, copy.extents)
        flat = self.flat[copy.source.parameter]
        if copy.filled is not None:
            inside = self.box(flat, (*copy.extents[:-1], copy.filled), copy.source)
            behind = np.broadcast_to(number, (*copy.extents[:-1], copy.extents[-1] - copy.filled))
            return np.concatenate((inside, behind), -1)
        if copy.reshaped is not None:
            return self.box(flat, copy.reshaped, copy.source).reshape(copy.extents)
        if copy.lookup is None:
            return self.box(flat, copy.extents, copy.source)
        n = copy.lookup.extent
        rows = self.box(self.flat[copy.lookup.indices.parameter], copy.extents, copy.lookup.indices)
        rows = np.clip(np.where(rows < 0, rows + n, rows), 0, n - 1).astype(np.int64)
        places = self.box(np.arange(flat.size), copy.extents, copy.source) if 0 not in copy.source.strides else None
        if places is None:
            steps = np.meshgrid(*map(np.arange, copy.extents), indexing="ij")
            places = copy.source.offset + sum(i * s for i, s in zip(steps, copy.source.strides, strict=True))
        return flat[places + rows * copy.lookup.step]


@pytest.mark.parametrize("name", REGIONS)
def test_boxes_write_each_element_once_and_rightly(name: str, rng: Rng) -> None:
    region = REGIONS[name]
    node = region.nodes[0]
    arrays = inputs(region, rng)
    memory = Memory(region, arrays)
    for copy in box_copies(region, node):
        memory.run(copy)
    expected = apply(node.op, [arrays[v.name] for v in node.operands], node.result_types)
    for i, value in enumerate(region.outputs, start=len(region.inputs)):
        np.testing.assert_array_equal(memory.tensor(i), expected[node.results.index(value)])
        assert memory.written[i].sum() == value.type.size
        assert memory.written[i].max() == 1


@pytest.mark.parametrize("name", REGIONS)
def test_schedules_cover_their_boxes(name: str) -> None:
    region = REGIONS[name]
    for schedule in movement.schedules_of(region, H200):
        if schedule.tile is not None:
            counts = tile_counts(schedule.copy, schedule.tile)
            steps = {schedule.tile.s: schedule.tile.extent_s, schedule.tile.d: schedule.tile.extent_d}
            for axis, n in enumerate(schedule.copy.extents):
                assert (counts[axis] - 1) * steps.get(axis, 1) < n <= counts[axis] * steps.get(axis, 1)
        elif schedule.packing is not None:
            groups = np.prod(groups_of(schedule.copy, schedule.packing))
            assert schedule.blocks * BLOCK * schedule.repeat >= groups
            assert groups * schedule.packing.pixels * schedule.packing.written >= schedule.copy.size
        elif schedule.copy.around is None:
            assert schedule.blocks * BLOCK * schedule.repeat * schedule.width >= schedule.copy.size


@pytest.mark.parametrize("index", range(len(REGIONS)), ids=REGIONS)
def test_kernels_compile(index: int) -> None:
    region = list(REGIONS.values())[index]
    for kernel in movement.generate(region, H200).kernels:
        cubin = compile_cubin(kernel.source, ("sm_80", "sm_90")[index % 2])
        assert isinstance(cubin, bytes), cubin


@pytest.mark.parametrize(
    ("extent", "size", "expected"),
    [(64, 2, 66), (64, 4, 65), (64, 1, 68), (64, 8, 65), (3, 2, 6), (33, 4, 33), (65, 2, 66)],
)
def test_rows_of_a_tile_start_in_different_banks(extent: int, size: int, expected: int) -> None:
    found = pitch(extent, size)
    assert found == expected
    assert found >= extent
    assert size == 8 or found * size // 4 % 2 == 1


@pytest.mark.parametrize("dtype", [gd.int8, gd.float16, gd.float32, gd.float64], ids=str)
@pytest.mark.parametrize("channels", [2, 3, 5, 7, 23, 24, 33, 64, 65, 96, 129, 300])
@pytest.mark.parametrize("order", ["to_last", "to_first"])
def test_tiles_fit_shared_memory_and_keep_every_core_busy(dtype: DType, channels: int, order: str) -> None:
    layouts = (None, LAST) if order == "to_last" else (LAST, None)
    region = convert((32, channels, 56, 56), dtype, *layouts)
    (copy,) = box_copies(region, region.nodes[0])
    tile = tile_of(copy, dtype.itemsize, H200)
    assert tile is not None
    assert tile.pitch * tile.extent_d * dtype.itemsize <= 48 * 1024
    assert np.prod(tile_counts(copy, tile)) >= H200.sm_count
    assert tile.extent_s * tile.extent_d >= 512
    if channels <= 96:
        assert channels in (tile.extent_s, tile.extent_d)
        assert tile.flat_out if order == "to_last" else tile.flat_in


def test_vectors_where_addresses_allow() -> None:
    def widths(region: Region) -> tuple[int, int]:
        tile = movement.schedules_of(region, H200)[0].tile
        assert tile is not None
        return tile.width_in, tile.width_out

    assert widths(convert((32, 64, 56, 56), gd.float16, None, LAST)) == (8, 8)
    assert widths(convert((32, 5, 224, 224), gd.float16, None, LAST)) == (8, 8)
    assert widths(convert((32, 3, 224, 224), gd.float32, LAST, None)) == (4, 4)
    assert widths(convert((32, 23, 7, 7), gd.float16, None, LAST)) == (1, 1)
    assert widths(convert((32, 512, 7, 7), gd.float16, None, LAST)) == (8, 8)
    assert movement.schedules_of(REGIONS["concat"], H200)[0].width == 4
    assert movement.schedules_of(REGIONS["gather"], H200)[0].width == 8
    assert movement.schedules_of(REGIONS["gather_innermost"], H200)[0].width == 1
    assert movement.schedules_of(REGIONS["write_innermost"], H200)[0].width == 1


def padded(shape: tuple[int, ...], channels: int, dtype: DType, before: tuple[int, ...] | None = None) -> Region:
    """An image padded to so many channels, channels-last."""
    to = dense((shape[0], channels, *shape[2:]), dtype, LAST)
    behind = ((0, 0), (0, channels - shape[1]), (0, 0), (0, 0))
    return move("pad", dense(shape, dtype, before), to=[to], padding=behind)


@pytest.mark.parametrize(
    ("region", "expected"),
    [
        (padded((32, 3, 224, 224), 4, gd.float16), Packing(2, 3, 4, 2, 8)),
        (padded((32, 3, 225, 223), 4, gd.float16), Packing(2, 3, 4, 1, 4)),
        (padded((1, 3, 225, 223), 4, gd.float16), Packing(2, 3, 4, 1, 4)),
        (padded((32, 7, 224, 224), 8, gd.float16), Packing(1, 7, 8, 1, 8)),
        (padded((32, 1, 15, 15), 4, gd.float16), Packing(2, 1, 4, 2, 8)),
        (padded((32, 3, 224, 224), 4, gd.float16, LAST), Packing(2, 3, 4, 1, 8)),
        (padded((32, 3, 224, 224), 4, gd.float32), Packing(1, 3, 4, 1, 4)),
        (convert((32, 3, 224, 224), gd.float16, None, LAST), Packing(8, 3, 3, 8, 8)),
        (convert((32, 3, 15, 15), gd.float16, None, LAST), Packing(8, 3, 3, 1, 1)),
        (convert((32, 4, 224, 224), gd.float32, None, LAST), Packing(1, 4, 4, 1, 4)),
        (convert((32, 8, 224, 224), gd.float16, None, LAST), None),
        (convert((32, 3, 224, 224), gd.float16, LAST, None), None),
        (convert((32, 1, 224, 224), gd.float16, None, LAST), None),
    ],
)
def test_few_channels_are_packed_in_registers(region: Region, expected: Packing | None) -> None:
    (schedule,) = movement.schedules_of(region, H200)
    assert schedule.packing == expected
    assert schedule.packing is None or schedule.tile is None
    assert len(movement.generate(region, H200).kernels) == 1


@pytest.mark.parametrize("channels", [1, 3, 5, 7])
@pytest.mark.parametrize("to", [4, 8])
def test_packing_compiles(channels: int, to: int) -> None:
    for shape in ((3, channels, 7, 9), (2, channels, 16, 24)):
        if channels < to:
            (kernel,) = movement.generate(padded(shape, to, gd.float16), H200).kernels
            cubin = compile_cubin(kernel.source, "sm_90")
            assert isinstance(cubin, bytes), cubin


def test_padded_channels_are_priced_by_what_is_read_and_written() -> None:
    region = padded((32, 3, 224, 224), 4, gd.float16)
    floor = 1e6 * (region.read_bytes + region.written_bytes) / H200.bandwidth
    assert floor < movement.estimate(region, H200) - H200.launch_us - RAMP_US < 1.3 * floor


def test_one_kernel_for_all_operands_of_a_concat() -> None:
    assert len(movement.generate(REGIONS["concat_of_layouts"], H200).kernels) == 1
    assert len(movement.generate(REGIONS["concat_of_many"], H200).kernels) == 2


def test_few_blocks_where_the_operand_may_be_the_result() -> None:
    region = move(
        "write_slice",
        dense((32, 8, 8192, 128), gd.float16),
        dense((32, 8, 1, 128), gd.float16),
        dense((1,), gd.int32),
        axis=2,
    )
    window, rest = movement.schedules_of(region, H200)
    assert (window.width, rest.width) == (8, 8)
    assert rest.blocks == 8 * H200.sm_count
    assert "if (p0 == p3) return;" in movement.generate(region, H200).kernels[0].source


def test_large_tensors_take_long_indices() -> None:
    small = movement.schedules_of(convert((8, 64, 512, 512), gd.int8, None, LAST), H200)[0]
    large = movement.schedules_of(convert((64, 64, 1024, 1024), gd.int8, None, LAST), H200)[0]
    assert (small.index, large.index) == ("int", "i64")


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((4, 6), (8, 3), (4, 2, 3)),
        ((6, 4), (4, 6), None),
        ((2, 3, 4), (24,), (2, 3, 4)),
        ((1,), (1, 1), (1,)),
        ((5, 1, 7), (35,), (5, 7)),
    ],
)
def test_refined(first: tuple[int, ...], second: tuple[int, ...], expected: tuple[int, ...] | None) -> None:
    assert refined(first, second) == expected


def test_priced_near_the_copy_bandwidth() -> None:
    region = convert((32, 256, 56, 56), gd.float16, None, LAST)
    answer = NvrtcEngine().supports(region, H200, Policy())
    assert isinstance(answer, Support)
    floor = 1e6 * 2 * region.written_bytes / H200.bandwidth
    assert floor < answer.estimated_us < 1.4 * floor + H200.launch_us + RAMP_US
    assert not answer.last_resort
    assert answer.kernels == 1
    narrow = NvrtcEngine().supports(convert((32, 255, 55, 55), gd.int8, None, LAST), H200, Policy())
    assert isinstance(narrow, Support)
    assert narrow.estimated_us > 1e6 * 2 * 32 * 255 * 55 * 55 / H200.bandwidth / 0.5


def test_a_slice_is_priced_by_what_it_takes() -> None:
    region = move("slice", dense((4096, 4096), gd.float16), starts=(0, 0), stops=(16, 4096), steps=(1, 1))
    assert movement.estimate(region, H200) < 1e6 * 4 * 16 * 4096 / H200.bandwidth / 0.5 + H200.launch_us + RAMP_US


def test_moving_goes_alone() -> None:
    g = gd.GraphBuilder()
    x, i = g.input("x", (4, 6), gd.float32), g.input("i", (2,), gd.int32)
    graph = g.build({"y": g.relu(g.gather(x, i))})
    answer = family_of(Region.of(graph, graph.nodes))
    assert isinstance(answer, Decline)
    assert "moves elements does nothing else" in answer.reason
