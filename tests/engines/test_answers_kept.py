"""Answers on disk: what a fresh process need not ask again, and what is never taken from there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.answer import Code, Decline
from graphdnn.compiler import compile_for
from graphdnn.engines import answers, environment
from graphdnn.engines.answers import ANSWERS, KIND, StoredAnswers, answers_stored_in, entry_key, remembered, structure
from graphdnn.engines.answers_file import UNCACHED, decode_answers, encode_answers
from graphdnn.engines.contract import Policy, Support
from graphdnn.engines.cublaslt import support as cublaslt
from graphdnn.engines.cublaslt.engine import CublasLtEngine
from graphdnn.ir.region import Region
from graphdnn.runtime.cache import DiskStore
from graphdnn.runtime.device import HostDevice
from graphdnn.target import Target
from tests.engines.scripted import Act, Clock, Scripted
from tests.engines.shelf import Shelf

ROOT = Path(__file__).parents[2]
H200 = Target.named("h200")
WORKED_OUT: list[str] = []
"""Keys of regions that an engine was asked about in earnest."""


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that knows nothing, whose code is what is on disk, whatever is being edited meanwhile."""
    monkeypatch.setattr(answers, "is_as_loaded", lambda: True)
    note = StoredAnswers.note

    def spied(self: StoredAnswers, question: Any, region: Region, answer: Any, is_new: bool) -> None:
        WORKED_OUT.extend([region.key] if is_new else [])
        note(self, question, region, answer, is_new)

    monkeypatch.setattr(StoredAnswers, "note", spied)
    forget()
    yield
    ANSWERS.clear()


def forget() -> None:
    """As in another process."""
    ANSWERS.clear()
    WORKED_OUT.clear()


def net(name: str = "y", rows: int = 8) -> gd.Graph:
    g = gd.GraphBuilder("net")
    x = g.input("x", (rows, 16, 8, 8), gd.float16)
    w = g.input("w", (16, 16, 3, 3), gd.float16)
    return g.build({"y": g.softmax(g.relu(g.conv(x, w, padding=1), name=name), axis=1)})


def compiled(graph: gd.Graph, folder: Path, target: Target = H200, **options: Any) -> str:
    made = gd.compile(graph, target, gd.CompileOptions(cache_dir=str(folder), **options))
    return made.report.model_copy(update={"options": {}}).model_dump_json()


def entries(folder: Path) -> int:
    return len([e for e in DiskStore(folder).entries() if e.kind == KIND])


def test_another_process_works_nothing_out_and_says_the_same(tmp_path: Path) -> None:
    first = compiled(net(), tmp_path)
    assert WORKED_OUT
    assert entries(tmp_path) == 1
    forget()
    assert compiled(net(), tmp_path) == first
    assert not WORKED_OUT
    ANSWERS.clear()
    assert gd.compile(net(), H200).report.model_copy(update={"options": {}}).model_dump_json() == first


SCRIPT = """
import sys, graphdnn as gd
from graphdnn.engines.answers import StoredAnswers
note, asked = StoredAnswers.note, [0, 0]
def counted(self, question, region, answer, is_new):
    asked[is_new] += 1
    note(self, question, region, answer, is_new)
StoredAnswers.note = counted
g = gd.GraphBuilder("block")
x, w = g.input("x", (4, 64, 64), gd.float16), g.input("w", (64, 64), gd.float16)
graph = g.build({"y": g.layer_norm(g.relu(g.matmul(x, w)) + x)})
gd.compile(graph, gd.Target.named("h200"), gd.CompileOptions(cache_dir=sys.argv[1]))
print(*asked)
"""


