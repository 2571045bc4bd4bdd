"""Laws that every op keeps, tested over all samples."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.ir.evaluate import apply, operand, widened
from graphdnn.ir.graph import Graph, Node, Value
from graphdnn.ir.op import OPS, Op
from graphdnn.ir.ops.pointwise import FUNCTIONS, Cast
from graphdnn.ir.types import DTYPES, Array, DType, TensorType
from tests.ir.expansion import expanded
from tests.ir.samples import SAMPLES, Sample

TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
BY_FAMILY = {"attention", "conv_transpose"}
"""Kinds whose expansions hold composite ops again, or depend on shapes: they are tested with their families."""
COMPOSITE = {kind for kind, op in OPS.items() if op.expand is not Op.expand} - BY_FAMILY
"""Kinds of one expansion into smaller ops."""

every_sample = pytest.mark.parametrize("sample", SAMPLES, ids=str)
every_composite = pytest.mark.parametrize(
    "sample", [s for s in SAMPLES if any(s.name.startswith(k) for k in COMPOSITE)], ids=str
)


def case(sample: Sample, rng: np.random.Generator) -> tuple[Graph, dict[str, Array]]:
    graph = sample.graph(rng)
    return graph, sample.inputs(graph, rng)


def error(found: Array, expected: Array) -> float:
    """Largest difference relative to the peak, 0 where both are equal (infinities and NaN included)."""
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    same = (found == expected) | (np.isnan(found) & np.isnan(expected))
    peak = np.max(np.abs(expected), initial=0, where=np.isfinite(expected))
    with np.errstate(invalid="ignore"):
        return float(np.max(np.where(same, 0, np.abs(found - expected)), initial=0) / (peak or 1))


def node_operands(graph: Graph, inputs: dict[str, Array], wide: bool) -> list[tuple[Node, list[Array]]]:
    """Each node with the arrays that reach it."""
    values: dict[Value, Array] = {v: inputs[n] for n, v in graph.inputs.items()}
    values.update({v: graph.payloads[n].array() for n, v in graph.constants.items()})
    values.update({v: np.zeros(v.type.shape, v.type.dtype.numpy) for v in graph.states.values()})
    if wide:
        values = {v: widened(a) for v, a in values.items()}
    reached = []
    for node in graph.nodes:
        operands = [operand(v, values, wide) for v in node.operands]
        reached.append((node, operands))
        results = apply(node.op, operands, None if wide else node.result_types)
        kept = map(widened, results) if wide else results  # casts narrow also where floats are widened
        values.update(zip(node.results, kept, strict=True))
    return reached


@every_sample
@pytest.mark.parametrize("wide", [False, True], ids=["own", "float64"])
def test_inferred_types_agree_with_the_reference(sample: Sample, wide: bool, rng: np.random.Generator) -> None:
    graph, inputs = case(sample, rng)
    for node, operands in node_operands(graph, inputs, wide):
        results = apply(node.op, operands, None)
        assert len(results) == len(node.results)
        for array, type in zip(results, node.result_types, strict=True):
            assert array.shape == type.shape, f"{node}: {array.shape} against {type}"
            assert kind(array) == ("float" if type.dtype.is_float else "bool" if type.dtype.kind == "bool" else "int")
            cast = isinstance(node.op, Cast)
            needed = gd.float64 if wide and type.dtype.is_float else type.dtype.compute
            assert cast or array.dtype.itemsize >= needed.itemsize, f"{node}: {array.dtype} is too narrow for {type}"


def kind(array: Array) -> str:
    name = "float" if array.dtype.name == "bfloat16" else array.dtype.kind
    return {"f": "float", "i": "int", "u": "int", "b": "bool"}.get(name, name)


@every_sample
def test_own_type_agrees_with_float64(sample: Sample, rng: np.random.Generator) -> None:
    graph, inputs = case(sample, rng)
    own, wide = gd.evaluate(graph, inputs), gd.evaluate(graph, inputs, dtype=gd.float64)
    for name, value in graph.outputs.items():
        dtype = value.type.dtype
        assert own[name].dtype == dtype.numpy
        if dtype.is_float:
            assert error(own[name], wide[name]) <= TOLERANCE[coarsest(graph).name], name
        else:
            np.testing.assert_array_equal(own[name], wide[name])


def coarsest(graph: Graph) -> DType:
    """The float type of fewest digits that any node rounds to."""
    found = {t.dtype.name for n in graph.nodes for t in n.result_types if t.dtype.is_float}
    return next(DTYPES[n] for n in ("bfloat16", "float16", "float32", "float64") if n in found)


@every_sample
def test_elements_differ_so_that_a_wrong_answer_shows(sample: Sample, rng: np.random.Generator) -> None:
    graph, inputs = case(sample, rng)
    for name, array in gd.evaluate(graph, inputs, dtype=gd.float64).items():
        assert not np.isnan(array.astype(np.float64)).any(), name
    for name, array in inputs.items():
        assert array.size < 8 or np.ptp(array.astype(np.float64)) > 0, name


@every_sample
def test_a_refusal_names_what_is_wrong_and_what_it_stands_beside(sample: Sample, rng: np.random.Generator) -> None:
    """Each operand in turn of another type, one longer, and of one axis more: one sentence, with that operand's type
    and what it does not go with, which is another type, a shape or an attribute, or with what is needed."""
    for node in sample.graph(rng).nodes:
        types = list(node.operand_types)
        tensors = [i for i, v in enumerate(node.operands) if v.literal is None]
        for i in tensors if len(tensors) > 1 else ():
            for other in other_types(types[i]):
                try:
                    node.op.infer(*types[:i], other, *types[i + 1 :])
                except gd.GraphError as error:
                    said = str(error)
                    assert "\n" not in said
                    assert str(other) in said, said
                    assert "is needed" in said or len(NAMED.findall(said)) > 1, said


NAMED = re.compile(r"[a-z]\w*\[[\dx]*\]|\([\d, ]+\)|\w+=")


def other_types(type: TensorType) -> Iterator[TensorType]:
    yield TensorType(type.shape, gd.int64 if type.dtype.is_float else gd.float32)
    yield TensorType((*type.shape, 7), type.dtype)
    if type.shape:
        yield TensorType((*type.shape[:-1], type.shape[-1] + 1), type.dtype)


@every_composite
def test_expansion_equals_definition(sample: Sample, rng: np.random.Generator) -> None:
    graph, inputs = case(sample, rng)
    smaller = expanded(graph)
    assert not {n.op.kind for n in smaller.nodes} & COMPOSITE
    found, expected = (gd.evaluate(g, inputs, dtype=gd.float64) for g in (smaller, graph))
    for name, value in graph.outputs.items():
        rounds = any(isinstance(n.op, Cast) and n.op.target == value.type.dtype for n in smaller.nodes)
        limit = ROUNDING[value.type.dtype.name] if rounds else 1e-12
        assert error(found[name], expected[name]) <= limit
    found, expected = (gd.evaluate(g, inputs) for g in (smaller, graph))
    for name, value in graph.outputs.items():
        assert found[name].dtype == expected[name].dtype
        assert error(found[name], expected[name]) <= 2 * ROUNDING[value.type.dtype.name] + 1e-5


ROUNDING = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Half of the distance from 1 to the next number: what the explicit cast at the end of an expansion adds."""


