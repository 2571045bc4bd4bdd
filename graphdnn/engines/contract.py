"""The protocols between the layers: what an engine is, what it answers, and what it may ask of a machine.

Engines implement `Engine`, `DevicePlan` or `HostPlan`; the runtime implements `Device`, `Store`, `Timer` and `Prober`;
compiler.py hands them to each other.  Passes see engines only as a function from region to answers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from graphdnn.answer import Decline
from graphdnn.ir.region import Region
from graphdnn.ir.types import Array
from graphdnn.target import Target

MEMORY_ALIGNMENT = 256
"""Bytes at whose multiples memory of a device starts, and each tensor and workspace that shares a piece of it: what
cuDNN asks of workspaces, and more than any vector load needs."""


def aligned(nbytes: int) -> int:
    """The next multiple of MEMORY_ALIGNMENT."""
    return -(-nbytes // MEMORY_ALIGNMENT) * MEMORY_ALIGNMENT


Precision = Literal["ieee", "tf32", "reduced"]


@dataclass(frozen=True)
class Policy:
    """Those of the user's options that engines see; CompileOptions (config.py) has all."""

    precision: Precision = "ieee"
    deterministic: bool = False
    workspace_limit: int | None = None


@dataclass(frozen=True)
class Support:
    """An engine's "yes": what the region would cost here, estimated from a roofline.

    `precision` is what the arithmetic really is ("float32", "tf32", "float16 in, float32 accumulate", ...).
    `last_resort` marks a correct kernel that exists so that every graph runs, not to be fast.  `in_place` are pairs of
    input and output indices that may share memory; several at once where no index is in two of them.  `estimated_us`
    is of the best plan; where the engine's own order of plans is known not to be trusted, `untimed_us` is what its
    first one may take.  `in_place_us` is what it takes where the pairs do share memory, if less is moved then.
    """

    estimated_us: float
    precision: str
    kernels: int = 1
    workspace_bytes: int = 0
    deterministic: bool = True
    last_resort: bool = False
    notes: tuple[str, ...] = ()
    in_place: tuple[tuple[int, int], ...] = ()
    untimed_us: float | None = None
    in_place_us: float | None = None


@dataclass(frozen=True)
class Candidate:
    """One concrete plan that an engine proposes on a device, not built yet.  `recipe` is the engine's own.

    `is_known` is False where no committed run stands behind such plans here, so that one might fault.
    """

    engine: str
    region: Region
    name: str
    workspace_bytes: int
    precision: str
    deterministic: bool = True
    notes: tuple[str, ...] = ()
    recipe: Any = field(default=None, compare=False)
    is_known: bool = True


class DevicePlan(Protocol):
    """A built plan on a device.  Running it neither allocates nor copies nor waits."""

    @property
    def workspace_bytes(self) -> int: ...

    def enqueue(self, addresses: Sequence[int], stream: int, workspace: int) -> None:
        """Puts the work on a stream.  `addresses` are device addresses of the region's inputs, then its outputs, in
        the region's order; `workspace` is the address of `workspace_bytes` aligned to MEMORY_ALIGNMENT.

        Raises ExecutionError where the library or the driver refuses it."""


