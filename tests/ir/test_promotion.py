"""Types of pointwise results, and their numbers, beside PyTorch's: every function on every pair of types and numbers.

Where this is not PyTorch, `KEPT` says so; docs/decisions/2-promotion.md says why.
"""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch

import graphdnn as gd
from graphdnn.ir.ops.pointwise import FUNCTIONS
from graphdnn.ir.types import DTYPES, Array
from tests.ir.single import array, evaluated, tensor, torch_type
from tests.ir.test_pointwise import EXPECTED, call

Operand = gd.DType | bool | int | float
Case = tuple[str, Operand, Operand]

NUMBERS = (True, 2, 2.5)
PAIRS: list[tuple[Operand, Operand]] = [
    *itertools.product(DTYPES.values(), repeat=2),
    *itertools.product(DTYPES.values(), NUMBERS),
    *itertools.product(NUMBERS, DTYPES.values()),
]
CONDITION = np.array([True, False, True, False, True])
BINARY: dict[str, Callable[..., torch.Tensor]] = {
    **{fn: EXPECTED[fn] for fn, row in FUNCTIONS.items() if row.arity == 2 and "backward" not in fn},
    "add_square": lambda a, b: torch.add(a, torch.as_tensor(b).to(torch.result_type(a, b)).square()),
    "select": lambda a, b: torch.where(tensor(CONDITION), a, b),
    "bias": torch.add,
}
OF_FLOATS = {"div", "atan2"}
ROUNDING = {gd.float64: 1e-12, gd.float32: 1e-6, gd.float16: 2e-3, gd.bfloat16: 1e-2}


def is_float(x: Operand) -> bool:
    return x.is_float if isinstance(x, gd.DType) else isinstance(x, float)


def is_integer(x: Operand) -> bool:
    return x.is_integer if isinstance(x, gd.DType) else not isinstance(x, bool | float)


def is_bool(x: Operand) -> bool:
    return x == gd.bool if isinstance(x, gd.DType) else isinstance(x, bool)


def integers_beside_floats(fn: str, a: Operand, b: Operand) -> bool:
    tensors = [x for x in (a, b) if isinstance(x, gd.DType)]
    if fn in OF_FLOATS and len(tensors) == 1:
        return False
    return FUNCTIONS.get(fn, FUNCTIONS["add"]).takes != "bool" and any(
        is_integer(x) and isinstance(x, gd.DType) and is_float(y) for x, y in ((a, b), (b, a))
    )


KEPT: dict[str, Callable[[str, Operand, Operand], bool]] = {
    "an integer tensor beside a float": integers_beside_floats,
    "powers that are no floats": lambda fn, a, b: fn == "pow" and not is_float(a) and not is_float(b),
    "a number that is no bool in logic": lambda fn, a, b: (
        fn.startswith("logical") and any(not isinstance(x, gd.DType | bool) for x in (a, b))
    ),
    "a function of our own on bools": lambda fn, a, b: fn in ("add_square", "bias") and is_bool(a) and is_bool(b),
}
"""What is refused here and not by PyTorch."""


def operand(x: Operand, fn: str, place: int) -> Array | bool | int | float:
    """Elements that every type holds; none where it would divide by zero, or give a power that is no number."""
    if not isinstance(x, gd.DType):
        return x
    if x.is_float:
        return np.array([0.5, 1.0, 2.5, 3.0, 6.0]).astype(x.numpy)
    if x.is_integer:
        return np.array([3, 1, 2, 100, 5], x.numpy)
    return np.ones(5, bool) if fn == "mod" and place == 1 else np.array([True, True, False, False, True])


def of_torch(fn: str, operands: list[Array | bool | int | float]) -> torch.Tensor | None:
    """What PyTorch gives; None where it refuses.  A number that it takes as a tensor only is one without axes."""
    given = [tensor(x) if isinstance(x, np.ndarray) else x for x in operands]
    try:
        return BINARY[fn](*given)
    except (TypeError, RuntimeError):
        pass
    try:
        return BINARY[fn](*(torch.tensor(x) if not isinstance(x, torch.Tensor) else x for x in given))
    except RuntimeError:
        return None


def of_ours(fn: str, operands: list[Array | bool | int | float]) -> Array | None:
    """What the builder makes of it, evaluated; None where it refuses."""
    arrays = [x for x in operands if isinstance(x, np.ndarray)]

    def made(g: gd.GraphBuilder, *values: gd.Value) -> gd.Value:
        left = iter(values)
        condition = [next(left)] if fn == "select" else []
        given = [next(left) if isinstance(x, np.ndarray) else x for x in operands]
        return getattr(g, fn)(*condition, *given, **({"axis": 0} if fn == "bias" else {}))

    try:
        return evaluated(made, *([CONDITION] if fn == "select" else []), *arrays)
    except gd.GraphError:
        return None