def test_every_op_has_samples(rng: np.random.Generator) -> None:
    shown = {n.op.kind for s in SAMPLES for n in s.graph(rng).nodes}
    declared = {kind for kind, op in OPS.items() if op.__module__.startswith("graphdnn.")}
    assert declared - shown == set()


@pytest.mark.parametrize("kind", sorted(OPS.keys() - {"pointwise", "reduce", "convert"}))
def test_every_op_is_compared_with_an_independent_library(kind: str) -> None:
    """In the tests of its family; the functions of pointwise ops and reductions have tables of what PyTorch calls them,
    and a conversion changes no number."""
    family = OPS[kind].__module__.rpartition(".")[2]
    text = (Path(__file__).parent / f"test_{family}.py").read_text()
    assert re.search(r"^import (torch|scipy)", text, re.MULTILINE)
    assert re.search(rf"\bg\.{kind}\(", text), f"test_{family}.py does not compare {kind} with PyTorch or scipy"


def test_every_pointwise_function_has_samples(rng: np.random.Generator) -> None:
    shown = {n.op.label for s in SAMPLES for n in s.graph(rng).nodes}
    assert set(FUNCTIONS) - shown == set()


def test_every_composite_op_has_an_expansion_sample(rng: np.random.Generator) -> None:
    for kind in COMPOSITE:
        assert any(s.name.startswith(kind) for s in SAMPLES), kind


def test_names_of_samples_are_unique() -> None:
    names = [s.name for s in SAMPLES]
    assert len(names) == len(set(names))


@every_sample
def test_ops_print_as_their_label(sample: Sample, rng: np.random.Generator) -> None:
    for node in sample.graph(rng).nodes:
        assert str(node.op) == node.op.label
        assert str(node.op)
        assert " " not in str(node.op)
        assert repr(node.op) == repr(type(node.op)(**node.op.attributes()))
        assert type(node.op)(**node.op.attributes()) == node.op
        assert hash(type(node.op)(**node.op.attributes())) == hash(node.op)


@every_sample
def test_flops_are_counted(sample: Sample, rng: np.random.Generator) -> None:
    for node in sample.graph(rng).nodes:
        assert isinstance(node.flops, int)
        assert node.flops >= 0


@pytest.mark.parametrize("kind", OPS)
def test_an_op_that_refuses_says_so(kind: str) -> None:
    if "raise GraphError" in inspect.getsource(OPS[kind].infer):
        assert re.search(r"Raises\s+GraphError", inspect.getdoc(OPS[kind]) or "")
