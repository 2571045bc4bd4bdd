"""CUDA graphs: captured from a stream, counted by kind of node, launched with one call."""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from graphdnn.relaxed import relaxed
from graphdnn.runtime.driver import LEGACY_STREAM

if TYPE_CHECKING:
    from graphdnn.runtime.device import CudaDevice

KERNEL, CHILD = "KERNEL", "GRAPH"
"""Kinds of nodes that are looked at, as the driver's names end."""


class CapturedGraph:
    """An executable graph.  It holds addresses: what it reads and writes must outlive it (`owner` keeps it so)."""

    def __init__(self, device: CudaDevice, graph: Any) -> None:
        self._device = device
        bindings = device.driver
        self._launch = bindings.cuGraphLaunch
        self._legacy = bindings.CUstream(LEGACY_STREAM)
        self.counts = count_nodes(device, graph)
        self.executable = device.check("make a captured graph executable", bindings.cuGraphInstantiate(graph, 0))
        self.try_default = functools.partial(self._launch, self.executable, self._legacy)
        """The bare driver call for the legacy default stream: a tuple whose first element is 0, or an error."""
        self._finalizer = weakref.finalize(self, destroy, bindings.cuGraphExecDestroy, self.executable)
        self._finalizer.atexit = False

    @property
    def kernels(self) -> int:
        """Kernels that one launch runs; copies and memsets do not count."""
        return self.counts[KERNEL]

    def launch(self, stream: Any) -> None:
        """Puts the whole graph on a stream."""
        # A stream as a bare number is wrapped at each call, which the most common one need not be.
        result = self._launch(self.executable, self._legacy if stream == LEGACY_STREAM else stream)
        if result[0]:
            self._device.check("launch a graph", result)


def destroy(destructor: Callable[[Any], object], executable: Any) -> None:
    """Gives an executable graph back to the driver, at whatever moment nobody holds it any more."""
    with relaxed():
        destructor(executable)


def capture(device: CudaDevice, issue: Callable[[int], None]) -> CapturedGraph:
    """Records what `issue(stream)` puts on a stream of our own, without running it.

    The mode is thread-local: other threads may allocate and wait meanwhile.  A failure in `issue` ends the capture.
    """
    bindings = device.driver
    with device, device.capturing() as stream:
        mode = bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        device.check("begin a capture", bindings.cuStreamBeginCapture(stream, mode))
        try:
            issue(stream)
        except BaseException:
            graph = bindings.cuStreamEndCapture(stream)[1]
            if graph is not None and int(graph):
                bindings.cuGraphDestroy(graph)
            raise
        graph = device.check("end a capture", bindings.cuStreamEndCapture(stream))
        try:
            return CapturedGraph(device, graph)
        finally:
            bindings.cuGraphDestroy(graph)


def count_nodes(device: CudaDevice, graph: Any) -> Counter[str]:
    """Nodes of a graph by kind (the driver's name without its prefix), those of child graphs included."""
    bindings = device.driver
    _, number = _nodes(device, graph, 0)
    nodes, _ = _nodes(device, graph, number)
    counts: Counter[str] = Counter()
    for node in nodes[:number]:
        kind = device.check("read a graph", bindings.cuGraphNodeGetType(node))
        name = kind.name.removeprefix("CU_GRAPH_NODE_TYPE_")
        if name == CHILD:
            child = device.check("read a graph", bindings.cuGraphChildGraphNodeGetGraph(node))
            counts += count_nodes(device, child)
        else:
            counts[name] += 1
    return counts


def _nodes(device: CudaDevice, graph: Any, number: int) -> tuple[list[Any], int]:
    result = device.driver.cuGraphGetNodes(graph, number)
    device.check("read a graph", result)
    return result[1], int(result[2])
