"""Documents: every graph comes back as it was, and nothing that a file says is believed unchecked."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import graphdnn as gd
from graphdnn.ir.graph import Graph
from graphdnn.ir.op import OPS
from graphdnn.ir.tensorfile import NAMES, read_tensors, write_tensors
from graphdnn.ir.types import DTYPES, TensorType
from graphdnn.ir.writer import GraphWriter
from tests.ir.samples import SAMPLES, Sample
from tests.ir.structure import outline

Rng = np.random.Generator


def block(rng: Rng) -> Graph:
    """A graph with a large and a small constant, a state, immediates, declared strides and several results."""
    g = gd.GraphBuilder("block")
    x = g.input("x", (2, 3, 5, 4), gd.bfloat16, strides=(60, 1, 12, 3))
    w = g.constant(rng.standard_normal((24, 3, 3, 3)).astype(gd.bfloat16.numpy), name="w")
    b = g.constant(rng.standard_normal(24).astype(np.float32), name="b")
    y = g.relu(g.bias(g.cast(g.conv(x, w, padding=1), gd.float32), b, axis=1))
    low, high = g.split(g.clip(y, min=None, max=6.0), (3, 21), axis=1, name="parts")
    k = g.state("k", (4, 8), gd.float32)
    new = g.write_slice(k, g.constant(rng.standard_normal((2, 8)).astype(np.float32), name="rows"), 2, axis=0)
    padded = g.pad(high * 0.1, ((0, 0), (0, 0), (0, 1), (2, 0)), value=-math.inf)
    return g.build({"low": low, "padded": padded}, {"k": new}, strides={"low": (60, 1, 12, 3)})


def evaluated(graph: Graph, rng: Rng) -> list[np.ndarray]:
    x = np.random.default_rng(7).standard_normal((2, 3, 5, 4)).astype(gd.bfloat16.numpy)
    return list(gd.evaluate(graph, {"x": x}).values())


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_every_sample_comes_back(sample: Sample, rng: Rng) -> None:
    graph = sample.graph(rng)
    arrays = {n: p.array() for n, p in graph.payloads.items() if p.type.nbytes > 1024}
    again = gd.Graph.from_json(graph.to_json(), arrays)
    assert outline(again) == outline(graph)
    assert again.to_json() == graph.to_json()
    inputs = sample.inputs(graph, rng)
    for name, expected in gd.evaluate(graph, inputs).items():
        np.testing.assert_array_equal(gd.evaluate(again, inputs)[name], expected)


def test_save_and_load(tmp_path: Path, rng: Rng) -> None:
    graph = block(rng)
    graph.save(str(tmp_path / "block.json"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["block.json", "block.safetensors"]
    again = gd.Graph.load(str(tmp_path / "block.json"))
    assert outline(again) == outline(graph)
    for found, expected in zip(evaluated(again, rng), evaluated(graph, rng), strict=True):
        np.testing.assert_array_equal(found, expected)
    written = load_file(tmp_path / "block.safetensors")
    assert list(written) == [graph.payloads["w"].digest]
    again.save(str(tmp_path / "again.json"))
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "block.json").read_bytes()
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "block.safetensors").read_bytes()


def test_only_what_is_large_stands_beside(tmp_path: Path, rng: Rng) -> None:
    for size, beside in ((256, False), (257, True)):
        g = gd.GraphBuilder()
        graph = g.build({"y": g.add(g.input("x", (size,), gd.float32), g.constant(np.ones(size, np.float32)))})
        path = tmp_path / f"{size}.json"
        graph.save(str(path))
        assert path.with_suffix(".safetensors").exists() == beside
        assert outline(gd.Graph.load(str(path))) == outline(graph)


def test_equal_constants_are_written_once(tmp_path: Path, rng: Rng) -> None:
    g = gd.GraphBuilder()
    x, data = g.input("x", (300,), gd.float32), rng.standard_normal(300).astype(np.float32)
    graph = g.build({"y": g.mul(g.add(x, g.constant(data, name="a")), g.constant(data, name="b"))})
    graph.save(str(tmp_path / "g.json"))
    assert len(load_file(tmp_path / "g.safetensors")) == 1
    assert outline(gd.Graph.load(str(tmp_path / "g.json"))) == outline(graph)


def test_planning_needs_no_data(tmp_path: Path, rng: Rng) -> None:
    graph = block(rng)
    graph.save(str(tmp_path / "g.json"))
    (tmp_path / "g.safetensors").unlink()
    again = gd.Graph.load(str(tmp_path / "g.json"))
    assert outline(again) == outline(graph)
    assert not again.payloads["w"].has_data
    assert again.payloads["b"].has_data
    assert again.to_json() == graph.to_json()
    for run in (lambda: evaluated(again, rng), lambda: gd.compile(again, target="cpu")):
        with pytest.raises(gd.GraphError, match=r"^constant w of type \S+ has no data here; .*\.safetensors file"):
            run()
    again.save(str(tmp_path / "copy.json"))
    assert not (tmp_path / "copy.safetensors").exists()


def test_names_numbers_origins_and_decided_strides() -> None:
    writer = GraphWriter("laid out")
    x = writer.input('x "quoted"\n', TensorType((2, 3), gd.float32))
    op = OPS["transpose"](axes=(1, 0))
    (y,) = writer.emit(op, (x,), origins=("a", "b c"), types=[TensorType((3, 2), gd.float32, (1, 3))])
    (z,) = writer.emit(op, (y,), origins=(), types=[TensorType((2, 3), gd.float32, (3, 1))])
    for number in (0.1, 1e-45, math.inf, -math.inf, math.nan, 2.0**70, 3):
        (z,) = writer.emit(OPS["pointwise"](fn="mul"), (z, number))
    (z,) = writer.emit(OPS["pointwise"](fn="clip", parameters=(-math.inf, None)), (z,))
    (v,) = writer.emit(OPS["pointwise"](fn="less"), (z, 0))
    (v,) = writer.emit(OPS["pointwise"](fn="equal"), (v, True))
    graph = writer.finish({"": z, "ünïcode": v})
    text = graph.to_json()
    assert outline(gd.Graph.from_json(text)) == outline(graph)
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_a_scalar_constant_comes_back() -> None:
    g = gd.GraphBuilder()
    graph = g.build({"y": g.mul(g.input("x", (3,), gd.float32), g.constant(np.float32(2.5)))})
    again = gd.Graph.from_json(graph.to_json())
    np.testing.assert_array_equal(gd.evaluate(again, {"x": np.ones(3, np.float32)})["y"], [2.5] * 3)


def test_declared_strides_of_short_axes_come_back() -> None:
    g = gd.GraphBuilder()
    graph = g.build({"y": g.relu(g.input("x", (3, 1, 2), gd.float32))}, strides={"y": (7, 5, 1)})
    assert graph.output_strides["y"] == (7, 2, 1)
    assert gd.Graph.from_json(graph.to_json()).to_json() == graph.to_json()


def test_constants_are_given_by_name(rng: Rng) -> None:
    graph = block(rng)
    w = graph.payloads["w"].array()
    assert gd.Graph.from_json(graph.to_json(), {"w": w}).payloads["w"].has_data
    with pytest.raises(gd.GraphError, match="constant w: its data has another content"):
        gd.Graph.from_json(graph.to_json(), {"w": w[::-1]})
    with pytest.raises(gd.GraphError, match=r"constant w: its data is f32\[24x3x3x3\]; bf16\[24x3x3x3\] is needed"):
        gd.Graph.from_json(graph.to_json(), {"w": w.astype(np.float32)})
    with pytest.raises(gd.GraphError, match="v is given as a constant, but the document has none"):
        gd.Graph.from_json(graph.to_json(), {"v": w})


Edit = Callable[[dict[str, Any]], object]


def node(document: dict[str, Any], op: str) -> dict[str, Any]:
    return next(n for n in document["nodes"] if n["op"] == op)


def literal(number: object, dtype: str = "float32") -> Edit:
    """Puts a number in the place of a node's operand."""
    return lambda d: node(d, "pad").update(operands=[{"literal": number, "dtype": dtype}])


