"""The small inputs that went wrong elsewhere, as graphs with their right values: run on every target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import graphdnn as gd
from graphdnn.ir.graph import Value
from graphdnn.ir.types import DType, channels_last
from tests.ir.samples import draw
from tests.numbers import TOLERANCE, narrowest, relative_error

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class Case:
    """A graph, its inputs (drawn where not given), and the right values (those of `evaluate` where not given).

    `exact` are the outputs whose right values, rounded to float32, are wanted to the last bit.
    """

    name: str
    build: Callable[[], gd.Graph]
    given: Arrays | None = None
    right: Arrays | None = None
    exact: tuple[str, ...] = ()

    def inputs(self, graph: gd.Graph, rng: np.random.Generator) -> Arrays:
        if self.given is not None:
            return {n: a.astype(graph.inputs[n].type.dtype.numpy) for n, a in self.given.items()}
        return {n: draw(v.type, rng) for n, v in graph.inputs.items()}

    def check(self, graph: gd.Graph, inputs: Arrays, found: Arrays) -> None:
        """Outputs are exact, or within the tolerance of their types, and zero where the case says zero."""
        expected = gd.evaluate(graph, inputs, gd.float64)
        for name, value in expected.items():
            right = value if self.right is None else self.right[name]
            assert relative_error(value, right) <= 1e-6, f"the definition itself gives another {name}"
            assert relative_error(found[name], right) <= TOLERANCE[narrowest(graph)], name
            if name in self.exact:
                np.testing.assert_array_equal(found[name], np.asarray(right, np.float32), strict=True)
            if self.right is not None:
                assert not np.asarray(found[name], np.float64)[np.asarray(right) == 0].any(), name

    def __str__(self) -> str:
        return self.name


def uniform_attention(queries: int, values: list[float], dtype: DType, features: int, **attributes: Any) -> gd.Graph:
    """Attention of equal scores, so that each row is the mean of the values that it may see."""
    g = gd.GraphBuilder("uniform_attention")
    q, k = (g.constant(np.zeros((1, 1, n, features), dtype.numpy)) for n in (queries, len(values)))
    v = g.input("v", (1, 1, len(values), features), dtype)
    o, lse = g.attention(q, k, v, return_lse=True, name="attention", **attributes)
    return g.build({"o": o, "lse": lse})


def attention_case(
    name: str, values: list[float], right: list[float], seen: list[int], dtype: DType, features: int, **attributes: Any
) -> Case:
    """`right` and `seen` are, for each query, the result and how many keys it sees."""
    v = np.broadcast_to(np.reshape(values, (1, 1, -1, 1)), (1, 1, len(values), features))
    o = np.broadcast_to(np.reshape(right, (1, 1, -1, 1)), (1, 1, len(right), features))
    with np.errstate(divide="ignore"):
        lse = np.log(np.reshape(np.float64(seen), (1, 1, -1)))
    return Case(
        f"{name}_{dtype}_{features}",
        lambda: uniform_attention(len(right), values, dtype, features, **attributes),
        {"v": v},
        {"o": o, "lse": lse},
        ("o",) if dtype == gd.float32 else (),
    )


def attention_cases() -> list[Case]:
    cases = []
    for dtype, features in ((gd.float32, 1), (gd.float16, 8), (gd.bfloat16, 8)):
        four, two = [0.0, 1.0, 2.0, 3.0], [0.0, 1.0]
        kind = (dtype, features)
        cases += [
            attention_case("n1_top_left", four, [0, 0.5], [1, 2], *kind, causal="top_left"),
            attention_case("n1_bottom_right", four, [1, 1.5], [3, 4], *kind, causal="bottom_right"),
            attention_case("n2_top_left", two, [0, 0.5, 0.5, 0.5], [1, 2, 2, 2], *kind, causal="top_left"),
            attention_case("n2_bottom_right", two, [0, 0, 0, 0.5], [0, 0, 1, 2], *kind, causal="bottom_right"),
            attention_case(
                "n3_window", four, [0, 0.5, 1.5, 2.5], [1, 2, 2, 2], *kind, causal="top_left", window=(1, 0)
            ),
        ]
    return cases


def depthwise_plus_constant() -> gd.Graph:
    g = gd.GraphBuilder("depthwise_plus_constant")
    w = g.constant(np.float32([2, 3]).reshape(2, 1, 1, 1), name="w")
    c = g.constant(np.arange(8, dtype=np.float32).reshape(1, 2, 2, 2) / 10, name="c")
    y = g.conv(g.input("x", (1, 2, 2, 2), gd.float32), w, groups=2, name="conv")
    return g.build({"y": g.add(y, c, name="add")})


def broadcast_residual(shape: tuple[int, ...], last: bool) -> gd.Graph:
    """A residual that is smaller than what it is added to, in both layouts of the images."""
    g = gd.GraphBuilder("broadcast_residual")

    def image(name: str, extents: tuple[int, ...]) -> Value:
        return g.input(name, extents, gd.float16, strides=channels_last(extents) if last else None)

    y = g.conv(image("x", (2, 8, 16, 16)), image("w", (8, 8, 3, 3)), padding=1, name="conv")
    y = g.add(y, image("r", shape), name="add")
    return g.build({"y": y}, strides={"y": channels_last(y.type.shape)} if last else None)


def spelled_norm(g: gd.GraphBuilder, x: Value, axis: int, eps: float) -> Value:
    """(x - mean) / sqrt(variance + eps) over one axis, in single operations."""
    centred = g.sub(x, g.reduce_mean(x, axes=axis, keepdims=True))
    variance = g.reduce_mean(g.mul(centred, centred), axes=axis, keepdims=True)
    return g.div(centred, g.sqrt(g.add(variance, eps)))


def norm_with_wide_scale() -> gd.Graph:
    g = gd.GraphBuilder("norm_with_wide_scale")
    y = spelled_norm(g, g.input("x", (1, 1), gd.float32), -1, 1e-5)
    y = g.add(g.mul(y, g.input("scale", (2,), gd.float32)), g.input("shift", (2,), gd.float32))
    return g.build({"y": y})


def norm_over(shape: tuple[int, ...], axis: int, eps: float) -> gd.Graph:
    g = gd.GraphBuilder("norm_over")
    return g.build({"y": spelled_norm(g, g.input("x", shape, gd.float32), axis, eps)})


def float32_conv() -> gd.Graph:
    g = gd.GraphBuilder("float32_conv")
    x, w = g.input("x", (1, 64, 16, 16), gd.float32), g.input("w", (64, 64, 3, 3), gd.float32)
    return g.build({"y": g.conv(x, w, padding=1, name="conv")})


def two_exits(outputs: str, dtype: DType = gd.float32, last: bool = False) -> gd.Graph:
    """y = conv(x), a = relu(y), b = 2 y, of which `outputs` leave, all images channels-last or none."""
    g = gd.GraphBuilder("two_exits")
    shapes = {"x": (2, 8, 9, 7), "w": (16, 8, 3, 3)}
    x, w = (g.input(n, s, dtype, strides=channels_last(s) if last else None) for n, s in shapes.items())
    y = g.conv(x, w, padding=1, name="y")
    made = {"y": y, "a": g.relu(y, name="a"), "b": g.mul(y, 2.0, name="b")}
    strides = {name: channels_last(y.type.shape) for name in outputs} if last else None
    return g.build({name: made[name] for name in outputs}, strides=strides)


def conv_then_norm(mean_is_input: bool) -> gd.Graph:
    """A convolution and an inference batch norm, whose mean is an input or one of its constants."""
    rng = np.random.default_rng(3)
    g = gd.GraphBuilder("conv_then_norm")
    w = g.constant(rng.standard_normal((4, 3, 3, 3)).astype(np.float32), name="w")
    y = g.conv(g.input("x", (2, 3, 6, 5), gd.float32), w, name="conv")
    mean = g.input("mean", (4,), gd.float32) if mean_is_input else g.constant(np.float32([1, -1, 2, 0.5]))
    rest = [g.constant(rng.uniform(0.5, 2, 4).astype(np.float32), name=n) for n in ("var", "scale", "shift")]
    return g.build({"y": g.batch_norm(y, mean, *rest, name="norm")})


def conv_for_two_norms() -> gd.Graph:
    rng = np.random.default_rng(4)
    g = gd.GraphBuilder("conv_for_two_norms")
    w = g.constant(rng.standard_normal((4, 3, 3, 3)).astype(np.float32), name="w")
    y = g.conv(g.input("x", (2, 3, 6, 5), gd.float32), w, name="conv")
    parameters = [[g.constant(rng.uniform(0.5, 2, 4).astype(np.float32)) for _ in range(4)] for _ in range(2)]
    return g.build({n: g.batch_norm(y, *p, name=n) for n, p in zip(("first", "second"), parameters, strict=True)})


def odd_activations() -> gd.Graph:
    """Three input channels, five filters, and a chain of activations that few libraries fuse."""
    g = gd.GraphBuilder("odd_activations")
    x, w, b = (g.input(n, s, gd.float16) for n, s in (("x", (1, 3, 8, 8)), ("w", (5, 3, 3, 3)), ("b", (5,))))
    y = g.clip(g.bias(g.conv(x, w, name="conv"), b, axis=1, name="bias"), min=0, max=6, name="relu6")
    return g.build({"y": g.elu(g.leaky_relu(y, name="leaky"), name="elu")})


def strided_conv(x: tuple[int, ...], w: tuple[int, ...], strides: tuple[int, ...], groups: int = 1) -> gd.Graph:
    """A filter whose strides along axes of extent 1 say nothing."""
    g = gd.GraphBuilder("strided_conv")
    filters = g.input("w", w, gd.float16, strides=strides)
    return g.build({"y": g.conv(g.input("x", x, gd.float16), filters, groups=groups, name="conv")})


def outer_product() -> gd.Graph:
    g = gd.GraphBuilder("outer_product")
    a, b = g.input("a", (16, 1), gd.float16, strides=(1, 1)), g.input("b", (1, 16), gd.float16, strides=(1, 1))
    return g.build({"y": g.matmul(a, b, name="matmul")})


STRIDED = {
    "t5_depthwise": lambda: strided_conv((1, 63, 9, 9), (63, 1, 3, 3), (9, 1, 3, 1), groups=63),
    "t5_pointwise": lambda: strided_conv((1, 3, 8, 8), (4, 3, 1, 1), (3, 1, 1, 1)),
    "t5_pointwise_last": lambda: strided_conv((1, 3, 8, 8), (4, 3, 1, 1), (3, 1, 3, 3)),
    "t5_outer_product": outer_product,
}

EIGHT = np.arange(8, dtype=np.float32).reshape(1, 2, 2, 2)
NORM_ROW = np.float32([[0.4, 0.6]])
"""Mean 0.5, variance 0.01."""

CASES = [
    *attention_cases(),
    Case(
        "n4",
        depthwise_plus_constant,
        {"x": EIGHT},
        {"y": np.reshape([0, 2.1, 4.2, 6.3, 12.4, 15.5, 18.6, 21.7], (1, 2, 2, 2))},
        ("y",),
    ),
    *(
        Case(f"n5_{name}_{'last' if last else 'first'}", lambda shape=shape, last=last: broadcast_residual(shape, last))
        for name, shape in (("channels", (2, 8, 1, 1)), ("images", (1, 8, 16, 16)))
        for last in (False, True)
    ),
    Case(
        "n6",
        norm_with_wide_scale,
        {"x": np.ones((1, 1)), "scale": np.ones(2), "shift": np.float32([5, 7])},
        {"y": np.float64([[5, 7]])},
        ("y",),
    ),
    Case(
        "n7_eps", lambda: norm_over((1, 2), -1, 0.1), {"x": NORM_ROW}, {"y": np.float64([[-0.1, 0.1]]) / np.sqrt(0.11)}
    ),
    Case("n7_axis", lambda: norm_over((2, 3, 4), 1, 0.1)),
    Case("n9", float32_conv),
    *(Case(f"n10_{o}", lambda o=o: two_exits(o)) for o in ("ab", "ya", "yab")),
    *(Case(f"n10_{o}_half", lambda o=o: two_exits(o, gd.float16, last=True)) for o in ("ab", "ya", "yab")),
    Case("n11_input", lambda: conv_then_norm(True)),
    Case("n11_two", conv_for_two_norms),
    Case("a1", odd_activations),
    *(Case(name, build) for name, build in STRIDED.items()),
]
