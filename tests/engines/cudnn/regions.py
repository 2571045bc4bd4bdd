"""Regions of the families that cuDNN takes, small and of unequal extents."""

from collections.abc import Callable, Sequence

import graphdnn as gd
from graphdnn.ir.graph import Value
from graphdnn.ir.region import Region
from graphdnn.ir.types import DType, bool_, channels_last, row_major
from tests.engines.cudnn.layouts import Layout, spatial_last, whole

Ints = tuple[int, ...]
Finish = Callable[[gd.GraphBuilder, Value], Value | dict[str, Value]]


def closed(g: gd.GraphBuilder, y: Value | dict[str, Value], layout: Layout = spatial_last) -> Region:
    return whole(g.build(y if isinstance(y, dict) else {"y": y}), layout)


def convolution(
    shape: Ints = (3, 24, 9, 7),
    filters: int = 40,
    kernel: Ints = (3, 3),
    dtype: DType = gd.float16,
    layout: Layout = channels_last,
    finish: Finish = lambda g, y: y,
    **attributes: object,
) -> Region:
    """A convolution with what `finish` puts behind it."""
    g = gd.GraphBuilder("conv")
    groups = int(attributes.get("groups", 1))  # type: ignore[call-overload]
    weights = (filters, shape[1] // groups, *kernel)
    x = g.input("x", shape, dtype, strides=layout(shape))
    w = g.input("w", weights, dtype, strides=layout(weights))
    y = g.conv(x, w, padding=attributes.pop("padding", 1), **attributes)  # type: ignore[arg-type]
    return closed(g, finish(g, y), lambda s: layout(s) if len(s) > 3 else row_major(s))


def bias(g: gd.GraphBuilder, y: Value, name: str = "b", dtype: DType | None = None) -> Value:
    """One entry a channel added."""
    shape = (1, y.type.shape[1], *(1,) * (y.type.rank - 2))
    return g.bias(y, g.input(name, shape, dtype or y.type.dtype))


def residual(g: gd.GraphBuilder, y: Value, shape: Ints | None = None, name: str = "r") -> Value:
    """A tensor added, channels-last."""
    shape = shape or y.type.shape
    strides = channels_last(shape) if len(shape) > 3 else None
    return g.add(y, g.input(name, shape, y.type.dtype, strides=strides))


def product(
    a: Ints = (23, 40), b: Ints = (40, 33), dtype: DType = gd.float16, finish: Finish = lambda g, y: y
) -> Region:
    """A matrix product with what `finish` puts behind it."""
    g = gd.GraphBuilder("matmul")
    return closed(g, finish(g, g.matmul(g.input("a", a, dtype), g.input("b", b, dtype))), row_major)


def columns(g: gd.GraphBuilder, y: Value, name: str = "c") -> Value:
    """One entry a column added to a product."""
    return g.add(y, g.input(name, y.type.shape[-1:], y.type.dtype))


def norm(
    shape: Ints = (5, 7, 128),
    dtype: DType = gd.float16,
    parameters: DType | None = None,
    before: Finish = lambda g, x: x,
    finish: Finish = lambda g, y: y,
    rms: bool = False,
    axes: Ints = (-1,),
) -> Region:
    """A norm over the last axis, or over `axes`, between `before` and `finish`."""
    g = gd.GraphBuilder("norm")
    x = before(g, g.input("x", shape, dtype))
    assert isinstance(x, Value)
    row = tuple(shape[a] for a in axes)
    scale = g.input("scale", row, parameters or dtype)
    shift = () if rms else (g.input("shift", row, parameters or dtype),)
    y = g.rms_norm(x, scale, axes=axes) if rms else g.layer_norm(x, scale, *shift, axes=axes)
    return closed(g, finish(g, y), row_major)


def twice() -> dict[str, Region]:
    """One input in two places of a node: of a norm, a product, work behind one, and attention."""

    def region(result: Callable[..., Value], *shapes: Ints) -> Region:
        g = gd.GraphBuilder("twice")
        dtypes = (gd.int32 if shape == (2,) else gd.float16 for shape in shapes)
        inputs = [g.input(f"x{i}", *each) for i, each in enumerate(zip(shapes, dtypes, strict=True))]
        return closed(g, result(g, *inputs), row_major)

    heads, one = (2, 4, 128, 64), (2, 4, 1, 64)
    return {
        "layer norm, scale and bias alike": region(lambda g, x, row: g.layer_norm(x, row, row), (5, 7, 128), (128,)),
        "matmul of one matrix": region(lambda g, x: g.matmul(x, x), (3, 40, 40)),
        "matmul and a square": region(lambda g, a, b, c: g.add(g.matmul(a, b), g.mul(c, c)), *[(23, 23)] * 3),
        "attention, k and v alike": region(lambda g, q, k: g.attention(q, k, k), one, heads),
        "attention, all alike": region(lambda g, x: g.attention(x, x, x), heads),
        "attention, lengths alike": region(
            lambda g, q, k, v, n: g.attention(q, k, v, q_lengths=n, kv_lengths=n), heads, heads, heads, (2,)
        ),
    }


def reread() -> dict[str, Region]:
    """One input that a product reads and that work behind it reads too, at the place of each result."""

    def image(dtype: DType) -> Region:
        g = gd.GraphBuilder("reread")
        shape = (2, 8, 9, 7)
        x = g.input("x", shape, dtype, strides=channels_last(shape))
        w = g.input("w", (8, 8, 3, 3), dtype, strides=channels_last((8, 8, 3, 3)))
        return closed(g, g.mul(g.conv(x, w, padding=1), x))

    def matrix(before: Callable[[gd.GraphBuilder, Value], Value] = lambda g, x: x) -> Region:
        g = gd.GraphBuilder("reread")
        x, w = (g.input(name, (3, 40, 40), gd.float16) for name in "xw")
        return closed(g, g.add(g.matmul(before(g, x), w), x), row_major)

    return {
        "conv, its input behind it": image(gd.float16),
        "conv, its input behind it, float32": image(gd.float32),
        "matmul, its operand behind it": matrix(),
        "matmul of a sigmoid, the same input behind it": matrix(lambda g, x: g.sigmoid(x)),
    }


def attention(
    q: Ints = (2, 6, 33, 64),
    k: Ints = (2, 3, 65, 64),
    features: int = 40,
    dtype: DType = gd.float16,
    extras: Sequence[str] = (),
    bias_shape: Ints = (1, 6, 33, 65),
    **attributes: object,
) -> Region:
    """Attention of unequal extents; `extras` names bias, mask and lengths to hand in."""
    g = gd.GraphBuilder("attention")
    given: dict[str, Value] = {}
    for name in extras:
        if name.endswith("lengths"):
            given[name] = g.input(name, q[:1], gd.int32)
        else:
            given[name] = g.input(name, bias_shape, dtype if name == "bias" else bool_)
    made = g.attention(
        g.input("q", q, dtype), g.input("k", k, dtype), g.input("v", (*k[:3], features), dtype), **given, **attributes
    )
    return closed(g, dict(zip(("o", "lse"), made, strict=True)) if isinstance(made, tuple) else made, row_major)


def whole_input(g: gd.GraphBuilder, y: Value) -> Value:
    """An input like a product's result."""
    return g.input("z", y.type.shape, y.type.dtype, strides=spatial_last(y.type.shape))


def gradient(fn: str, dtype: DType = gd.float16, first: bool = False) -> Region:
    """A gradient of a convolution's result and another input, the result first or second."""

    def finish(g: gd.GraphBuilder, y: Value) -> Value:
        z = whole_input(g, y)
        gradient: Value = getattr(g, fn)(*((y, z) if first else (z, y)))
        return gradient

    return convolution(dtype=dtype, finish=finish)


def without_exact_plan() -> dict[str, Region]:
    """Float32 regions that only engines in TF32 compute rightly."""
    names = {
        "ReLU": "relu_backward",
        "leaky ReLU": "leaky_relu_backward",
        "SiLU": "silu_backward",
        "GELU": "gelu_backward",
    }
    return {f"conv, {name}'s gradient of another input": gradient(fn, gd.float32) for name, fn in names.items()}


def beside() -> dict[str, Region]:
    """What a product meets from its side, and casts of what is needed again."""

    def image(dtype: DType, side: Callable[[gd.GraphBuilder, Value], Value]) -> Region:
        return convolution(dtype=dtype, finish=lambda g, y: g.mul(y, side(g, whole_input(g, y))))

    def upsampled() -> Region:
        g = gd.GraphBuilder("upsampled")
        x = g.input("x", (2, 16, 6, 5), gd.float16, strides=channels_last((2, 16, 6, 5)))
        w = g.input("w", (16, 8, 3, 3), gd.float16, strides=channels_last((16, 8, 3, 3)))
        y = g.conv_transpose(x, w, stride=2, padding=1, output_padding=1)
        return closed(g, g.mul(y, g.mul(whole_input(g, y), 0.5)))

    def again(g: gd.GraphBuilder, y: Value) -> dict[str, Value]:
        return {"y": g.cast(y, gd.float32), "z": g.relu(y)}

    def twice_wide(g: gd.GraphBuilder, y: Value) -> dict[str, Value]:
        z = g.tanh(whole_input(g, y))
        return {"y": g.add(g.cast(z, gd.float32), g.cast(g.mul(z, y), gd.float32))}

    return {
        "conv, half of another input": image(gd.float16, lambda g, z: g.mul(z, 0.5)),
        "conv, square of another input": image(gd.bfloat16, lambda g, z: g.square(z)),
        "conv, sigmoid of another input, float32": image(gd.float32, lambda g, z: g.sigmoid(z)),
        "transposed conv, half of another input": upsampled(),
        "conv, gradient at another input": gradient("tanh_backward", first=True),
        "conv, gradient of another input": gradient("tanh_backward"),
        "conv, SiLU's gradient of another input": gradient("silu_backward"),
        "conv, GELU's gradient of another input": gradient("gelu_backward"),
        "conv, ReLU's gradient of another input": gradient("relu_backward"),
        "conv, leaky ReLU's gradient of another input": gradient("leaky_relu_backward"),
        "conv, GELU's gradient at another input, float32": gradient("gelu_backward", gd.float32, first=True),
        "conv, cast and relu": convolution(finish=again),
        "matmul, cast and relu": product(finish=again),
        "conv, casts of what is needed again": convolution(finish=twice_wide),
        "matmul, casts of what is needed again": product(finish=twice_wide),
    }