def constant(document: dict[str, Any], name: str) -> dict[str, Any]:
    return next(c for c in document["constants"] if c["name"] == name)


HOSTILE: dict[str, Edit] = {
    "document: version is 2; this graphdnn reads version 1": lambda d: d.update(version=2),
    "document: version: input should be a valid integer": lambda d: d.update(version="1"),
    "document: version: input should be a valid integer ": lambda d: d.update(version=True),
    "document: version: field required": lambda d: d.pop("version"),
    "document: format: input should be 'graphdnn'": lambda d: d.update(format="onnx"),
    "document: surprise: extra inputs are not permitted": lambda d: d.update(surprise=1),
    "document: nodes.0.surprise: extra inputs": lambda d: d["nodes"][0].update(surprise=1),
    "document: nodes.2.results.0.type.dtype: input should be a valid string": lambda d: d["nodes"][2]["results"][0][
        "type"
    ].update(dtype=7),
    "document: inputs.0.type.shape.1: input should be a valid integer": lambda d: d["inputs"][0]["type"][
        "shape"
    ].__setitem__(1, 3.0),
    "document: inputs: input should be a valid list": lambda d: d.update(inputs={}),
    "inputs.0.type: data type 'float17' is not one of": lambda d: d["inputs"][0]["type"].update(dtype="float17"),
    "inputs.0.type: shape is (2, -3, 5, 4)": lambda d: d["inputs"][0]["type"]["shape"].__setitem__(1, -3),
    "inputs.0.type: shape is (2, 3, 5, 1000000000000000000000000)": lambda d: d["inputs"][0]["type"][
        "shape"
    ].__setitem__(3, 10**24),
    "inputs.0.type: shape has 100000 axes": lambda d: d["inputs"][0]["type"].update(shape=[1] * 100_000),
    "inputs.0.type: strides are (1, 1)": lambda d: d["inputs"][0]["type"].update(strides=[1, 1]),
    "inputs.0.type: strides are (1, 1, 1, -1)": lambda d: d["inputs"][0]["type"].update(strides=[1, 1, 1, -1]),
    "inputs.0.type: strides are (1, 1, 1, 10000000000000000000000)": lambda d: d["inputs"][0]["type"].update(
        strides=[1, 1, 1, 10**22]
    ),
    "there is no op 'explode'": lambda d: d["nodes"][0].update(op="explode"),
    "conv has no attribute 'strides'": lambda d: node(d, "conv")["attributes"].update(strides=[1, 1]),
    "attribute groups of conv is 1.5, which is not of type int": lambda d: node(d, "conv")["attributes"].update(
        groups=1.5
    ),
    "attribute groups of conv is True": lambda d: node(d, "conv")["attributes"].update(groups=True),
    "attribute padding of conv is ((1, 1, 1), (1, 1))": lambda d: node(d, "conv")["attributes"].update(
        padding=[[1, 1, 1], [1, 1]]
    ),
    "attribute stride of conv is ('1', '1')": lambda d: node(d, "conv")["attributes"].update(stride=["1", "1"]),
    "attribute stride of conv is {'a': 1}": lambda d: node(d, "conv")["attributes"].update(stride={"a": 1}),
    "attribute stride of conv is missing": lambda d: node(d, "conv")["attributes"].pop("stride"),
    "conv: stride is (0, 1)": lambda d: node(d, "conv")["attributes"].update(stride=[0, 1]),
    "conv: groups=0 does not divide": lambda d: node(d, "conv")["attributes"].update(groups=0),
    "conv: stride (1,) has 1 entries": lambda d: node(d, "conv")["attributes"].update(stride=[1]),
    "Pointwise(fn='launch'": lambda d: node(d, "pointwise")["attributes"].update(fn="launch"),
    "Cast(dtype='float99')": lambda d: node(d, "cast")["attributes"].update(dtype="float99"),
    "does not take these 0 operands": lambda d: node(d, "conv").update(operands=[]),
    "nodes.0.operands.1 (of conv): %v is not made before it": lambda d: d["nodes"][0]["operands"].__setitem__(1, "v"),
    "nodes.0.operands.0 (of conv): %cast is not made before it; nodes stand in topological": lambda d: d["nodes"][0][
        "operands"
    ].__setitem__(0, "cast"),
    "nodes.0.operands.0 (of conv): %conv is not made before": lambda d: d["nodes"][0]["operands"].__setitem__(
        0, "conv"
    ),
    "'infinite' is no number of type float32": literal("infinite"),
    "0.5 is no number of type int32": literal(0.5, "int32"),
    "True is no number of type float32": literal(True),
    "node conv: results are written as f32[2x24x5x4]; conv gives bf16[2x24x5x4]": lambda d: node(d, "conv")["results"][
        0
    ]["type"].update(dtype="float32"),
    "node parts: results are written as": lambda d: node(d, "split")["results"].pop(),
    "two values are named x": lambda d: node(d, "conv")["results"][0].update(name="x"),
    "node conv: two nodes have this name": lambda d: d["nodes"][1].update(name="conv"),
    "the name of an input is ''": lambda d: d["inputs"][0].update(name=""),
    "the name of graph is '\\ud800'": lambda d: d.update(name="\ud800"),
    "the name of a result of node conv is ''": lambda d: node(d, "conv")["results"][0].update(name=""),
    "the name of a node is ''": lambda d: d["nodes"][0].update(name=""),
    "the name of an origin of node conv is '\\ud800'": lambda d: node(d, "conv").update(origins=["\ud800"]),
    "the name of an output is '\\ud800'": lambda d: d["outputs"].update({"\ud800": d["outputs"]["low"]}),
    "3000000000 is no number of type int32": literal(3_000_000_000, "int32"),
    "output low: %nothing is not made": lambda d: d["outputs"]["low"].update(value="nothing"),
    "outputs.low.strides: strides are (1,)": lambda d: d["outputs"]["low"].update(strides=[1]),
    "output low of type f32[2x3x5x4] has strides (0, 0, 0, 0)": lambda d: d["outputs"]["low"].update(
        strides=[0, 0, 0, 0]
    ),
    "graph block has no outputs": lambda d: d.update(outputs={}, updates={}),
    "update x names no state": lambda d: d["updates"].update(x="x"),
    "update of state k is f32[2x24x5x4]": lambda d: d["updates"].update(k="bias"),
    "constants.1.data: it is no base64": lambda d: constant(d, "b").update(data="*" * 128),
    "constants.1.data: it has 3 bytes; f32[24] has 96": lambda d: constant(d, "b").update(data="AAAA"),
    "constant b: its data has another content": lambda d: constant(d, "b").update(data="A" * 128),
    "constant w: 'abc' is no SHA-256": lambda d: constant(d, "w").update(sha256="abc"),
    "constant w: '../../../etc/passwd": lambda d: constant(d, "w").update(sha256="../../../etc/passwd".ljust(64, "/")),
}


