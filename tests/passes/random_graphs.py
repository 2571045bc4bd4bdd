"""Seeded random graphs: mixes of op families with shared values, several outputs, states, and spelled-out functions.

Values stay moderate and every function is continuous, so that two ways of computing a graph agree closely.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

import graphdnn as gd
from graphdnn.ir.evaluate import run
from graphdnn.ir.types import DType

EXTENTS = (1, 2, 3, 5, 7, 12)


@dataclass
class Draw:
    """A graph in the making: its builder, its random numbers, and the values that later nodes may read."""

    g: gd.GraphBuilder
    rng: np.random.Generator
    dtype: DType
    pool: list[gd.Value] = field(default_factory=list)

    def extent(self) -> int:
        return int(self.rng.choice(EXTENTS))

    def number(self, low: float = -2.0, high: float = 2.0) -> float:
        return float(np.float32(self.rng.uniform(low, high)))

    def pick(self, rank: int | None = None) -> gd.Value | None:
        """A value of the pool, late ones more often."""
        found = [v for v in self.pool if rank is None or v.type.rank == rank]
        if not found:
            return None
        weights = np.arange(1, len(found) + 1, dtype=float)
        return found[int(self.rng.choice(len(found), p=weights / weights.sum()))]

    def like(self, x: gd.Value) -> gd.Value:
        """Another value that broadcasts to x's shape: of the pool, or a new input or constant."""
        same = [v for v in self.pool if v.type.shape == x.type.shape and v is not x]
        if same and self.rng.random() < 0.6:
            return same[int(self.rng.integers(len(same)))]
        kept = [n if self.rng.random() < 0.6 else 1 for n in x.type.shape]
        return self.leaf(tuple(kept[int(self.rng.integers(len(kept))) if kept and self.rng.random() < 0.3 else 0 :]))

    def leaf(self, shape: Sequence[int]) -> gd.Value:
        if self.rng.random() < 0.5:
            return self.g.input(f"in{len(self.pool)}_{int(self.rng.integers(1 << 30))}", shape, self.dtype)
        return self.weight(shape)

    def weight(self, shape: Sequence[int], low: float = -1.0, high: float = 1.0) -> gd.Value:
        return self.g.constant(self.rng.uniform(low, high, tuple(shape)).astype(self.dtype.numpy))

    def one_of(self, choices: Sequence[str]) -> str:
        return str(choices[int(self.rng.integers(len(choices)))])


Action = Callable[[Draw], gd.Value | Sequence[gd.Value] | None]


def unary(draw: Draw) -> gd.Value | None:
    x = draw.pick()
    names = ("relu", "tanh", "sigmoid", "gelu", "silu", "abs", "neg", "hard_swish", "identity", "sin", "erf")
    return None if x is None else getattr(draw.g, draw.one_of(names))(x)


def binary(draw: Draw) -> gd.Value | None:
    x = draw.pick()
    if x is None:
        return None
    other = draw.number() if draw.rng.random() < 0.3 else draw.like(x)
    return getattr(draw.g, draw.one_of(("add", "sub", "mul", "maximum", "minimum")))(x, other)


def chosen(draw: Draw) -> gd.Value | None:
    """A select by position."""
    x = draw.pick()
    if x is None or x.type.rank == 0:
        return None
    last = x.type.shape[-1]
    return draw.g.select(draw.g.less(draw.g.iota(last), int(draw.rng.integers(last + 1))), x, draw.number())


def matmul(draw: Draw) -> gd.Value | None:
    x = draw.pick(draw.rng.choice([2, 3]))
    if x is None:
        return None
    n = draw.extent()
    y = draw.g.matmul(x, draw.weight((x.type.shape[-1], n)))
    return draw.g.bias(y, draw.weight((n,)), axis=-1) if draw.rng.random() < 0.5 else y