def test_real_processes_share_the_folder(tmp_path: Path) -> None:
    def said(_: int) -> list[int]:
        command = [sys.executable, "-W", "error", "-c", SCRIPT, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        return [int(n) for n in done.stdout.split()]

    with ThreadPoolExecutor(2) as pool:  # both at once find nothing or a whole entry
        first, second = pool.map(said, range(2))
    assert max(first[1], second[1]) > 0
    assert sum(first) == sum(second)
    assert said(0) == [sum(first), 0]
    assert entries(tmp_path) == 1


def test_what_this_process_knows_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf, graph = Shelf(), net()
    for _ in range(3):
        with answers_stored_in(shelf, graph, H200, Policy()):
            gd.compile(graph, H200)
    assert shelf.calls == {("get", KIND): 1, ("put", KIND): 1}
    forget()
    with answers_stored_in(shelf, graph, H200, Policy()):
        gd.compile(graph, H200)
    assert shelf.calls == {("get", KIND): 2, ("put", KIND): 1}


def test_a_described_device_keeps_answers_only_where_a_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAPHDNN_CACHE_DIR", str(tmp_path / "default"))
    monkeypatch.chdir(tmp_path)
    gd.compile(net(), H200)
    forget()
    gd.compile(net(), H200, gd.CompileOptions(cache_dir=""))
    assert list(tmp_path.iterdir()) == []


def test_a_no_in_other_words_is_not_recalled() -> None:
    def softmax(name: str) -> Region:
        graph = net(name)
        return Region.of(graph, [graph.node(name)])

    shelf, no, yes = Shelf(), Decline(Code.OP, "%y: no"), Support(1.0, "float32")
    first, other = softmax("y"), softmax("z")
    assert first.key == other.key
    written = StoredAnswers(shelf, lambda: "key")
    written.note(("a", "h200", first.key), first, no, True)
    written.note(("b", "h200", first.key), first, yes, True)
    written.close()
    found = StoredAnswers(shelf, lambda: "key")
    assert [found.recall(("a", "h200", r.key), r) for r in (first, other)] == [no, None]
    assert [found.recall(("b", "h200", r.key), r) for r in (first, other)] == [yes, yes]
    found.note(("a", "h200", other.key), other, replace(no, reason="%z: no"), True)
    found.close()
    both = StoredAnswers(shelf, lambda: "key")
    assert [str(both.recall(("a", "h200", r.key), r)) for r in (first, other)] == ["%y: no", "%z: no"]


class Oracle(Scripted):
    """A scripted engine that says `answer` of every region, and remembers what it was asked."""

    answer: Support | Decline = Support(1.0, "as each node's type")

    @remembered
    def supports(self, region: Region, target: Target, policy: Policy) -> Support | Decline:
        return self.answer


def oracle(module: str = "graphdnn.engines.oracle") -> Oracle:
    """An oracle that lives in some module."""

    def supports(self: Oracle, region: Region, target: Target, policy: Policy) -> Support | Decline:
        return self.answer

    supports.__module__ = module
    made = type("Oracle", (Oracle,), {"supports": remembered(supports)})
    found: Oracle = made("oracle", {"good": Act()}, Clock())
    return found


def on_a_device(store: Shelf, **options: Any) -> None:
    compile_for(net(), Target.cpu(), HostDevice(store), gd.CompileOptions(**options))


def test_a_device_keeps_answers_in_its_store(with_engines: Callable[..., None]) -> None:
    shelf = Shelf()
    with_engines(oracle())
    on_a_device(shelf)
    assert shelf.kinds() == [KIND]
    forget()
    on_a_device(shelf)
    assert not WORKED_OUT
    forget()
    on_a_device(shelf, cache_dir="")
    assert not WORKED_OUT, "nothing is stored"
    assert shelf.calls["get", KIND] == 2


def test_engines_of_others_are_not_kept(with_engines: Callable[..., None]) -> None:
    """The key stands for the code of this package only."""
    shelf = Shelf()
    with_engines(oracle("somebody.engines"))
    on_a_device(shelf)
    assert not shelf.calls


@pytest.mark.parametrize("code", sorted(UNCACHED))
def test_what_is_true_of_the_moment_is_not_kept(code: Code, with_engines: Callable[..., None]) -> None:
    shelf, absent = Shelf(), oracle()
    absent.answer = Decline(code, "there is no library")
    with_engines(Scripted("plain", {"good": Act()}, Clock()), absent)
    on_a_device(shelf)
    assert WORKED_OUT
    assert not shelf.kept


def test_a_library_that_went_away_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    g = gd.GraphBuilder("product")
    graph = g.build({"y": g.matmul(g.input("x", (64, 64), gd.float16), g.input("w", (64, 64), gd.float16))})
    region, here = Region.of(graph, graph.nodes), replace(H200, present=True)
    shelf, engine = Shelf(), CublasLtEngine()
    for is_there in (True, False, True):
        forget()
        monkeypatch.setattr(cublaslt.importlib.util, "find_spec", lambda name, found=is_there: found or None)
        with answers_stored_in(shelf, graph, here, Policy()):
            answer = engine.supports(region, here, Policy())
        assert isinstance(answer, Support) is is_there
        assert is_there or (isinstance(answer, Decline) and answer.code is Code.SETUP)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b'{"format": 1}', encode_answers({("w", "c", "r", ""): Support(1.0, "")}).replace(b"[0, 0", b"[9, 0")],
)
def test_an_entry_that_is_none_is_dropped_with_a_warning(content: bytes, tmp_path: Path) -> None:
    graph, store = net(), DiskStore(tmp_path)
    first = compiled(graph, tmp_path)
    key = entry_key(graph, H200, Policy())
    sound = store.get(KIND, key)
    store.put(KIND, key, content)
    forget()
    with pytest.warns(RuntimeWarning, match="list of engines' answers is dropped"):
        assert compiled(graph, tmp_path) == first
    assert WORKED_OUT
    assert store.get(KIND, key) == sound


@pytest.mark.parametrize("place", [0, 9, 60, -1])
def test_a_damaged_file_is_dropped_with_a_warning(place: int, tmp_path: Path) -> None:
    first = compiled(net(), tmp_path)
    (file,) = DiskStore(tmp_path).entries()
    raw = bytearray(file.path.read_bytes())
    raw[place] ^= 1
    file.path.write_bytes(raw)
    forget()
    with pytest.warns(RuntimeWarning, match="damaged or foreign"):
        assert compiled(net(), tmp_path) == first
    assert WORKED_OUT
    forget()
    compiled(net(), tmp_path)
    assert not WORKED_OUT