@pytest.mark.parametrize("message", HOSTILE)
def test_what_is_wrong_is_named(message: str, rng: Rng) -> None:
    document = json.loads(block(rng).to_json())
    HOSTILE[message](document)
    with pytest.raises(gd.GraphError) as raised:
        gd.Graph.from_json(json.dumps(document))
    assert message.strip() in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "document: it is no JSON"),
        ("[" * 100_000, "document: it is"),
        ("[1, 2]", "document: it is a JSON list; an object is needed"),
        ('{"version": 1, "version": 1}', "the name 'version' stands in one object twice"),
        ('{"version": ' + "9" * 5000 + "}", "document: it is no JSON"),
        ('{"a":' * 50_000 + "1" + "}" * 50_000, "document: it is"),
        ("\ud800", "document: it is no JSON"),
    ],
)
def test_what_is_no_document_is_refused(text: str, message: str) -> None:
    with pytest.raises(gd.GraphError) as raised:
        gd.Graph.from_json(text)
    assert message in str(raised.value)


@pytest.mark.parametrize("content", [b"{", b"[]", b"{}", b"\x93NUMPY"])
def test_a_file_that_is_no_document_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "weights.npy"
    path.write_bytes(content)
    with pytest.raises(gd.GraphError) as raised:
        gd.Graph.load(path)
    assert str(raised.value).startswith(f"{path}: ")


