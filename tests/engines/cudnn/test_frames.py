import pytest

from graphdnn.engines.cudnn.frames import Matrix, Rows, Spatial, is_channels_last
from graphdnn.ir.types import TensorType, channels_last, float16, row_major


@pytest.mark.parametrize(
    ("shape", "strides", "wanted"),
    [
        ((63, 1, 3, 3), (9, 1, 3, 1), (9, 1, 3, 1)),
        ((63, 1, 3, 3), (9, 9, 3, 1), (9, 1, 3, 1)),
        ((4, 3, 1, 1), (3, 1, 1, 1), (3, 1, 3, 3)),
        ((4, 3, 1, 1), (3, 1, 3, 3), (3, 1, 3, 3)),
        ((1, 256, 1, 1), (256, 1, 1, 1), (256, 1, 256, 256)),
        ((2, 5, 7, 3), row_major((2, 5, 7, 3)), (105, 21, 3, 1)),
        ((2, 5, 7, 3), channels_last((2, 5, 7, 3)), (105, 1, 15, 5)),
        ((1, 1, 1, 1), (7, 7, 7, 7), (1, 1, 1, 1)),
    ],
)
def test_strides_of_size_one_axes_have_one_spelling(shape, strides, wanted) -> None:
    told = Spatial(4).describe(shape, strides, shape)
    assert told is not None
    assert (told.dims, told.strides) == (shape, wanted)


def test_a_channel_vector_without_batch_axis_is_padded_in_front() -> None:
    told = Spatial(4).describe((24, 1, 1), (1, 1, 1), (2, 24, 5, 7))
    assert told is not None
    assert (told.dims, told.strides) == ((1, 24, 1, 1), (24, 1, 24, 24))


@pytest.mark.parametrize(
    ("rows", "shape", "strides", "wanted"),
    [
        (True, (3, 5, 7), (35, 7, 1), ((1, 15, 7), (105, 7, 1))),
        (True, (5, 7), (9, 1), ((1, 5, 7), (45, 9, 1))),
        (False, (2, 3, 5, 7), row_major((2, 3, 5, 7)), ((6, 5, 7), (35, 7, 1))),
        (False, (3, 5, 7), (35, 1, 5), ((3, 5, 7), (35, 1, 5))),
        (False, (16, 1), (1, 1), ((1, 16, 1), (16, 1, 1))),
        (False, (1, 16), (1, 1), ((1, 1, 16), (16, 16, 1))),
    ],
)
def test_batch_axes_are_taken_as_one(rows, shape, strides, wanted) -> None:
    told = Matrix(rows).describe(shape, strides, shape)
    assert told is not None
    assert (told.dims, told.strides) == wanted


def test_rows_with_a_gap_between_batches_are_no_single_matrix() -> None:
    assert Matrix(rows=True).describe((3, 5, 7), (40, 7, 1), (3, 5, 7)) is None
    assert Matrix().describe((3, 5, 7), (40, 7, 1), (3, 5, 7)) is not None


def test_half_of_the_batch_axes_cannot_broadcast() -> None:
    assert Matrix().describe((3, 1, 5, 7), (35, 35, 7, 1), (3, 4, 5, 7)) is None
    assert Matrix().describe((1, 1, 5, 7), (35, 35, 7, 1), (3, 4, 5, 7)) is not None


@pytest.mark.parametrize(
    ("split", "shape", "full", "dims"),
    [
        (2, (3, 5, 7), (3, 5, 7), (15, 7, 1, 1)),
        (1, (3, 5, 7), (3, 5, 7), (3, 35, 1, 1)),
        (2, (1, 1, 7), (3, 5, 7), (1, 7, 1, 1)),
        (2, (3, 5, 1), (3, 5, 7), (15, 1, 1, 1)),
    ],
)
def test_norm_rows_become_batch_and_channels(split, shape, full, dims) -> None:
    told = Rows(split).describe(shape, row_major(shape), full)
    assert told is not None
    assert told.dims == dims
    assert told.strides == (dims[1], 1, dims[1], dims[1])


def test_an_operand_along_some_of_the_rows_cannot_be_told() -> None:
    assert Rows(2).describe((3, 1, 7), row_major((3, 1, 7)), (3, 5, 7)) is None


def test_one_channel_is_both_layouts() -> None:
    type = TensorType((4, 1, 6, 5), float16, row_major((4, 1, 6, 5)))
    assert is_channels_last(type.shape, type.layout)
    assert not is_channels_last((4, 2, 6, 5), row_major((4, 2, 6, 5)))
