"""The text form: what it looks like, that it is read back, and that mistakes are named with line and token."""

import contextlib
import math

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.ir.graph import Graph
from graphdnn.ir.op import OPS
from graphdnn.ir.text import LABELS
from graphdnn.ir.types import TensorType
from graphdnn.ir.writer import GraphWriter
from tests.ir.samples import SAMPLES, Sample
from tests.ir.structure import outline

Rng = np.random.Generator


def block() -> Graph:
    g = gd.GraphBuilder("block")
    x = g.input("x", (2, 3, 5, 4), gd.float16, strides=(60, 1, 12, 3))
    w = g.constant(np.arange(8 * 3 * 3 * 3, dtype=np.float16).reshape(8, 3, 3, 3) / 8, name="w")
    y = g.relu(g.conv(x, w, padding=1, name="first"), name="top")
    low, high = g.split(g.clip(y, min=None, max=6.0, name="held"), (3, 5), axis=1, name="parts")
    k = g.state("k", (4, 8), gd.float32)
    new = g.write_slice(k, g.constant(np.ones((1, 8), np.float32), name="one"), 2, axis=0, name="new")
    total = g.reduce_sum(high * 0.5, axes=(2, 3), name="total")
    return g.build({"y": low, "total": total}, {"k": new}, strides={"y": (60, 1, 12, 3)})


EXPECTED = """\
graph block(x: f16[2x3x5x4:60,1,12,3]) {
  state %k: f32[4x8]
  constant %w: f16[8x3x3x3] sha256:{w}
  constant %one: f32[1x8] sha256:{one}
  %first = conv(%x, %w) {{stride=(1, 1), padding=((1, 1), (1, 1)), dilation=(1, 1)}} : f16[2x8x5x4]
  %top = relu(%first) : f16[2x8x5x4]
  %held = clip(%top) {{parameters=(None, 6.0)}} : f16[2x8x5x4]
  %parts.0, %parts.1 = split@parts(%held) {{sizes=(3, 5), axis=1}} : f16[2x3x5x4], f16[2x5x5x4]
  %new = write_slice(%k, %one) {{axis=0, start=2}} : f32[4x8]
  %mul = mul(%parts.1, 0.5:f16) : f16[2x5x5x4]
  %total = reduce_sum(%mul) {{axes=(2, 3)}} : f16[2x5]
  return y = %parts.0 : f16[2x3x5x4:60,1,12,3]
  return total = %total
  update k = %new
}}
"""


def test_what_it_looks_like() -> None:
    graph = block()
    hashes = {n: p.digest for n, p in graph.payloads.items()}
    head, _, rest = EXPECTED.partition("\n")
    assert str(graph) == head + "\n" + rest.format(**hashes)


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_every_sample_is_read_back(sample: Sample, rng: Rng) -> None:
    graph = sample.graph(rng)
    again = gd.parse(str(graph))
    assert outline(again) == outline(graph)
    assert str(again) == str(graph)


def test_with_constants_it_runs(rng: Rng) -> None:
    graph = block()
    again = gd.parse(str(graph), {n: p.array() for n, p in graph.payloads.items()})
    x = {"x": rng.standard_normal((2, 3, 5, 4)).astype(np.float16)}
    for name, expected in gd.evaluate(graph, x).items():
        np.testing.assert_array_equal(gd.evaluate(again, x)[name], expected)


def test_without_constants_it_says_so_when_run(rng: Rng) -> None:
    again = gd.parse(str(block()))
    with pytest.raises(gd.GraphError, match=r"^constant w of type f16\[8x3x3x3\] has no data"):
        gd.evaluate(again, {"x": rng.standard_normal((2, 3, 5, 4)).astype(np.float16)})


def test_names_that_are_no_words() -> None:
    g = gd.GraphBuilder("layer 1: “attention”")
    x = g.input('he said "x"\n', (2,), gd.float32)
    y = g.relu(g.add(x, x, name="%odd (name)"), name="enc/layer.0/out-proj")
    graph = g.build({"the output, y": y, "": x})
    assert outline(gd.parse(str(graph))) == outline(graph)
    assert "%enc/layer.0/out-proj = relu" in str(graph)