def test_attributes_nested_deeply_are_refused(rng: Rng) -> None:
    document = json.loads(block(rng).to_json())
    node(document, "conv")["attributes"]["groups"] = 0
    text = json.dumps(document).replace('"groups": 0', '"groups": ' + "[" * 900 + "]" * 900)
    with pytest.raises(gd.GraphError, match="attribute groups of conv is"):
        gd.Graph.from_json(text)


@pytest.mark.parametrize("extra", [0, 1])
def test_constants_up_to_a_kibibyte_stand_in_the_document(extra: int) -> None:
    g = gd.GraphBuilder()
    graph = g.build({"y": g.identity(g.constant(np.zeros(1024 + extra, np.uint8), name="c"))})
    (constant,) = json.loads(graph.to_json())["constants"]
    assert ("data" in constant) == (extra == 0)


LONG = {"text": "long" * 5000, "digits": 10**4000, "entries": list(range(5000)), "key": {"long" * 5000: 1}}


@pytest.mark.parametrize("long", LONG)
def test_what_is_wrong_is_told_in_short(long: str, rng: Rng) -> None:
    """Whatever of a document is replaced, and a name of any length beside what is wrong."""
    text = block(rng).to_json()
    for place in ("name", "kernel", "attributes", "stride", "shape", "operands", "sha256", "outputs", "op"):
        for number in range(text.count(f'"{place}":')):
            *before, rest = text.split(f'"{place}":', number + 1)
            _, end = json.JSONDecoder().raw_decode(rest.lstrip())
            changed = f'"{place}":'.join((*before, json.dumps(LONG[long]) + rest.lstrip()[end:]))
            told = ""
            try:
                gd.Graph.from_json(changed)
            except gd.GraphError as error:
                told = str(error)
            assert len(told) < 1200, place
            assert "\n" not in told