def difference(found: Array | None, expected: torch.Tensor | None) -> str | None:
    """What tells the two apart; None where nothing does."""
    if found is None or expected is None:
        return None if found is None and expected is None else f"{found} where PyTorch has {expected}"
    expected = expected.to(torch.int32) if expected.dtype == torch.int16 else expected  # which is no type here
    dtype = DTYPES[found.dtype.name]
    if torch_type(dtype) != expected.dtype:
        return f"{dtype} where PyTorch has {expected.dtype}"
    one, other = found.astype(np.float64), array(expected).astype(np.float64)
    fits = np.allclose(one, other, rtol=ROUNDING.get(dtype, 0), atol=0, equal_nan=True)
    return None if fits else f"{one} where PyTorch has {other}"


@pytest.mark.parametrize("fn", BINARY)
def test_two_operands(fn: str) -> None:
    wrong = []
    for a, b in PAIRS:
        if fn == "bias" and not (isinstance(a, gd.DType) and isinstance(b, gd.DType)):
            continue
        operands = [operand(x, fn, place) for place, x in enumerate((a, b))]
        found, expected = of_ours(fn, operands), of_torch(fn, operands)
        reasons = [reason for reason, holds in KEPT.items() if holds(fn, a, b)]
        kept = None if found is None else f"{found}, not refused"
        said = kept if reasons else difference(found, expected)
        if said is not None:
            wrong.append(f"{a} {fn} {b}: {said}")
    assert wrong == []


@pytest.mark.parametrize("reason", KEPT)
def test_what_is_kept_is_a_difference(reason: str) -> None:
    """Otherwise it would be no exception, and could hide one."""
    taken = [
        of_torch(fn, [operand(x, fn, place) for place, x in enumerate((a, b))]) is not None
        for fn, (a, b) in itertools.product(BINARY, PAIRS)
        if KEPT[reason](fn, a, b)
    ]
    assert any(taken)


SWISH = "swish"
"""PyTorch has no such function; silu, which is swish with beta of 1, refuses what is no float."""


@pytest.mark.parametrize("dtype", [t for t in DTYPES.values() if not t.is_float], ids=str)
@pytest.mark.parametrize("fn", [fn for fn, row in FUNCTIONS.items() if row.arity == 1 and fn != "clip"])
def test_one_operand_that_is_no_float(fn: str, dtype: gd.DType) -> None:
    x = np.array([0, 1, 1, 0], bool) if dtype == gd.bool else np.array([0, 1, 2, 100], dtype.numpy)
    try:
        expected = None if fn == SWISH else EXPECTED[fn](tensor(x))
    except RuntimeError:
        expected = None
    try:
        found = evaluated(call(fn), x)
    except gd.GraphError:
        found = None
    assert difference(found, expected) is None


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("bounds", [(0, 2), (0.5, 2.5), (1, None), (None, 1.5), (0, 1.5)], ids=str)
def test_bounds(dtype: gd.DType, bounds: tuple[float | None, float | None]) -> None:
    x = operand(dtype, "clip", 0)
    assert isinstance(x, np.ndarray)
    low, high = bounds

    def clipped(g: gd.GraphBuilder, v: gd.Value) -> gd.Value:
        return g.clip(v, min=low, max=high)

    if dtype.is_integer and any(isinstance(b, float) for b in bounds):
        with pytest.raises(gd.GraphError, match=rf"clip: \d\.5 is a float and the tensor is {dtype}; cast"):
            evaluated(clipped, x)
        return
    assert difference(evaluated(clipped, x), torch.clip(tensor(x), low, high)) is None


@pytest.mark.parametrize(("a", "b"), list(itertools.product((True, False, 3, -2.5), repeat=2)))
def test_select_of_two_numbers(a: float, b: float) -> None:
    expected = torch.where(tensor(CONDITION), a, b)  # type: ignore[arg-type]
    assert difference(evaluated(lambda g, c: g.select(c, a, b), CONDITION), expected) is None


@pytest.mark.parametrize("number", [np.float32(2.5), np.float64(2.5), np.float16(2.5), np.int8(2), np.bool_(True)])
@pytest.mark.parametrize("dtype", [gd.bool, gd.float16], ids=str)
def test_numbers_of_numpy_are_numbers(number: np.generic, dtype: gd.DType) -> None:
    x = operand(dtype, "add", 0)
    assert isinstance(x, np.ndarray)
    expected = torch.add(tensor(x), number.item())
    assert difference(evaluated(lambda g, v: g.add(v, number), x), expected) is None