def test_numbers_keep_every_digit() -> None:
    g = gd.GraphBuilder()
    x, i = g.input("x", (2,), gd.float16), g.input("i", (2,), gd.int64)
    numbers = (0.1, 1e-45, math.inf, -math.inf, 1 / 3, 2.0**70)
    outputs = {f"y{n}": g.mul(x, number) for n, number in enumerate(numbers)}
    outputs["i"] = g.add(i, -(2**63))
    outputs["nan"] = g.add(x, math.nan)
    outputs["same"] = g.equal(g.greater(x, 0), True)
    outputs["padded"] = g.pad(x, ((0, 1),), value=-math.inf)
    graph = g.build(outputs)
    assert outline(gd.parse(str(graph))) == outline(graph)
    assert "-inf:f16" in str(graph)


def test_origins_and_decided_strides_are_kept() -> None:
    writer = GraphWriter("laid_out")
    x = writer.input("x", TensorType((2, 3), gd.float32))
    op = OPS["transpose"](axes=(1, 0))
    (y,) = writer.emit(op, (x,), origins=("a", "b c"), types=[TensorType((3, 2), gd.float32, (1, 3))])
    (z,) = writer.emit(op, (y,), origins=(), types=[TensorType((2, 3), gd.float32, (3, 1))])
    graph = writer.finish({"z": z})
    text = str(graph)
    assert '%transpose = transpose(%x) {axes=(1, 0)} : f32[3x2:1,3] from a, "b c"' in text
    assert "f32[2x3:3,1] from ()" in text
    assert outline(gd.parse(text)) == outline(graph)


def test_scalars_comments_and_free_layout() -> None:
    graph = gd.parse(
        """
        # a comment
        graph g(x: f32[], y: bf16[4x1:1,1],) { %z = add(%x, 1.0:f32,) : f32[]  # another
        return z
            = %z }"""
    )
    assert graph.inputs["x"].type == TensorType((), gd.float32)
    assert graph.inputs["y"].type.dtype == gd.bfloat16
    assert graph.nodes[0].op == OPS["pointwise"](fn="add")


def test_what_is_no_default_is_written() -> None:
    g = gd.GraphBuilder()
    padded = g.pad(g.input("x", (2,), gd.float32), ((0, 1),), value=-0.0)
    graph = g.build({"y": padded})
    assert "{padding=((0, 1),), value=-0.0}" in str(graph)
    assert outline(gd.parse(str(graph))) == outline(graph)


def test_a_result_may_have_another_name_than_its_node() -> None:
    text = GOOD.replace("%y = relu(", "%r = relu@y(").replace("y = %y", "y = %r")
    graph = gd.parse(text)
    assert (graph.nodes[0].name, graph.nodes[0].result.name) == ("y", "r")
    assert str(graph) == text
    assert str(gd.Graph.from_json(graph.to_json())) == text


def test_spellings_hide_no_kind() -> None:
    assert not set(LABELS) & set(OPS)
    assert all(label == (fn if kind == "pointwise" else f"{kind}_{fn}") for label, (kind, fn) in LABELS.items())


GOOD = """graph g(x: f32[2x3], i: i32[1]) {
  %y = relu(%x) : f32[2x3]
  return y = %y
}
"""

