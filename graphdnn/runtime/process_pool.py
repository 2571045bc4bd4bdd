"""Building plans in several child processes, for a library that holds Python's lock while it compiles.

What a child built lies in the device's store, where this process reads it in milliseconds.  Nobody waits for what no
child has begun: `cancel` an order and build the plan here.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from queue import Empty, SimpleQueue

from graphdnn.answer import Code, Decline
from graphdnn.engines.contract import Device, Policy
from graphdnn.errors import GraphDnnError
from graphdnn.ir.graph import Graph
from graphdnn.ir.region import Region
from graphdnn.runtime.child import Child, Ended
from graphdnn.runtime.probe import PROBE_SECONDS, WORK, asked

MOST_CHILDREN = 6

MEMORY = 8 << 30
"""Bytes of device memory for each child, of which its context takes some hundred megabytes."""

MOST_DEATHS = 3
"""Children that one thread starts anew; after that this process builds alone."""

Pending = Future[Decline | None]
"""A plan to be built: None where it may be built here too, else why not."""


def children_for(cores: int, memory_bytes: int) -> int:
    """How many children pay beside this process, and leave room on the device."""
    return min(MOST_CHILDREN, cores // 2, memory_bytes // MEMORY)


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ProcessPool:
    """Children that build plans of those engines that `engines` says the place of, as "module:attribute".

    They are started at the first order, in the background, and end with `close`.
    """

    def __init__(
        self,
        engines: Mapping[str, str],
        device: Device,
        policy: Policy,
        count: int | None = None,
        seconds: float = PROBE_SECONDS,
    ) -> None:
        self._engines = engines
        self._device = device
        self._policy = policy
        self._count = children_for(cores(), device.target.memory_bytes) if count is None else count
        self._seconds = seconds
        self._orders: SimpleQueue[tuple[Pending, Region, str, str] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._children: set[Child] = set()
        self._lock = threading.Lock()
        self._closed = False

    def takes(self, engine: str) -> bool:
        """Whether plans of this engine may be ordered: what is built elsewhere must be found here through the store."""
        return bool(self._count) and engine in self._engines and bool(getattr(self._device.store, "directory", ""))

    def order(self, region: Region, engine: str, plan: str) -> Pending:
        """Has a plan built, unless the order is cancelled before a child begins."""
        order: Pending = Future()
        self._orders.put((order, region, engine, plan))
        if not self._threads:
            self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(self._count)]
            for thread in self._threads:
                thread.start()
        return order

    def close(self) -> None:
        """Ends the children, whatever they are doing; orders that nobody began are cancelled.

        A child that is about to start is not waited for: it ends by itself.
        """
        with self._lock:
            self._closed = True
            children = list(self._children)
        with contextlib.suppress(Empty):  # and no look before: a thread may take the last one in between
            while (left := self._orders.get_nowait()) is not None:
                left[0].cancel()
        for _ in self._threads:
            self._orders.put(None)
        for child in children:
            child.kill()

    def _work(self) -> None:
        """One thread's life: it has a child, and hands it order by order."""
        for _ in range(MOST_DEATHS):
            child = self._started()
            if child is None or not self._serve(child):
                return

    def _started(self) -> Child | None:
        child = Child.start(WORK)
        if isinstance(child, Ended):
            return None
        with self._lock:
            if not self._closed:
                self._children.add(child)
                return child
        child.close()
        return None

    def _serve(self, child: Child) -> bool:
        """Hands orders to a child; whether it died over one and another child may do better."""
        sent: Graph | None = None
        try:
            while (entry := self._orders.get()) is not None:
                order, region, engine, plan = entry
                if not order.set_running_or_notify_cancel():
                    continue
                answer: dict[str, object] | Ended | None = None
                try:
                    question = asked(region, self._engines[engine], plan, self._policy, self._device, sent, runs=False)
                    answer = child.ask(question, self._seconds)
                except GraphDnnError:  # a graph that cannot be written down
                    return False
                finally:
                    order.set_result(self._fault(answer, engine, plan))
                if isinstance(answer, Ended) or answer["verdict"] == "failed":
                    return not self._closed
                if answer["verdict"] == "unable":
                    return False
                sent = region.graph
        finally:
            with self._lock:
                self._children.discard(child)
            child.close()
        return False

    def _fault(self, answer: dict[str, object] | Ended | None, engine: str, plan: str) -> Decline | None:
        """Why a plan is not to be built here: a child died of it.  All else is found out here again."""
        if not isinstance(answer, Ended) or answer.by_chance or self._closed:
            return None
        return Decline(Code.BUILD, f"plan {plan} of {engine} could not be built in a child process: {answer.how}")
