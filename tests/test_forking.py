"""A child forked while threads are at work: what they held or had begun does not keep it waiting."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

START = """
import os, signal, threading, warnings
import numpy as np
import graphdnn as gd

warnings.simplefilter("ignore")  # that threads are there is the point
parent, begun, go_on = os.getpid(), threading.Event(), threading.Event()
x = {"x": np.ones((2, 3), np.float32)}
"""

FORK = """
pid = os.fork()
if pid == 0:
    signal.alarm(30)  # ends a child that waits for ever
    work()
    os._exit(0)
status = os.waitpid(pid, 0)[1]
go_on.set()
thread.join()
print(status)
"""

CALL = """
g = gd.GraphBuilder("small")
work = lambda exe=gd.compile(g.build({"y": g.relu(g.input("x", (2, 3), gd.float32))}), target="cpu"): exe(x)
from graphdnn.runtime.host import HostContext

compute = HostContext._value
def slow(self, *given):
    if os.getpid() == parent:
        begun.set()
        go_on.wait()
    return compute(self, *given)

HostContext._value = slow
thread = threading.Thread(target=work)
thread.start()
begun.wait()
"""

BUILD = """
def relu(g, x):
    if os.getpid() == parent:
        begun.set()
        go_on.wait()
    return {"y": g.relu(x)}

work = lambda f=gd.jit(relu, target="cpu"): f(x)
thread = threading.Thread(target=work)
thread.start()
begun.wait()
"""


COMPILE = """
from graphdnn.engines.answers import ANSWERS

g = gd.GraphBuilder("small")
graph = g.build({"y": g.relu(g.input("x", (2, 3), gd.float32))})
work = lambda: gd.compile(graph, gd.Target.named("h200")).report
def hold():
    with ANSWERS._lock:
        begun.set()
        go_on.wait()

thread = threading.Thread(target=hold)
thread.start()
begun.wait()
"""

PROPERTY = """
from graphdnn.ir.region import Region

def graph(width):
    g = gd.GraphBuilder("small")
    return g.build({"y": g.relu(g.input("x", (2, width), gd.float32))})

work = lambda: gd.compile(graph(3), target="cpu")(x)
work()  # once, for what is imported on the way
key = Region.__dict__["key"]
compute = key._compute
def slow(region):
    if os.getpid() == parent:
        begun.set()
        go_on.wait()
    return compute(region)

key._compute = slow
thread = threading.Thread(target=lambda: gd.compile(graph(4), target="cpu"))
thread.start()
begun.wait()
"""
"""A thread that works out what a region keeps of itself."""

OPEN = """
from types import SimpleNamespace
from graphdnn.errors import ContextLostError
from graphdnn.runtime import device as module

found = object.__new__(module.CudaDevice)
found._shared, found.name = module._Shared(), "stand-in"
module.driver = lambda: SimpleNamespace(cuCtxGetDevice=lambda: (1, 0), cuDeviceGetCount=lambda: (0, 1))
module.CudaDevice._opened[0] = found
def work():
    try:
        gd.compile(graph, target="cuda")
    except ContextLostError as error:
        assert "forked after CUDA had been used" in str(error)
        return
    raise AssertionError

g = gd.GraphBuilder("small")
graph = g.build({"y": g.relu(g.input("x", (2, 3), gd.float32))})
def hold():
    with module.CudaDevice._lock:
        begun.set()
        go_on.wait()

thread = threading.Thread(target=hold)
thread.start()
begun.wait()
"""
"""A thread that opens a device, beside one that is open."""


@pytest.mark.parametrize(
    "script", [CALL, BUILD, COMPILE, PROPERTY, OPEN], ids=["call", "build", "compile", "property", "open"]
)
def test_a_child_does_not_wait_for_threads_that_it_does_not_have(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", START + script + FORK], capture_output=True, text=True, cwd=ROOT, timeout=120
    )
    assert (done.stdout.strip(), done.stderr) == ("0", "")