WRONG = {
    "line 1: found 'graf' where graph is needed": ("graph g", "graf g"),
    "line 1: type: data type 'f33' is not one of": ("f32[2x3],", "f33[2x3],"),
    "line 1: '-2' is no extent": ("f32[2x3],", "f32[-2x3],"),
    "line 1: type: shape is (2, 0)": ("f32[2x3],", "f32[2x0],"),
    "line 1: type: shape is (2, 999999999999999999)": ("f32[2x3],", "f32[2x999999999999999999],"),
    "line 1: '9999999999999999999999' is no extent": ("f32[2x3],", "f32[9999999999999999999999],"),
    "line 1: type: strides are (1,)": ("f32[2x3],", "f32[2x3:1],"),
    "line 1: input x: two values are named x": ("i: i32", "x: i32"),
    "line 2: node y: %z is not made before it": ("relu(%x)", "relu(%z)"),
    "line 2: found 'x' where a number": ("relu(%x)", "relu(x)"),
    "line 2: node y: there is no op 'relo'": ("relu(", "relo("),
    "line 2: node y: pointwise has no attribute 'slope'": (") : f32", ") {slope=1} : f32"),
    "line 2: node y: attribute parameters of pointwise is (True,)": (") : f32", ") {parameters=(True,)} : f32"),
    "line 2: node y: attribute shape of reshape is 6": ("relu(%x)", "reshape(%x) {shape=6}"),
    "line 2: node y: attribute shape of reshape is missing": ("relu(%x)", "reshape(%x)"),
    "line 2: node y: reshape: x is f32[2x3] with 6 elements": ("relu(%x)", "reshape(%x) {shape=(7,)}"),
    "line 2: node y: relu: takes 1 operands": ("relu(%x)", "relu(%x, %x)"),
    "line 2: node y: Transpose(axes=(0, 1)) does not take these 2": ("relu(%x)", "transpose(%x, %x) {axes=(0, 1)}"),
    "line 2: node y: Iota(size=6, dtype='int32') does not take": ("relu(%x)", "iota(%x) {size=6}"),
    "line 2: node y: Reduce(fn='most'": ("relu(%x)", 'reduce(%x) {fn="most", axes=(0,)}'),
    "line 2: node y: results are written as f32[2x4]; relu gives f32[2x3]": (": f32[2x3]\n", ": f32[2x4]\n"),
    "line 2: node y has 1 results and 2 types": (": f32[2x3]\n", ": f32[2x3], f32[2x3]\n"),
    "line 2: node y: True is no number of type float32": ("relu(%x)", "add(%x, True:f32)"),
    "line 2: node y: 0.5 is no number of type int32": ("relu(%x)", "add(%i, 0.5:i32)"),
    "line 2: found ',' where a word is needed": (" : f32[2x3]\n", " {parameters=(),,} : f32[2x3]\n"),
    "line 3: y: %q is not made before": ("= %y", "= %q"),
    "line 3: output y is declared as f32[3x2:1,3]": ("= %y", "= %y : f32[3x2:1,3]"),
    "line 3: output y is declared as i32[2x3:3,1], but its value is f32[2x3]": ("= %y", "= %y : i32[2x3:3,1]"),
    "line 3: output y is declared as f32[2x3], but its value is": ("= %y", "= %y : f32[2x3]"),
    "line 3: output y is returned twice": ("= %y", "= %y return y = %y"),
    "line 3: state x is updated twice": ("= %y", "= %y update x = %y update x = %y"),
    "line 1: '٣' is no extent": ("f32[2x3],", "f32[2x٣],"),
    "line 2: node y: relu has no attribute 'fn'": (") : f32", ') {fn="tanh"} : f32'),
    "line 2: attribute axes is given twice": ("relu(%x)", "transpose(%x) {axes=(0, 1), axes=(1, 0)}"),
    "line 4: found 'more' where the end": ("}\n", "} more"),
    "line 4: found the end where %, state": ("}\n", ""),
    "line 1: graph g has no outputs": ("return y = %y", ""),
    "line 3: found 'returns' where %, state": ("return", "returns"),
    "update x names no state": ("= %y", "= %y update x = %y"),
    "line 3: k: %k is not made": ("= %y", "= %y update k = %k"),
    "constant c: 'abc' is no SHA-256": ("  return", "  constant %c: f32[1] sha256:abc return"),
    "nested too deeply": ("(%x) :", "(%x) {parameters=" + "(" * 20000 + "} :"),
    "line 1: found '\"\\\\ud800\"' where a quoted name": ("graph g", 'graph "\\ud800"'),
    "line 1: found '\"\\ud800\"' where a quoted name": ("graph g", 'graph "\ud800"'),
    "line 1: the name of graph is ''": ("graph g", 'graph ""'),
    "line 2: the name of a node is ''": ("relu(%x)", 'relu@""(%x)'),
    "line 2: the name of an origin of node y is ''": (": f32[2x3]\n", ': f32[2x3] from ""\n'),
    "line 2: found '1e400' where a number that float64 holds": ("relu(%x)", "add(%x, 1e400:f32)"),
    "line 2: found '-1e309' where a number that float64 holds": ("relu(%x)", "add(%x, -1e309:f32)"),
    "9... where a number of at most 400 characters": ("relu(%x)", f"add(%x, {'9' * 5000}:f32)"),
    "9... where a number of at most 400 characters is": ("relu(%x)", f"add(%i, {'9' * 500}:i32)"),
    "line 2: node y: 2147483648 is no number of type int32": ("relu(%x)", "add(%i, 2147483648:i32)"),
    "line 2: found '1_0' where a number": ("relu(%x)", "add(%x, 1_0:f32)"),
    "line 2: found '٣' where a number": ("relu(%x)", "add(%x, ٣:f32)"),
    "line 2: found 'infinity' where a number": ("relu(%x)", "add(%x, infinity:f32)"),
    "line 2: node y: leaky_relu: negative_slope is None": ("relu(%x)", "leaky_relu(%x) {parameters=(None,)}"),
    "line 2: node y: clip: max is 3000000000.0, which int32": ("relu(%x)", "clip(%i) {parameters=(0, 3e9)}"),
    "line 2: node y: clip: min is nan, which int32": ("relu(%x)", "clip(%i) {parameters=(nan, None)}"),
    "line 2: node y: attention: causal is 'left'": ("relu(%x)", 'attention(%x, %x, %x) {scale=1.0, causal="left"}'),
    "line 2: node y: reduce_sum: axes are (1, 0); ascending": ("relu(%x)", "reduce_sum(%x) {axes=(1, 0)}"),
    "line 2: node y: squeeze: axes (0, 0) must be size-1": ("relu(%x)", "squeeze(%i) {axes=(0, 0)}"),
    "line 1: found '\"\\\\q\"' where a quoted name": ("graph g", 'graph "\\q"'),
}


