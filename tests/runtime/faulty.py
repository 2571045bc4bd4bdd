"""An engine whose plans do, by their name, what a faulting kernel or library does to a process."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from graphdnn.answer import Code, Decline
from graphdnn.engines.contract import Candidate, Device, Policy, Support
from graphdnn.engines.reference import ReferenceEngine, ReferencePlan
from graphdnn.errors import ContextLostError, OutOfMemoryError
from graphdnn.ir.region import Region
from graphdnn.ir.types import Array
from graphdnn.runtime.child import Parent
from graphdnn.target import Target

SHELF = "FAULTY_SHELF"
PLACE = "tests.runtime.faulty:FaultyEngine"


def lose() -> None:
    raise ContextLostError("the CUDA context is lost: CUDA_ERROR_ILLEGAL_ADDRESS")


def find_no_memory(where: type[Exception]) -> None:
    raise where("512 bytes were asked for")


def fail() -> None:
    raise RuntimeError("not even an error of ours")


def chatter() -> None:
    """More than a pipe holds, on both streams and past Python's own buffers."""
    for _ in range(3000):
        print("a library says hello " * 4)
        print("and warns " * 4, file=sys.stderr)
    os.write(1, b"\x00\xff" * 1000)


def garble() -> None:
    """Writes into every pipe of the process."""
    for number in range(3, 64):
        with contextlib.suppress(OSError):
            if stat.S_ISFIFO(os.fstat(number).st_mode):
                os.write(number, b"\xff" * 4096)


def import_torch(parent: Parent) -> None:
    """A child's work: tries to import torch."""
    parent.receive()
    try:
        importlib.import_module("torch")
        found = True
    except ImportError:
        found = False
    parent.send({"found": found, "loaded": "torch" in sys.modules})


def leave_another_behind() -> None:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(5)"])
    os.abort()


DEEDS: dict[str, Callable[[], object]] = {
    "abort": os.abort,
    "crash": lambda: ctypes.string_at(0),
    "raise": fail,
    "lose": lose,
    "exit": lambda: sys.exit(3),
    "out of device memory": lambda: find_no_memory(OutOfMemoryError),
    "out of host memory": lambda: find_no_memory(MemoryError),
    "vanish": lambda: os._exit(0),
    "hang": lambda: time.sleep(600),
    "hang in a library": lambda: ctypes.PyDLL(None).sleep(600),
    "chatter": chatter,
    "garble": garble,
    "starve": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "leave another behind": leave_another_behind,
    "good": lambda: None,
}


@dataclass(frozen=True)
class FaultyPlan:
    """Looks at what it is given, then does its deed."""

    region: Region
    deed: str
    workspace_bytes: int = 512

    def enqueue(self, addresses: Sequence[int], stream: int, workspace: int) -> None:
        values = (*self.region.inputs, *self.region.outputs)
        wanted = [*self.region.alignments, *(16 for _ in self.region.outputs)]
        for address, value, alignment in zip(addresses, values, wanted, strict=True):
            if ctypes.string_at(address, value.type.span_bytes).strip(b"\0"):
                raise ValueError(f"the memory of {value} is not zero")
            if address % (2 * alignment) != alignment:
                raise ValueError(f"{value} lies at {address:#x}; no better than at multiples of {alignment} is needed")
        if workspace % 256:
            raise ValueError("the workspace is not aligned")
        DEEDS[self.deed]()


class FaultyEngine:
    """Plans by name; "in build abort" aborts while it is built, "on the host raise" in a plan that takes arrays."""

    name = "faulty"

    def supports(self, region: Region, target: Target, policy: Policy) -> Support | Decline:
        return Support(0.0, "as each node's type")

    def named(self, region: Region, name: str, device: Device, policy: Policy) -> Candidate | Decline:
        if policy != Policy("tf32", True, 1 << 20):
            raise ValueError(f"the policy arrived as {policy}")
        return Candidate(self.name, region, name, 0, "float32")

    def build(self, candidate: Candidate, device: Device) -> FaultyPlan | ReferencePlan | Decline:
        if candidate.name == "not built":
            return Decline(Code.BUILD, "it needs 300 registers")
        if candidate.name.startswith("in build "):
            DEEDS[candidate.name.removeprefix("in build ")]()
        if candidate.name == "on the host":
            return ReferencePlan(candidate.region)
        if candidate.name == "hungry":
            return FaultyPlan(candidate.region, "good", 1 << 60)
        return FaultyPlan(candidate.region, candidate.name.removeprefix("in build "))


class StoringReference(ReferenceEngine):
    """The CPU's engine, which leaves each plan that it builds on the shelf, a directory; it has one of any name."""

    def named(self, region: Region, name: str, device: Device, policy: Policy) -> Candidate | Decline:
        return Candidate(self.name, region, name, 0, "float32")

    def build(self, candidate: Candidate, device: Device) -> ReferencePlan:
        (Path(os.environ[SHELF]) / candidate.name).write_text(str(os.getpid()))
        return super().build(candidate, device)


class FaultyReference(ReferenceEngine):
    """The CPU's engine, whose plans with a tanh do the deed that FAULTY_DEED names, in the phase of FAULTY_PHASE; those
    that do it when they run do so on numbers other than zero."""

    def build(self, candidate: Candidate, device: Device) -> ReferencePlan:
        if "tanh" in candidate.region.pattern:
            if os.environ.get("FAULTY_PHASE") == "build":
                DEEDS[os.environ["FAULTY_DEED"]]()
            return LaterFaultyPlan(candidate.region)
        return super().build(candidate, device)


class LaterFaultyPlan(ReferencePlan):
    def run(self, inputs: Sequence[Array]) -> Sequence[Array]:
        if any(a.any() for a in inputs):
            DEEDS[os.environ["FAULTY_DEED"]]()
        return super().run(inputs)


class FaultyHostPlan(ReferencePlan):
    def run(self, inputs: Sequence[Array]) -> Sequence[Array]:
        DEEDS[os.environ["FAULTY_DEED"]]()
        return super().run(inputs)


class UnknownReference(ReferenceEngine):
    """The CPU's engine, which prefers a plan that nobody has run: it does the deed that FAULTY_DEED names."""

    def candidates(self, region: Region, device: Device, policy: Policy) -> Sequence[Candidate]:
        (known,) = super().candidates(region, device, policy)
        return replace(known, name="unknown", is_known=False), known

    def named(self, region: Region, name: str, device: Device, policy: Policy) -> Candidate | Decline:
        return next(c for c in self.candidates(region, device, policy) if c.name == name)

    def build(self, candidate: Candidate, device: Device) -> ReferencePlan:
        return FaultyHostPlan(candidate.region) if candidate.name == "unknown" else super().build(candidate, device)