def test_a_tensor_without_axes_has_the_weight_of_its_type() -> None:
    """In PyTorch it is as weak as a number; a shape that changes a type would be a surprise in a compiler."""
    x, scale = np.ones(3, np.float16), np.array(2.5, np.float32)
    assert evaluated(lambda g, *v: g.mul(*v), x, scale).dtype == np.float32
    assert torch.mul(tensor(x), torch.tensor(2.5)).dtype == torch.float16


@pytest.mark.parametrize("dtype", [t for t in DTYPES.values() if t.is_integer], ids=str)
def test_whole_division_is_asked_for(dtype: gd.DType) -> None:
    a, b = np.array([7, 100, 5], dtype.numpy), np.array([2, 3, 5], dtype.numpy)
    expected = torch.div(tensor(a), tensor(b), rounding_mode="trunc")
    assert difference(evaluated(lambda g, *v: g.div(*v, rounding_mode="trunc"), a, b), expected) is None
    assert difference(evaluated(lambda g, *v: v[0] / v[1], a, b), tensor(a) / tensor(b)) is None


def test_quotients_by_zero_are_those_of_floats() -> None:
    a = np.array([1, -1, 0], np.int32)
    np.testing.assert_array_equal(evaluated(lambda g, v: v / 0, a), np.array([np.inf, -np.inf, np.nan], np.float32))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g, i, b, f: i * 2.5, r"mul: 2\.5 is a float and the tensor is int32; cast the tensor to a float type;"),
        (lambda g, i, b, f: g.add(2.0, i, name="sum"), "sum: add: 2.0 is a float .* to a float type, or write 2; its"),
        (lambda g, i, b, f: i * float("inf"), "mul: inf is a float and the tensor is int32; cast the tensor to"),
        (lambda g, i, b, f: i / f, r"div: types do not go together \(float32 with int32\), cast one of them"),
        (lambda g, i, b, f: 1 - b, "sub: an operand is bool; cast it to a number type"),
        (lambda g, i, b, f: f - True, "sub: an operand is bool"),
        (lambda g, i, b, f: -b, "neg: an operand is bool"),
        (lambda g, i, b, f: g.gelu(i), "gelu: operand is int32; a float type is needed"),
        (lambda g, i, b, f: g.pow(i, 2), "pow: operand is int32; a float type is needed"),
        (lambda g, i, b, f: g.logical_or(b, 1), "logical_or: an operand is the number 1; a tensor, True or False is"),
        (lambda g, i, b, f: g.div(f, 2, rounding_mode="trunc"), 'div: rounding_mode="trunc" is for integers, and the'),
        (lambda g, i, b, f: g.div(b, 2.5, rounding_mode="trunc"), "is for integers, and the operands are float32"),
        (lambda g, i, b, f: g.div(i, 2, rounding_mode="floor"), "rounding_mode is 'floor'; None or \"trunc\" is"),
        (lambda g, i, b, f: g.add(b, g.input("w", (4,), gd.int32)), "add: operands do not broadcast at axis 0: 3 agai"),
    ],
)  # fmt: skip
def test_refusals_say_what_would_help(call: Callable[..., gd.Value], message: str) -> None:
    g = gd.GraphBuilder()
    values = [g.input(n, (3,), t) for n, t in (("i", gd.int32), ("b", gd.bool), ("f", gd.float32))]
    with pytest.raises(gd.GraphError, match=message):
        call(g, *values)


def test_the_casts_are_nodes_that_do_part_of_the_users_work() -> None:
    g = gd.GraphBuilder()
    mask, x = g.input("mask", (3,), gd.bool), g.input("x", (3,), gd.float16)
    graph = g.build({"y": g.mul(x, mask, name="masked")})
    assert [(n.name, n.op.label, n.origins) for n in graph.nodes] == [
        ("masked_0", "cast", ("masked",)),
        ("masked", "mul", ("masked",)),
    ]
    for again in (gd.Graph.from_json(graph.to_json()), gd.parse(str(graph))):
        assert str(again) == str(graph)


def test_a_refused_node_leaves_nothing_behind() -> None:
    g = gd.GraphBuilder()
    mask, x = g.input("mask", (3,), gd.bool), g.input("x", (4,), gd.float16)
    with pytest.raises(gd.GraphError, match="do not broadcast"):
        g.mul(x, mask, name="masked")
    assert [n.name for n in g.build({"y": g.mul(x, 2, name="masked")}).nodes] == ["masked"]


def test_a_document_from_before_keeps_its_whole_division() -> None:
    """The op is as it was; what `/` between values means is said by the builder."""
    text = "graph g(a: i32[3], b: i32[3]) {\n  %div = div(%a, %b) : i32[3]\n  return y = %div\n}\n"
    found = gd.evaluate(gd.parse(text), {"a": np.array([7, -7, 5], np.int32), "b": np.array([2, 2, 0], np.int32)})
    np.testing.assert_array_equal(found["y"], [3, -3, 0])