@pytest.mark.parametrize("message", WRONG)
def test_mistakes_are_named_with_line_and_token(message: str) -> None:
    before, after = WRONG[message]
    assert GOOD.count(before) >= 1
    with pytest.raises(gd.GraphError) as raised:
        gd.parse(GOOD.replace(before, after, 1))
    assert message in str(raised.value)


def test_constants_must_be_the_ones_that_were_meant() -> None:
    graph = block()
    arrays = {n: p.array() for n, p in graph.payloads.items()}
    with pytest.raises(gd.GraphError, match="constant w: its data has another content than the hash"):
        gd.parse(str(graph), {**arrays, "w": arrays["w"] + 1})
    with pytest.raises(gd.GraphError, match=r"constant one: its data is f32\[8x1\]; f32\[1x8\] is needed"):
        gd.parse(str(graph), {**arrays, "one": arrays["one"].T})
    with pytest.raises(gd.GraphError, match="other is given as a constant"):
        gd.parse(str(graph), {**arrays, "other": arrays["one"]})


def test_any_cut_of_a_text_is_refused(rng: Rng) -> None:
    text = str(block())
    for place in rng.integers(0, len(text) - 1, 200):
        with pytest.raises(gd.GraphError):
            gd.parse(text[: int(place)])


def test_any_change_of_one_character_is_refused_or_read(rng: Rng) -> None:
    text = str(block())
    for place in rng.integers(0, len(text), 300):
        changed = text[: int(place)] + '(){}%x0,:="\\'[int(rng.integers(0, 12))] + text[int(place) + 1 :]
        with contextlib.suppress(gd.GraphError):
            gd.parse(changed)