@runtime_checkable
class HostPlan(Protocol):
    """A built plan in host memory."""

    def run(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """The region's outputs, in the region's order, from its inputs."""


Plan = DevicePlan | HostPlan
"""A built plan.  One that works right where an input and an output are the same memory says so in an attribute
`in_place`, pairs of their indices as in Support; without that attribute there are none."""


class Store(Protocol):
    """A cache of bytes by key, on disk; entries may vanish at any time."""

    def get(self, kind: str, key: str) -> bytes | None: ...

    def put(self, kind: str, key: str, content: bytes) -> None: ...

    def drop(self, kind: str, key: str) -> None:
        """Removes an entry that turned out to be of no use."""


def forget(store: Store, kind: str, key: str, what: str, reason: str) -> None:
    """Drops an entry of a store that is of no use, with a warning."""
    store.drop(kind, key)
    warnings.warn(f"a cached {what} is dropped and asked for anew: {reason}", RuntimeWarning, stacklevel=3)


class Captured(Protocol):
    """Recorded work, as far as engines need to know of it."""

    @property
    def kernels(self) -> int:
        """Kernels that running it once launches."""


class Device(Protocol):
    """A present device, as engines need it: what it is, scratch for a trial run, and where to cache.

    `with device:` makes it the current one of this thread, which building needs.
    """

    def __enter__(self) -> Any: ...

    def __exit__(self, *_: object) -> None: ...

    @property
    def target(self) -> Target: ...

    @property
    def store(self) -> Store: ...

    @property
    def stream(self) -> int:
        """Address of a stream of our own, for building and trial runs."""

    def allocate(self, nbytes: int) -> Any:
        """Device memory aligned to MEMORY_ALIGNMENT, with `.handle` (its address as an int) and `.close()`."""

    def fill(self, target: int, byte: int, nbytes: int, stream: int) -> None:
        """Sets memory to one byte, in the order of a stream."""

    def capture(self, issue: Callable[[int], None]) -> Captured:
        """Records what `issue(stream)` puts on a stream, without running it."""

    def capturing(self) -> AbstractContextManager[int]:
        """A stream for a capture of ours, which no other one may meet, nor a wait for the whole device."""

    def synchronize(self) -> None:
        """Waits for `stream`.  Raises ExecutionError for an error of the device."""


@dataclass(frozen=True)
class Timing:
    """Median microseconds of one run; `is_dropped` where the first runs were so slow that no more were made.  `kernels`
    are those that one run launches."""

    us: float
    is_dropped: bool = False
    kernels: int = 1


class Bench(Protocol):
    """One region's data on a machine: several sets of inputs and outputs, in turn, so that no cache holds them all."""

    def results(self, plan: Plan) -> Sequence[Array]:
        """The outputs of one run, into memory that was NaN before and may be used again by the next call.

        Raises ExecutionError where it fails, and TuningMemoryError as `measure` does.
        """

    def measure(self, plan: Plan, best_us: float) -> Timing:
        """What one run takes; given up early where that is far above `best_us`.  Raises ExecutionError, below it
        TuningMemoryError where the plan needs more memory than may be used."""

    def close(self) -> None:
        """Gives the memory back."""


class Timer(Protocol):
    """Runs plans on given data and times them; see runtime/timing.py."""

    def bench(self, region: Region, inputs: Sequence[Array]) -> Bench | Decline:
        """Memory for the region with these inputs, or why there is not enough."""


class Prober(Protocol):
    """Tries plans that might fault where a fault does not matter: in another process."""

    def probe(
        self, region: Region, engine: str, plan: str, is_over: Callable[[], bool] | None = None
    ) -> Decline | None:
        """None where the plan built and ran, else what became of it: `transient` where that was not known when
        `is_over` came true."""


class Engine(Protocol):
    """A way to run regions.  `supports` is cheap and needs no device; the others do."""

    @property
    def name(self) -> str: ...

    def supports(self, region: Region, target: Target, policy: Policy) -> Support | Decline:
        """Whether a plan exists on such a machine, by rules written down, and its estimated cost."""

    def candidates(self, region: Region, device: Device, policy: Policy) -> Sequence[Candidate] | Decline:
        """The concrete plans, best first by the engine's own heuristics."""

    def build(self, candidate: Candidate, device: Device) -> Plan | Decline:
        """The plan made ready to run, or why it could not be."""

    def named(self, region: Region, name: str, device: Device, policy: Policy) -> Candidate | Decline:
        """The concrete plan of this name, without asking heuristics: what a lock file or a remembered choice names."""

    def save(self, candidate: Candidate, plan: Plan) -> bytes:
        """What `restore` needs to make this plan again on an equal device: no choice, no compilation."""

    def restore(self, candidate: Candidate, content: bytes, device: Device) -> Plan | Decline:
        """The plan made again from what `save` gave; `candidate.recipe` may be None.  Content is checked before
        anything of it is executed."""
