"""Every pointwise function of cuDNN's frontend is one of ours: a method of the builder gives the same function."""

import cudnn

import graphdnn as gd
from graphdnn.ir.ops.pointwise import FUNCTIONS

OURS = {
    "bias": "bias", "scale": "mul", "binary_select": "select", "gen_index": "iota", "min": "minimum", "max": "maximum",
    "cmp_eq": "equal", "cmp_neq": "not_equal", "cmp_gt": "greater", "cmp_ge": "greater_equal", "cmp_lt": "less",
    "cmp_le": "less_equal", "gelu_approx_tanh": "gelu", "gelu_approx_tanh_backward": "gelu_backward",
}  # fmt: skip
"""Functions of the frontend that we call by another name.  `gen_index`, a tensor whose elements are their own positions
along an axis, reads no element of the tensor that it is given: `iota` has the extent in that tensor's place."""

SAME = {
    "abs", "add", "add_square", "ceil", "cos", "div", "elu", "elu_backward", "erf", "exp", "floor", "gelu",
    "gelu_backward", "identity", "leaky_relu", "leaky_relu_backward", "log", "logical_and", "logical_not",
    "logical_or", "mod", "mul", "neg", "pow", "reciprocal", "relu", "relu_backward", "rsqrt", "sigmoid",
    "sigmoid_backward", "sin", "softplus", "softplus_backward", "sqrt", "sub", "swish", "swish_backward", "tan", "tanh",
    "tanh_backward",
}  # fmt: skip
"""Functions that have one name in both."""

OTHERS = {
    "adalayernorm_backward", "batchnorm", "batchnorm_backward", "batchnorm_inference", "block_scale_dequantize",
    "block_scale_quantize", "concatenate", "genstats", "instancenorm_backward", "layernorm_backward", "matmul",
    "moe_grouped_matmul", "moe_grouped_matmul_bwd", "query_tensor_attributes_of_uid", "reduction", "reshape",
    "rmsnorm_backward", "scaled_dot_product_flash_attention", "scaled_dot_product_flash_attention_backward", "sdpa",
    "sdpa_backward", "sdpa_fp8", "sdpa_fp8_backward", "sdpa_mxfp8", "sdpa_mxfp8_backward", "slice", "transpose",
}  # fmt: skip
"""Methods that also take a tensor first, and are not pointwise."""


def on_tensors() -> set[str]:
    """Methods of a frontend graph whose first argument is a tensor, as their signatures say."""
    methods = {n: getattr(cudnn.pygraph, n).__doc__ or "" for n in dir(cudnn.pygraph) if not n.startswith("_")}
    return {n for n, text in methods.items() if "_compiled_module.tensor" in text.partition(",")[2].partition(",")[0]}


def test_every_pointwise_function_of_the_frontend_is_a_method_of_the_builder() -> None:
    assert on_tensors() - OTHERS == SAME | OURS.keys()
    for name in (*SAME, *OURS.values()):
        assert callable(getattr(gd.GraphBuilder, name, None)), name


def test_what_has_one_name_in_both_is_a_row_of_the_table() -> None:
    assert FUNCTIONS.keys() >= SAME