def test_any_changed_byte_is_refused_or_read(tmp_path: Path, rng: Rng) -> None:
    """Of a document and its file: never another exception, and never other constants than were saved."""
    graph = block(rng)
    path = tmp_path / "g.json"
    graph.save(str(path))
    digests = {n: p.digest for n, p in graph.payloads.items()}
    for name in ("g.json", "g.safetensors"):
        file = tmp_path / name
        whole = file.read_bytes()
        for _ in range(150):
            damaged = bytearray(whole)
            damaged[int(rng.integers(len(whole)))] ^= 1 << int(rng.integers(8))
            file.write_bytes(bytes(damaged))
            try:
                again = gd.Graph.load(str(path))
            except gd.GraphError:
                continue
            assert name == "g.json"
            assert {p.digest for p in again.payloads.values()} == set(digests.values())
        for length in rng.integers(0, len(whole), 50):
            file.write_bytes(whole[: int(length)])
            if name == "g.json" and length == len(whole) - 1:
                continue
            with pytest.raises(gd.GraphError):
                gd.Graph.load(str(path))
        file.write_bytes(whole)


def test_a_constant_that_the_file_lacks_is_named(tmp_path: Path, rng: Rng) -> None:
    graph = block(rng)
    graph.save(str(tmp_path / "g.json"))
    write_tensors(tmp_path / "g.safetensors", {"other": np.zeros(3, np.float32)})
    with pytest.raises(gd.GraphError, match=r"g.safetensors: constant w \([0-9a-f]{12}\) is missing from it"):
        gd.Graph.load(str(tmp_path / "g.json"))


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, rng: Rng, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.safetensors"
    write_tensors(path, {"a": np.ones(3, np.float32)})
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(np, "ascontiguousarray", fail)
    with pytest.raises(OSError, match="full"):
        write_tensors(path, {"a": np.zeros(3, np.float32)})
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["t.safetensors"]


def test_a_document_is_not_saved_over_its_constants(tmp_path: Path, rng: Rng) -> None:
    with pytest.raises(gd.GraphError, match="another suffix"):
        block(rng).save(str(tmp_path / "g.safetensors"))


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "g.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(gd.GraphError, match=r"g.json: it is no UTF-8 text"):
        gd.Graph.load(str(tmp_path / "g.json"))


def arrays_of_every_type(rng: Rng) -> dict[str, np.ndarray]:
    drawn = {n: np.asarray(rng.integers(0, 2, (3, i + 1))).astype(t.numpy) for i, (n, t) in enumerate(DTYPES.items())}
    return {**drawn, "scalar": np.asarray(np.float16(3)), "turned": rng.standard_normal((5, 7)).T}


def test_the_library_reads_what_we_write(tmp_path: Path, rng: Rng) -> None:
    arrays = arrays_of_every_type(rng)
    write_tensors(tmp_path / "t.safetensors", arrays)
    found, ours = load_file(tmp_path / "t.safetensors"), read_tensors(tmp_path / "t.safetensors")
    for name, array in arrays.items():
        np.testing.assert_array_equal(ours[name], array)
        np.testing.assert_array_equal(found[name].view(array.dtype).reshape(array.shape), array)
        assert ours[name].dtype == array.dtype
        assert not ours[name].flags.writeable
    assert set(NAMES) == set(DTYPES)