def conv(draw: Draw) -> gd.Value | None:
    x = draw.pick(4)
    if x is None:
        return None
    k = draw.extent()
    kernel = draw.one_of("13")
    y = draw.g.conv(x, draw.weight((k, x.type.shape[1], int(kernel), int(kernel))), padding=int(kernel) // 2)
    if draw.rng.random() < 0.4:
        y = draw.g.bias(y, draw.weight((k,)), axis=1)
    if draw.rng.random() < 0.5:
        parameters = [draw.weight((k,)), draw.weight((k,), 0.5, 2.0), draw.weight((k,), 0.5, 2.0), draw.weight((k,))]
        if draw.rng.random() < 0.3:
            parameters[0] = draw.g.input(f"mean{int(draw.rng.integers(1 << 30))}", (k,), draw.dtype)
        y = draw.g.batch_norm(y, *parameters)
    return y


def pool(draw: Draw) -> gd.Value | None:
    x = draw.pick(4)
    if x is None or min(x.type.shape[2:]) < 2:
        return None
    return getattr(draw.g, draw.one_of(("max_pool", "avg_pool")))(x, kernel=2, stride=1)


def norm(draw: Draw) -> gd.Value | None:
    x = draw.pick()
    if x is None or x.type.rank < 2:
        return None
    shape = x.type.shape[-1:]
    scale = draw.weight(shape, 0.5, 2.0) if draw.rng.random() < 0.7 else None
    if draw.rng.random() < 0.5:
        return draw.g.rms_norm(x, scale, eps=1e-2)
    return draw.g.layer_norm(x, scale, draw.weight(shape) if scale is not None else None, eps=1e-2)


def reduction(draw: Draw) -> gd.Value | None:
    x = draw.pick()
    if x is None or x.type.rank == 0:
        return None
    axis = int(draw.rng.integers(x.type.rank))
    if draw.rng.random() < 0.3:
        return draw.g.softmax(x, axis=axis)
    fn = draw.one_of(("reduce_mean", "reduce_sum", "reduce_max"))
    return getattr(draw.g, fn)(x, axes=axis, keepdims=bool(draw.rng.random() < 0.7))


def movement(draw: Draw) -> gd.Value | Sequence[gd.Value] | None:
    x = draw.pick()
    if x is None or x.type.rank == 0:
        return None
    shape, rank = x.type.shape, x.type.rank
    axis = int(draw.rng.integers(rank))
    match draw.one_of(("transpose", "reshape", "back", "unsqueeze", "concat", "slice", "split", "pad")):
        case "transpose":
            return draw.g.transpose(x, [int(a) for a in draw.rng.permutation(rank)])
        case "reshape":
            return draw.g.reshape(x, (*shape[:axis], math.prod(shape[axis:])))
        case "back":
            order = [int(a) for a in draw.rng.permutation(rank)]
            return draw.g.transpose(draw.g.transpose(x, order), [int(a) for a in np.argsort(order)])
        case "unsqueeze":
            return draw.g.unsqueeze(x, axis) if rank < 5 else draw.g.reshape(x, (-1,))
        case "concat":
            return draw.g.concat([x, draw.leaf(shape)], axis=axis)
        case "slice":
            return draw.g.slice(x, [0] * rank, [max(1, n - 1) for n in shape])
        case "split":
            return draw.g.split(x, (1, shape[axis] - 1), axis=axis) if shape[axis] > 1 else None
    return draw.g.pad(x, [(1, 0)] + [(0, 0)] * (rank - 1), value=draw.number())


def needless(draw: Draw) -> gd.Value | None:
    """Something that canonicalization simplifies."""
    x = draw.pick()
    if x is None:
        return None
    g = draw.g
    match draw.one_of(("relu", "one", "divide", "cast", "reshape", "twice", "constant")):
        case "relu":
            return g.relu(g.relu(x))
        case "one":
            return g.mul(x, 1.0)
        case "divide":
            return g.div(x, draw.rng.choice([0.5, 4.0, 3.0]).item())
        case "cast":
            return g.cast(x, draw.dtype)
        case "reshape":
            return g.reshape(g.reshape(x, (-1,)), x.type.shape)
        case "twice":
            return g.add(g.tanh(x), g.tanh(x))
    return g.mul(x, g.sigmoid(draw.weight(x.type.shape)))


def spelled(draw: Draw) -> gd.Value | None:
    """A function spelled out that raising recognises."""
    x = draw.pick()
    if x is None or x.type.rank == 0:
        return None
    return SPELLINGS[draw.one_of(tuple(SPELLINGS))](draw.g, x)


def spelled_softmax(g: gd.GraphBuilder, x: gd.Value) -> gd.Value:
    powers = g.exp(g.sub(x, g.reduce_max(x, axes=-1, keepdims=True)))
    return g.div(powers, g.reduce_sum(powers, axes=-1, keepdims=True))


def spelled_gelu(g: gd.GraphBuilder, x: gd.Value) -> gd.Value:
    return g.mul(g.mul(x, 0.5), g.add(g.erf(g.div(x, math.sqrt(2))), 1.0))


def spelled_gelu_tanh(g: gd.GraphBuilder, x: gd.Value) -> gd.Value:
    inner = g.mul(g.add(x, g.mul(g.mul(g.mul(x, x), x), 0.044715)), math.sqrt(2 / math.pi))
    return g.mul(g.mul(x, 0.5), g.add(1.0, g.tanh(inner)))


def spelled_silu(g: gd.GraphBuilder, x: gd.Value) -> gd.Value:
    return g.mul(x, g.sigmoid(x))


def spelled_layer_norm(g: gd.GraphBuilder, x: gd.Value) -> gd.Value:
    centred = g.sub(x, g.reduce_mean(x, axes=-1, keepdims=True))
    variance = g.reduce_mean(g.mul(centred, centred), axes=-1, keepdims=True)
    return g.div(centred, g.sqrt(g.add(variance, 0.01)))


def spelled_rms_norm(g: gd.GraphBuilder, x: gd.Value) -> gd.Value:
    return g.mul(x, g.rsqrt(g.add(g.reduce_mean(g.square(x), axes=-1, keepdims=True), 0.01)))


SPELLINGS = {
    "softmax": spelled_softmax,
    "gelu": spelled_gelu,
    "gelu_tanh": spelled_gelu_tanh,
    "silu": spelled_silu,
    "layer_norm": spelled_layer_norm,
    "rms_norm": spelled_rms_norm,
}

FAMILIES: dict[str, Action] = {
    "unary": unary,
    "binary": binary,
    "select": chosen,
    "matmul": matmul,
    "conv": conv,
    "pool": pool,
    "norm": norm,
    "reduction": reduction,
    "movement": movement,
    "needless": needless,
    "spelled": spelled,
}


def random_graph(
    rng: np.random.Generator, *, steps: int = 14, dtype: DType = gd.float64, families: Sequence[str] = tuple(FAMILIES)
) -> gd.Graph:
    """A graph of about `steps` steps with several outputs, one of them in the middle, and now and then a state."""
    draw = Draw(gd.GraphBuilder("random"), rng, dtype)
    n, c = draw.extent(), draw.extent()
    draw.pool.append(draw.g.input("image", (n, c, int(rng.integers(2, 8)), int(rng.integers(2, 8))), dtype))
    draw.pool.append(draw.g.input("rows", (draw.extent(), draw.extent(), draw.extent()), dtype))
    draw.pool.append(draw.g.input("matrix", (draw.extent(), draw.extent()), dtype))
    sources = len(draw.pool)
    state = None
    if rng.random() < 0.3:
        state = draw.g.state("memory", draw.pool[2].type.shape, dtype)
        draw.pool.append(draw.g.add(state, draw.pool[2]))
    while len(draw.pool) < sources + steps:
        made = FAMILIES[draw.one_of(families)](draw)
        for value in [] if made is None else [made] if isinstance(made, gd.Value) else made:
            if value.type.size <= 20_000:
                draw.pool.append(value)
    return finished(draw, state, sources)


def finished(draw: Draw, state: gd.Value | None, sources: int) -> gd.Graph:
    """The built graph: values that nothing reads are outputs, but for some that stay dead, and one that is read."""
    made = draw.pool[sources:]
    read = draw.g.build({f"y{i}": v for i, v in enumerate(dict.fromkeys(made))}).users
    leaves = [v for v in made if v not in read and draw.rng.random() < 0.8]
    inner = made[int(draw.rng.integers(len(made)))]
    outputs = {f"y{i}": v for i, v in enumerate(dict.fromkeys([*leaves, inner]))}
    updates = {}
    if state is not None:
        fitting = [v for v in made if v.type.shape == state.type.shape and v.type.dtype == state.type.dtype]
        updates["memory"] = fitting[-1]
    return draw.g.build(outputs, updates)


def random_arrays(graph: gd.Graph, rng: np.random.Generator) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Arrays for a random graph's inputs and states, between -1 and 1."""

    def arrays(values):
        return {name: rng.uniform(-1, 1, v.type.shape).astype(v.type.dtype.numpy) for name, v in values.items()}

    return arrays(graph.inputs), arrays(graph.states)


Results = tuple[dict[str, np.ndarray], dict[str, np.ndarray]]
"""Outputs and next states by name."""


def results(graph: gd.Graph, arrays: tuple[dict[str, np.ndarray], dict[str, np.ndarray]]) -> Results:
    """What a graph gives in float64 for these inputs and states."""
    return run(graph, arrays[0], gd.float64, states=arrays[1])


def assert_close(wanted: Results, found: Results, tolerance: float = 1e-12) -> None:
    """The same outputs and next states, to `tolerance` of the peak.

    Where that is below 1 it counts as 1: norms cancel to zero, and all inputs are of that size.
    """
    for expected, got in zip(wanted, found, strict=True):
        assert expected.keys() == got.keys()
        for name, array in expected.items():
            assert array.shape == got[name].shape
            assert np.isfinite(array).all()
            peak = float(np.abs(array).max())
            assert float(np.abs(array - got[name]).max()) <= tolerance * max(peak, 1.0), name


def assert_same_meaning(before: gd.Graph, after: gd.Graph, rng: np.random.Generator, tolerance: float = 1e-12) -> None:
    """Both graphs give the same results for random arrays."""
    arrays = random_arrays(before, rng)
    assert_close(results(before, arrays), results(after, arrays), tolerance)
