"""A scheduled graph made ready to run on one device, and what a caller does with it: run, bind, contexts, states."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, Protocol, cast

from graphdnn.engines.contract import Device
from graphdnn.errors import ExecutionError
from graphdnn.ir.graph import Graph
from graphdnn.runtime.context import DeviceContext
from graphdnn.runtime.context_lock import ContextLock, check_open
from graphdnn.runtime.device import CudaDevice
from graphdnn.runtime.host import HostContext, HostGraph
from graphdnn.runtime.loaded_graph import Convert, LoadedGraph
from graphdnn.runtime.schedule import Schedule


class ExecutionContext(Protocol):
    """What a context of either kind does, one call at a time."""

    lock: ContextLock

    def run(self, inputs: Mapping[str, Any], stream: object | None) -> dict[str, Any]: ...

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None) -> Bound: ...

    def read_state(self, name: str) -> Any: ...

    def write_state(self, name: str, array: Any) -> None: ...

    def close(self) -> None: ...


class Bound(Protocol):
    """A call whose arrays are fixed."""

    def __call__(self, *, stream: object | None = None) -> dict[str, Any]: ...


class Program:
    """A graph with its built plans on a device, in one context: scratch memory and states of its own.

    A context runs one call at a time; calls from several threads take turns, and calls on several streams wait for
    each other on the device.  `context()` gives another one that shares plans and constants only.

    `convert(source, target)` builds a plan that copies a tensor into another layout; it is asked for when a caller's
    array has other strides than declared.
    """

    def __init__(self, graph: Graph, placed: Schedule, device: Device, convert: Convert | None = None) -> None:
        self.graph = graph
        self.schedule = placed
        self.device = device
        self._new: Callable[[], ExecutionContext]
        if device.target.kind == "cpu":
            host = HostGraph(graph, placed)
            self._new = lambda: HostContext(host)
        else:
            loaded = LoadedGraph(graph, placed, cast(CudaDevice, device), convert)
            self._new = lambda: DeviceContext(loaded)
        self._context: ExecutionContext = self._new()

    def __repr__(self) -> str:
        return f"<Program {self.graph.name} on {self.device.target}: {self.graph.signature}>"

    def run(self, inputs: Mapping[str, Any], stream: object | None = None) -> dict[str, Any]:
        """Outputs by name.  numpy in gives numpy out; arrays on the device give DeviceArrays, ready behind `stream`.

        Raises ExecutionError naming an input that is missing, extra, of another type or shape, or elsewhere.
        """
        return self._context.run(inputs, stream)

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None) -> Bound:
        """A callable for these very arrays.  Each call reads them as they are then, overwrites the same outputs and
        returns them; outputs that are not given are made here.  Without outputs, numpy inputs alone give numpy ones.

        A call inside the caller's own stream capture puts the plans into that graph; whatever it needs stays alive for
        as long as that graph may run, or until `close` where the driver cannot tell how long that is.
        """
        if not isinstance(outputs, Mapping | None):
            raise ExecutionError(
                f"outputs of graph {self.graph.name} are a {type(outputs).__name__}; a mapping from name to array is "
                "needed"
            )
        return self._context.bind(inputs, outputs)

    def context(self) -> Program:
        """The same plans and constants with scratch memory and states of their own, the states zero."""
        check_open(self._context.lock)
        other = object.__new__(Program)
        other.__dict__.update(self.__dict__)
        other._context = self._new()
        return other

    def close(self) -> None:
        """Ends this context, once the call that is running has been made: its scratch memory and states go, and what is
        asked of it later, by bound calls too, raises ExecutionError.  Twice does no more than once.

        Other contexts, outputs that were handed out, and graphs of the caller's that hold bound calls stay good.  Where
        the driver cannot tell how long such a graph lives, what it needs was kept until now, and it must not be
        replayed again.
        """
        self._context.close()

    @property
    def state(self) -> MutableMapping[str, Any]:
        """Current values of the states by name.  Reading gives a copy; assigning copies an array in."""
        return States(self)


class States(MutableMapping[str, Any]):
    """The states of one context as a mapping; its names are fixed."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def __repr__(self) -> str:
        states = self._program.graph.states
        held = ", ".join(f"{name} {value.type}" for name, value in states.items())
        return f"<states of {self._program.graph.name}: {held or 'none'}>"

    def __getitem__(self, name: str) -> Any:
        self._check(name)
        return self._program._context.read_state(name)

    def __setitem__(self, name: str, array: Any) -> None:
        self._check(name)
        self._program._context.write_state(name, array)

    def __delitem__(self, name: str) -> None:
        raise ExecutionError(
            f"state {name} of graph {self._program.graph.name} cannot be deleted; assign zeros to reset it"
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._program.graph.states)

    def __len__(self) -> int:
        return len(self._program.graph.states)

    def _check(self, name: str) -> None:
        graph = self._program.graph
        if name not in graph.states:
            known = ", ".join(graph.states) or "none"
            raise KeyError(f"{name} is not a state of graph {graph.name}; its states are {known}")