def test_answers_of_other_code_are_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(net(), tmp_path)
    forget()
    monkeypatch.setattr(answers, "code_digest", lambda: "0" * 32)
    compiled(net(), tmp_path)
    assert WORKED_OUT
    assert entries(tmp_path) == 2


def test_code_that_is_not_what_runs_neither_reads_nor_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(net(), tmp_path)
    (file,) = DiskStore(tmp_path).entries()
    forget()
    monkeypatch.setattr(answers, "is_as_loaded", lambda: False)
    compiled(net(), tmp_path)
    assert WORKED_OUT
    compiled(net(rows=9), tmp_path)
    assert [e.path for e in DiskStore(tmp_path).entries()] == [file.path]


@pytest.mark.parametrize(
    ("target", "options"),
    [
        (replace(H200, bandwidth=1e9), {}),
        (replace(H200, versions={"cudnn": "9.99"}), {}),
        (replace(H200, rates={**H200.rates, "float16": 1.0}), {}),
        (H200, {"precision": "tf32"}),
        (H200, {"deterministic": True}),
        (H200, {"workspace_limit": 0}),
    ],
)
def test_other_circumstances_have_other_answers(target: Target, options: dict[str, Any], tmp_path: Path) -> None:
    compiled(net(), tmp_path)
    forget()
    compiled(net(), tmp_path, target, **options)
    assert WORKED_OUT
    assert entries(tmp_path) == 2


def test_several_devices_of_one_kind_share(tmp_path: Path) -> None:
    compiled(net(), tmp_path)
    forget()
    compiled(net(), tmp_path, replace(H200, ordinal=3))
    assert not WORKED_OUT


def test_graphs_differ_by_all_but_their_weights() -> None:
    def graph(weight: float, name: str = "y", input: str = "x", output: str = "out", slope: float = 2.0) -> gd.Graph:
        g = gd.GraphBuilder("g")
        x = g.input(input, (4, 8), gd.float32)
        w = g.constant(np.full((4, 8), weight, np.float32), name="w")
        return g.build({output: g.mul(g.add(x, w, name=name), slope)})

    same = structure(graph(1.0))
    assert structure(graph(3.0)) == same
    others = [{"name": "z"}, {"input": "a"}, {"output": "b"}, {"slope": 3.0}]
    assert len({same, *[structure(graph(1.0, **other)) for other in others]}) == 5  # type: ignore[arg-type]
    assert len({structure(net()), structure(net(rows=9)), structure(net("z"))}) == 3


def test_graphs_differ_by_next_values_of_states_and_by_layouts_of_outputs() -> None:
    def graph(next: str = "sum", turned: bool = False) -> gd.Graph:
        g = gd.GraphBuilder("g")
        x, total = g.input("x", (4, 8), gd.float32), g.state("total", (4, 8), gd.float32)
        values = {"sum": g.add(total, x, name="sum"), "product": g.mul(total, x, name="product")}
        return g.build(values, updates={"total": values[next]}, strides={"sum": (1, 4)} if turned else None)

    assert len({structure(graph()), structure(graph("product")), structure(graph(turned=True))}) == 3


def test_a_limit_on_memory_asks_under_many_circumstances(tmp_path: Path) -> None:
    g = gd.GraphBuilder("split")
    x, w, v = (g.input(n, s, gd.float16) for n, s in {"x": (64, 8192), "w": (8192, 256), "v": (256, 64)}.items())
    graph = g.build({"y": g.softmax(g.matmul(g.matmul(x, w), v))})
    first = compiled(graph, tmp_path, memory_limit=1 << 20)
    (file,) = DiskStore(tmp_path).entries()
    content = DiskStore(tmp_path).get(KIND, str(file.key()))
    assert len(json.loads(content or b"")["circumstances"]) > 1
    forget()
    assert compiled(graph, tmp_path, memory_limit=1 << 20) == first
    assert not WORKED_OUT


def test_what_is_asked_more_is_added(tmp_path: Path) -> None:
    compiled(net(), tmp_path, disabled_passes=("fuse",))
    few = len(WORKED_OUT)
    forget()
    compiled(net(), tmp_path)
    assert WORKED_OUT
    for disabled in ((), ("fuse",)):
        forget()
        compiled(net(), tmp_path, disabled_passes=disabled)
        assert not WORKED_OUT
    assert few
    assert entries(tmp_path) == 1


def test_an_entry_has_no_more_than_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 7
    monkeypatch.setattr(answers, "MOST", most)
    graph = net()
    for disabled in (("fuse",), ()):
        forget()
        compiled(graph, tmp_path, disabled_passes=disabled)
        content = DiskStore(tmp_path).get(KIND, entry_key(graph, H200, Policy()))
        assert len(decode_answers(content or b"") or ()) == most


def test_a_compilation_that_fails_stores_no_answers(tmp_path: Path) -> None:
    with pytest.raises(gd.CompileError):
        compiled(net(), tmp_path, disabled_engines=("cudnn", "cublaslt", "nvrtc"))
    assert answers.STORED.get() is None


def test_the_code_that_answers_is_in_the_key() -> None:
    assert json.loads(entry_key(net(), H200, Policy()))["code"] == environment.code_digest()