def test_we_read_what_the_library_writes(tmp_path: Path, rng: Rng) -> None:
    arrays = {n: np.ascontiguousarray(a) for n, a in arrays_of_every_type(rng).items()}
    save_file(arrays, tmp_path / "t.safetensors", metadata={"by": "someone"})
    for name, array in read_tensors(tmp_path / "t.safetensors").items():
        np.testing.assert_array_equal(array, arrays[name])
        assert array.dtype == arrays[name].dtype


def tensor_file(path: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8), **more: object) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}


BAD_FILES: dict[str, tuple[object, bytes]] = {
    "an object of tensors is needed": ([1], b""),
    "the header is no JSON": (b"{'a'", b""),
    "the header is no JSON ('utf-8'": (b"\xff\xff", b""),
    "stands in one object twice": (b'{"a": 1, "a": 2}', b""),
    "needs dtype, shape and data_offsets": ({"a": [1]}, b""),
    "needs dtype, shape and data_offsets, and nothing else": ({"a": entry(more=1)}, bytes(8)),
    "dtype is 'F8_E5M2'": ({"a": entry("F8_E5M2")}, bytes(8)),
    "dtype is ['F32']": ({"a": entry(["F32"])}, bytes(8)),
    "shape is '2'": ({"a": entry(shape="2")}, bytes(8)),
    "shape is [-2]": ({"a": entry(shape=[-2])}, bytes(8)),
    "shape is [2.0]": ({"a": entry(shape=[2.0])}, bytes(8)),
    "shape is [True]": ({"a": entry(shape=[True])}, bytes(8)),
    "shape is [1, 1, 1": ({"a": entry(shape=[1] * 100)}, bytes(8)),
    "data_offsets are [0, 9]": ({"a": entry(offsets=[0, 9])}, bytes(8)),
    "data_offsets are [8, 0]": ({"a": entry(offsets=[8, 0])}, bytes(8)),
    "data_offsets are [0]": ({"a": entry(offsets=[0])}, bytes(8)),
    "data_offsets are [-8, 0]": ({"a": entry(offsets=[-8, 0])}, bytes(8)),
    "F32 of shape [3] takes 12 bytes": ({"a": entry(shape=[3])}, bytes(8)),
    "F32 of shape [4611686018427387904, 4] takes": ({"a": entry(shape=[2**62, 4], offsets=[0, 0])}, b""),
    "starts at byte 0 of the data, where 8 is needed": ({"a": entry(), "b": entry()}, bytes(8)),
    "starts at byte 4 of the data, where 0 is needed": ({"a": entry(offsets=[4, 12])}, bytes(12)),
    "take 8 bytes, but the file has 9": ({"a": entry()}, bytes(9)),
}


@pytest.mark.parametrize("message", BAD_FILES)
def test_wrong_tensor_files_are_refused(message: str, tmp_path: Path) -> None:
    path = tensor_file(tmp_path / "t.safetensors", *BAD_FILES[message])
    with pytest.raises(gd.GraphError) as raised:
        read_tensors(path)
    assert message in str(raised.value)
    assert str(raised.value).startswith("t.safetensors: ")


@pytest.mark.parametrize("content", [b"", b"\x10\0\0", bytes(8)[:-1] + b"\xff", (200_000_000).to_bytes(8, "little")])
def test_absurd_header_lengths_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "t.safetensors").write_bytes(content)
    with pytest.raises(gd.GraphError, match="it is damaged or no safetensors file"):
        read_tensors(tmp_path / "t.safetensors")


def test_a_saved_graph_has_the_rights_of_any_new_file(tmp_path: Path) -> None:
    g = gd.GraphBuilder()
    w = g.constant(np.zeros((40, 40), np.float32), name="w")
    g.build({"y": g.add(g.input("x", (40, 40), gd.float32), w)}).save(str(tmp_path / "g.json"))
    (tmp_path / "other").touch()
    rights = {p.name: p.stat().st_mode for p in tmp_path.iterdir()}
    assert len(rights) == 3
    assert len(set(rights.values())) == 1
