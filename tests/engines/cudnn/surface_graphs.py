"""The patterns of tests/data/h200_surface.json as graphs, spelled as each `what` says, channels-last."""

from collections.abc import Callable

import graphdnn as gd
from graphdnn.ir.graph import Value
from graphdnn.ir.types import DType, channels_last, row_major

NOT_BUILT = ("conv_genstats", "dgrad", "wgrad", "layernorm_train", "layernorm_backward", "batchnorm_train_relu")
"""Patterns that are training's or need ops that are not built yet."""

ACTIVATION = (32, 256, 14, 14)
CHANNELS = (1, 256, 1, 1)


class Maker:
    """A builder with inputs named in order and laid out as cuDNN likes them."""

    def __init__(self, name: str, dtype: DType = gd.float16) -> None:
        self.g = gd.GraphBuilder(name)
        self.dtype = dtype
        self.count = 0

    def image(self, *shape: int, dtype: DType | None = None) -> Value:
        """An input in channels-last layout."""
        return self._input(shape, dtype, channels_last(shape))

    def matrix(self, *shape: int, dtype: DType | None = None) -> Value:
        """An input in row-major layout."""
        return self._input(shape, dtype, row_major(shape))

    def transposed(self, *shape: int) -> Value:
        """An input whose last two axes are changed over in memory."""
        stored = (*shape[:-2], shape[-1], shape[-2])
        strides = row_major(stored)
        return self._input(shape, None, (*strides[:-2], strides[-1], strides[-2]))

    def _input(self, shape: tuple[int, ...], dtype: DType | None, strides: tuple[int, ...]) -> Value:
        self.count += 1
        return self.g.input(f"x{self.count}", shape, dtype or self.dtype, strides=strides)

    def conv(self, channels: int = 256, filters: int = 256, x: Value | None = None) -> Value:
        """The 3x3 convolution of the surface."""
        x = self.image(32, channels, 14, 14) if x is None else x
        return self.g.conv(x, self.image(filters, channels, 3, 3), padding=1)

    def channel(self, channels: int = 256, dtype: DType | None = None) -> Value:
        """One entry a channel."""
        return self.image(1, channels, 1, 1, dtype=dtype)

    def done(self, **outputs: Value) -> gd.Graph:
        strides = {n: channels_last(v.type.shape) for n, v in outputs.items() if v.type.rank == 4}
        return self.g.build(outputs, strides=strides)

    def rows_done(self, **outputs: Value) -> gd.Graph:
        return self.g.build(outputs)


def conv_plain() -> gd.Graph:
    m = Maker("conv_plain")
    return m.done(y=m.conv())


def conv_bias() -> gd.Graph:
    m = Maker("conv_bias")
    return m.done(y=m.g.bias(m.conv(), m.channel()))


def conv_bias_relu() -> gd.Graph:
    m = Maker("conv_bias_relu")
    return m.done(y=m.g.relu(m.g.bias(m.conv(), m.channel())))


def conv_bias_add_relu() -> gd.Graph:
    m = Maker("conv_bias_add_relu")
    return m.done(y=m.g.relu(m.g.add(m.g.bias(m.conv(), m.channel()), m.image(*ACTIVATION))))


def conv_scale_bias_silu() -> gd.Graph:
    m = Maker("conv_scale_bias_silu")
    return m.done(y=m.g.silu(m.g.bias(m.g.mul(m.conv(), m.channel()), m.channel())))


def relu_conv_prologue() -> gd.Graph:
    m = Maker("relu_conv_prologue")
    x = m.g.relu(m.g.add(m.g.mul(m.image(*ACTIVATION), m.channel()), m.channel()))
    return m.done(y=m.conv(x=x))


def conv_odd_channels_bias_relu() -> gd.Graph:
    m = Maker("conv_odd_channels_bias_relu")
    return m.done(y=m.g.relu(m.g.bias(m.conv(3, 17), m.channel(17))))


def conv_reduction_avgpool() -> gd.Graph:
    m = Maker("conv_reduction_avgpool")
    y = m.g.cast(m.g.relu(m.g.bias(m.conv(), m.channel())), gd.float32)
    return m.done(y=m.g.reduce_mean(y, axes=(2, 3), keepdims=True))


def conv_f32_bias_relu() -> gd.Graph:
    m = Maker("conv_f32_bias_relu", gd.float32)
    return m.done(y=m.g.relu(m.g.bias(m.conv(), m.channel())))


def matmul_plain() -> gd.Graph:
    m = Maker("matmul_plain")
    return m.rows_done(y=m.g.matmul(m.matrix(1, 2048, 1024), m.matrix(1, 1024, 4096)))


def matmul_bias_gelu() -> gd.Graph:
    m = Maker("matmul_bias_gelu")
    y = m.g.matmul(m.matrix(1, 2048, 1024), m.matrix(1, 1024, 4096))
    return m.rows_done(y=m.g.gelu(m.g.bias(y, m.matrix(1, 1, 4096))))


def matmul_wt_bias_gelu() -> gd.Graph:
    m = Maker("matmul_wt_bias_gelu")
    y = m.g.matmul(m.matrix(1, 2048, 1024), m.transposed(1, 1024, 4096))
    return m.rows_done(y=m.g.gelu(m.g.bias(y, m.matrix(1, 1, 4096))))


