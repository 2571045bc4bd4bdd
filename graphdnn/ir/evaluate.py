"""Running a graph in numpy by the ops' definitions: the CPU target, and the oracle for everything else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from graphdnn.errors import GraphError
from graphdnn.ir.arguments import check_arrays
from graphdnn.ir.graph import Graph, Value
from graphdnn.ir.op import Op
from graphdnn.ir.ops.pointwise import FUNCTIONS, Pointwise
from graphdnn.ir.types import Array, DType, TensorType, as_dtype, float64
from graphdnn.spelling import named


def evaluate(
    graph: Graph, inputs: Mapping[str, Array], dtype: DType | None = None, *, states: Mapping[str, Array] | None = None
) -> dict[str, Array]:
    """Outputs of `graph` by the numpy definition, rounded once per node to its type.

    With `dtype=float64` float arithmetic is done in, and rounded to, float64 throughout; explicit casts round to
    their type, and integer and bool types keep their meaning.  States not given are zero; next values of states are
    not returned (see `run`).  Raises GraphError for arrays of other names, shapes or types than the graph's.
    """
    outputs, _ = run(graph, inputs, dtype, states=states)
    return outputs


def run(
    graph: Graph, inputs: Mapping[str, Array], dtype: DType | None = None, *, states: Mapping[str, Array] | None = None
) -> tuple[dict[str, Array], dict[str, Array]]:
    """As `evaluate`, and the next values of the states that are updated."""
    if not isinstance(graph, Graph):
        raise GraphError(
            f"evaluate: graph is a {type(graph).__name__}; a Graph, as GraphBuilder.build gives, is needed"
        )
    if dtype not in (None, float64):
        raise GraphError(f"evaluate: dtype is {dtype}; None (the graph's own types) or float64 is needed")
    check_arrays("evaluate", "inputs", inputs)
    wide = dtype == float64
    check_inputs(graph, inputs)
    check_states(graph, {} if states is None else states, wide)
    values: dict[Value, Array] = {}

    def store(value: Value, array: Array) -> None:
        own = np.asarray(array)  # a subclass has operators of its own
        values[value] = widened(own) if wide else own.astype(value.type.dtype.numpy, copy=False)

    for name, value in graph.inputs.items():
        store(value, inputs[name])
    for name, value in graph.states.items():
        given = (states or {}).get(name)
        store(value, np.zeros(value.type.shape, value.type.dtype.numpy) if given is None else given)
    for name, value in graph.constants.items():
        store(value, graph.payloads[name].array())
    last_use = {v: n for n in graph.nodes for v in n.operands}
    for node in graph.nodes:
        operands = [operand(v, values, wide) for v in node.operands]
        results = apply(node.op, operands, None if wide else node.result_types)
        for value, array in zip(node.results, results, strict=True):
            # Integers wrap around in their own type also where floats are widened.
            store(value, array if value.type.dtype.is_float else array.astype(value.type.dtype.numpy, copy=False))
        for value in node.operands:
            if last_use[value] is node and value not in graph.escaping:
                values.pop(value, None)
    return (
        {name: values[v] for name, v in graph.outputs.items()},
        {name: values[v] for name, v in graph.updates.items()},
    )


def operand(value: Value, values: Mapping[Value, Array], wide: bool) -> Array:
    """A value's array; an immediate in the precision that is computed in, where one too large is infinite."""
    if value.literal is None:
        return values[value]
    dtype = value.type.dtype
    with np.errstate(all="ignore"):
        return np.asarray(value.literal, np.float64 if wide and dtype.is_float else dtype.compute.numpy)


def widened(array: Array) -> Array:
    """Floats as float64, everything else as it is."""
    return array.astype(np.float64) if is_float(array) else np.asarray(array)


def is_float(array: Array) -> bool:
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def apply(op: Op, operands: Sequence[Array], result_types: Sequence[TensorType] | None) -> tuple[Array, ...]:
    """One op by its definition: halves are computed in float32, and results rounded to `result_types` where given.

    Overflow to infinity and operations on NaN are results like others here, so numpy's warnings are off.
    """
    compute = [a.astype(np.float32) if is_float(a) and a.dtype.itemsize < 4 else a for a in operands]
    with np.errstate(all="ignore"):
        results = op.reference(*compute)
        if result_types is None:
            return tuple(np.asarray(r) for r in results)
        return tuple(
            np.asarray(r).astype(t.dtype.numpy, copy=False) for r, t in zip(results, result_types, strict=True)
        )


def apply_at_once(op: Op, operands: Sequence[Array], type: TensorType) -> Array | None:
    """As `apply`, the one result rounded to a half, by a single call of numpy that widens, computes and rounds piece by
    piece.  None where numpy has no such function.

    Weights are millions of elements, and three passes over all of them take twice the time of one in several threads.
    """
    function = FUNCTIONS[op.fn].numpy if isinstance(op, Pointwise) and not op.parameters else None
    if not isinstance(function, np.ufunc) or not type.dtype.is_half or not all(map(is_narrow, operands)):
        return None
    found = np.empty(type.shape, type.dtype.numpy)
    with np.errstate(all="ignore"):
        function(*operands, out=found, dtype=np.float32, casting="unsafe")
    return found


def is_narrow(array: Array) -> bool:
    """Whether an array is of floats that are computed in float32."""
    return is_float(array) and array.dtype.itemsize <= 4


def check_inputs(graph: Graph, inputs: Mapping[str, Array]) -> None:
    """Raises GraphError naming the first input that is missing, extra, or of the wrong type or shape."""
    for name in inputs:
        if name not in graph.inputs:
            known = ", ".join(map(named, graph.inputs)) or "none"
            raise GraphError(f"{named(name)} is not an input of graph {named(graph.name)}; its inputs are {known}")
    for name, value in graph.inputs.items():
        if name not in inputs:
            raise GraphError(f"input {named(name)} ({value.type}) of graph {named(graph.name)} is missing")
        check_array(f"input {named(name)}", inputs[name], value.type)


def check_states(graph: Graph, states: Mapping[str, Array], wide: bool) -> None:
    """Raises GraphError naming the first array that is no state's, or is of the wrong type or shape.

    Where floats are widened a state may be float64, as its next value comes.
    """
    check_arrays("evaluate", "states", states)
    for name, array in states.items():
        if name not in graph.states:
            known = ", ".join(map(named, graph.states)) or "none"
            raise GraphError(f"{named(name)} is not a state of graph {named(graph.name)}; its states are {known}")
        type = graph.states[name].type
        next_value = wide and type.dtype.is_float and getattr(array, "dtype", None) == np.float64
        check_array(f"state {named(name)}", array, replace(type, dtype=float64) if next_value else type)


def check_array(who: str, array: object, type: TensorType) -> None:
    """Raises GraphError unless this is a numpy array of that shape and data type."""
    if not isinstance(array, np.ndarray | np.generic):
        raise GraphError(f"{who} is a {array.__class__.__name__}; a numpy array is needed")
    if tuple(array.shape) != type.shape:
        raise GraphError(f"{who} has shape {tuple(array.shape)}; {type.shape} is needed")
    if as_dtype(array.dtype, who) != type.dtype:
        raise GraphError(f"{who} is {array.dtype}; {type.dtype} is needed")
