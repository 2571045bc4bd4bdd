"""From source to cubin without a driver, the cache before it, and what a missing compiler is answered with."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

import graphdnn as gd
from graphdnn.answer import Code, Decline
from graphdnn.engines.contract import Policy
from graphdnn.engines.nvrtc import compile as compiler
from graphdnn.engines.nvrtc.compile import cache_key, compile_cubin, compiler_version
from graphdnn.engines.nvrtc.emit import prelude
from graphdnn.engines.nvrtc.engine import NvrtcEngine, without_family
from graphdnn.engines.nvrtc.launch import load_kernel
from graphdnn.engines.nvrtc.recipe import Kernel
from graphdnn.errors import OutOfMemoryError
from graphdnn.ir.op import Op
from graphdnn.target import Target
from tests.engines.cudnn.layouts import whole

ROOT = Path(__file__).parents[3]
SOURCE = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }'
ELF = b"\x7fELF"


class Shelf:
    """A store in memory that counts."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], bytes] = {}

    def get(self, kind: str, key: str) -> bytes | None:
        return self.kept.get((kind, key))

    def put(self, kind: str, key: str, content: bytes) -> None:
        self.kept[kind, key] = content

    def drop(self, kind: str, key: str) -> None:
        self.kept.pop((kind, key), None)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_a_source_becomes_a_cubin(arch: str) -> None:
    cubin = compile_cubin(prelude() + SOURCE, arch)
    assert isinstance(cubin, bytes)
    assert cubin.startswith(ELF)
    assert b"twice" in cubin


def test_a_cubin_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf()
    first = compile_cubin(SOURCE, "sm_90", store=shelf)
    assert [kind for kind, _ in shelf.kept] == ["cubin"]
    monkeypatch.setattr(compiler, "run_compiler", lambda *_: pytest.fail("compiled again"))
    assert compile_cubin(SOURCE, "sm_90", store=shelf) == first


def test_a_failed_compilation_leaves_no_entry() -> None:
    shelf = Shelf()
    answer = compile_cubin(SOURCE.replace("x[", "z["), "sm_90", store=shelf)
    assert isinstance(answer, Decline)
    assert answer.code == Code.BUILD
    assert '"z" is undefined' in answer.reason
    assert not shelf.kept


@pytest.mark.parametrize("call", ["nvrtcCreateProgram", "nvrtcCompileProgram"])
def test_a_lack_of_memory_is_of_the_moment(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda.bindings import nvrtc

    hungry = (nvrtc.nvrtcResult.NVRTC_ERROR_OUT_OF_MEMORY,)
    monkeypatch.setattr(nvrtc, call, lambda *_: hungry)
    try:
        answer = compile_cubin(SOURCE, "sm_90")
    except OutOfMemoryError:
        return
    assert isinstance(answer, Decline)
    assert answer.code is Code.TRANSIENT


def test_a_device_without_room_for_a_kernel_is_so_for_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda.bindings import driver

    kernel = Kernel("twice", lambda: SOURCE, (), (1, 1, 1), (32, 1, 1))
    for status, code in (
        ("OUT_OF_MEMORY", Code.TRANSIENT),
        ("STREAM_CAPTURE_UNSUPPORTED", Code.TRANSIENT),
        ("INVALID_IMAGE", Code.BUILD),
    ):
        answer = (getattr(driver.CUresult, f"CUDA_ERROR_{status}"), None)
        monkeypatch.setattr(driver, "cuLibraryLoadData", lambda *_, answer=answer: answer)
        found = load_kernel(kernel, b"", [], is_programmatic=False)
        assert isinstance(found, Decline)
        assert found.code is code


def test_everything_that_decides_a_cubin_is_in_its_key() -> None:
    flags = ("--gpu-architecture=sm_90",)
    keys = {
        cache_key(SOURCE, flags, (13, 0), "13.0.48"),
        cache_key(SOURCE + " ", flags, (13, 0), "13.0.48"),
        cache_key(SOURCE, ("--gpu-architecture=sm_80",), (13, 0), "13.0.48"),
        cache_key(SOURCE, (*flags, "--fmad=false"), (13, 0), "13.0.48"),
        cache_key(SOURCE, flags, (13, 1), "13.0.48"),
        cache_key(SOURCE, flags, (13, 0), "13.0.88"),
    }
    assert len(keys) == 6


def test_threads_that_want_one_cubin_share_one_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    started, go = threading.Event(), threading.Event()

    def slow(source: str, flags: object) -> bytes:
        compiled.append(source)
        started.set()
        assert go.wait(10)
        return ELF

    monkeypatch.setattr(compiler, "run_compiler", slow)
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(compile_cubin, SOURCE, "sm_90") for _ in range(8)]
        assert started.wait(10)
        time.sleep(0.05)
        go.set()
        assert {a.result() for a in answers} == {ELF}
    assert compiled == [SOURCE]


def test_whoever_asks_finds_the_cubin_in_the_own_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where two compilations with a cache each want the same one at the same time."""
    both = threading.Barrier(2)

    def slow(source: str, flags: object) -> bytes:
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(1.0)
        return ELF

    monkeypatch.setattr(compiler, "run_compiler", slow)
    shelves = Shelf(), Shelf()
    with ThreadPoolExecutor(2) as pool:
        assert set(pool.map(lambda shelf: compile_cubin(SOURCE, "sm_90", store=shelf), shelves)) == {ELF}
    assert [list(shelf.kept.values()) for shelf in shelves] == [[ELF], [ELF]]


def test_the_compiler_is_here() -> None:
    version = compiler_version()
    assert isinstance(version, tuple)
    assert version >= (13, 0)


def test_missing_bindings_are_named_with_their_package() -> None:
    """In a process of its own; the missing library itself is the matter of test_hidden.py."""
    code = (
        "import sys; sys.modules['cuda.bindings'] = None\n"
        "from graphdnn.engines.nvrtc.compile import compile_cubin\n"
        "answer = compile_cubin('', 'sm_90')\n"
        "print(answer.code, answer.reason, answer.fix, sep='\\n')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    kind, reason, fix = done.stdout.splitlines()
    assert kind == "setup"
    assert "cuda-bindings" in reason
    assert "cuda-python" in reason
    assert "cuda-python" in fix


def test_machines_that_cannot_run_the_kernels_are_declined() -> None:
    g = gd.GraphBuilder()
    region = whole(g.build({"y": g.relu(g.input("x", (4, 6), gd.float16))}))
    old = replace(Target.named("h200"), compute_capability=(7, 5))
    for target in (Target.cpu(), old):
        answer = NvrtcEngine().supports(region, target, Policy())
        assert isinstance(answer, Decline)
        assert answer.code == Code.ARCHITECTURE


def test_an_op_without_a_kernel_is_named() -> None:
    class Unheard(Op):
        kind = "unheard"

        def infer(self, *operands: gd.TensorType) -> tuple[gd.TensorType, ...]:
            return operands

        def reference(self, *operands: object) -> tuple[object, ...]:  # type: ignore[override]
            return operands

    answer = without_family({Unheard})
    assert answer.code == Code.OP
    assert "unheard" in answer.reason