def matmul_swiglu_two() -> gd.Graph:
    m = Maker("matmul_swiglu_two")
    a = m.matrix(1, 2048, 1024)
    gate = m.g.silu(m.g.matmul(a, m.matrix(1, 1024, 4096)))
    return m.rows_done(y=m.g.mul(gate, m.g.matmul(a, m.matrix(1, 1024, 4096))))


def matmul_softmax_matmul_manual() -> gd.Graph:
    m = Maker("matmul_softmax_matmul_manual")
    scores = m.g.matmul(m.matrix(8, 512, 64), m.matrix(8, 64, 512))
    weights = m.g.exp(m.g.sub(scores, m.g.reduce_max(scores, axes=-1, keepdims=True)))
    weights = m.g.div(weights, m.g.reduce_sum(weights, axes=-1, keepdims=True))
    return m.rows_done(y=m.g.matmul(weights, m.matrix(8, 512, 64)))


def layernorm() -> gd.Graph:
    m = Maker("layernorm")
    parameters = [m.matrix(4096, 1, 1), m.matrix(4096, 1, 1)]
    return m.done(y=m.g.layer_norm(m.image(8192, 4096, 1, 1), *parameters, axes=(1, 2, 3)))


def rmsnorm() -> gd.Graph:
    m = Maker("rmsnorm")
    return m.done(y=m.g.rms_norm(m.image(8192, 4096, 1, 1), m.matrix(4096, 1, 1), axes=(1, 2, 3)))


def residual_add_rmsnorm_two_outputs() -> gd.Graph:
    m = Maker("residual_add_rmsnorm_two_outputs")
    total = m.g.add(m.image(8192, 4096, 1, 1), m.image(8192, 4096, 1, 1))
    return m.done(total=total, y=m.g.rms_norm(total, m.matrix(4096, 1, 1), axes=(1, 2, 3)))


def batchnorm_inference_relu() -> gd.Graph:
    m = Maker("batchnorm_inference_relu")
    vectors = [m.matrix(256, dtype=gd.float32) for _ in range(4)]
    return m.done(y=m.g.relu(m.g.batch_norm(m.image(*ACTIVATION), *vectors)))


def pointwise_bcast_chain4() -> gd.Graph:
    m = Maker("pointwise_bcast_chain4")
    y = m.g.sigmoid(m.g.add(m.image(*ACTIVATION), m.image(32, 256, 1, 1)))
    return m.done(y=m.g.mul(y, m.image(*ACTIVATION)))


def _heads(m: Maker, sq: int = 1024, d: int = 128) -> tuple[Value, Value, Value]:
    return m.matrix(2, 16, sq, d), m.matrix(2, 16, 1024, d), m.matrix(2, 16, 1024, d)


def sdpa_causal() -> gd.Graph:
    m = Maker("sdpa_causal")
    return m.rows_done(y=m.g.attention(*_heads(m), causal="top_left"))


def sdpa_bias() -> gd.Graph:
    m = Maker("sdpa_bias")
    return m.rows_done(y=m.g.attention(*_heads(m), bias=m.matrix(1, 16, 1024, 1024)))


def sdpa_padding() -> gd.Graph:
    m = Maker("sdpa_padding")
    q, k, v = _heads(m)
    lengths = [m.matrix(2, dtype=gd.int32) for _ in range(2)]
    return m.rows_done(y=m.g.attention(q, k, v, q_lengths=lengths[0], kv_lengths=lengths[1]))


def sdpa_d256() -> gd.Graph:
    m = Maker("sdpa_d256")
    return m.rows_done(y=m.g.attention(*_heads(m, d=256)))


def sdpa_decode_sq1() -> gd.Graph:
    m = Maker("sdpa_decode_sq1")
    return m.rows_done(y=m.g.attention(*_heads(m, sq=1)))


GRAPHS: dict[str, Callable[[], gd.Graph]] = {
    "conv_plain": conv_plain,
    "conv_bias": conv_bias,
    "conv_bias_relu": conv_bias_relu,
    "conv_bias_add_relu": conv_bias_add_relu,
    "conv_scale_bias_silu": conv_scale_bias_silu,
    "relu_conv_prologue": relu_conv_prologue,
    "conv_odd_channels_bias_relu": conv_odd_channels_bias_relu,
    "conv_reduction_avgpool": conv_reduction_avgpool,
    "conv_f32_bias_relu": conv_f32_bias_relu,
    "matmul_plain": matmul_plain,
    "matmul_bias_gelu": matmul_bias_gelu,
    "matmul_wT_bias_gelu": matmul_wt_bias_gelu,
    "matmul_swiglu_two": matmul_swiglu_two,
    "matmul_softmax_matmul_manual": matmul_softmax_matmul_manual,
    "layernorm": layernorm,
    "rmsnorm": rmsnorm,
    "residual_add_rmsnorm_two_outputs": residual_add_rmsnorm_two_outputs,
    "batchnorm_inference_relu": batchnorm_inference_relu,
    "pointwise_bcast_chain4": pointwise_bcast_chain4,
    "sdpa_causal": sdpa_causal,
    "sdpa_bias": sdpa_bias,
    "sdpa_padding": sdpa_padding,
    "sdpa_d256": sdpa_d256,
    "sdpa_decode_sq1": sdpa_decode_sq1,
}
"""The graph of each pattern, in the order of the data."""

ROW_MAJOR = frozenset(n for n in GRAPHS if n.startswith(("matmul", "sdpa")))
"""Patterns whose tensors are row-major: batch, rows, columns, or batch, heads, positions, features."""
