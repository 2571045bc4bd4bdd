"""Executable: a compiled graph as the user holds it, a runtime Program together with its report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from graphdnn.errors import ExecutionError
from graphdnn.explain import explain
from graphdnn.ir.graph import Graph
from graphdnn.report import CompileReport
from graphdnn.runtime.program import Program


class Executable:
    """A compiled graph.  Call it with arrays by input name; `explain()` and `report` say what was decided and why."""

    def __init__(self, graph: Graph, report: CompileReport, program: Program | None) -> None:
        self.graph = graph
        self.report = report
        self._program = program

    def __call__(self, inputs: Mapping[str, Any], *, stream: object = None) -> dict[str, Any]:
        """Outputs by name, on `stream` (an int or an object with `__cuda_stream__`; the legacy default stream if None).

        numpy arrays give numpy arrays; arrays on the device go in without a copy and give DeviceArrays.
        Raises ExecutionError naming an input that is missing, extra, or of the wrong type or shape.
        """
        return self._present().run(inputs, stream=stream)

    def bind(
        self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None
    ) -> Callable[..., dict[str, Any]]:
        """A callable for these very arrays: each call reads them as they are then and overwrites the same outputs."""
        return self._present().bind(inputs, outputs)

    def context(self) -> Executable:
        """The same plans with scratch memory and states of their own, for another thread or stream."""
        return Executable(self.graph, self.report, self._present().context())

    @property
    def state(self) -> MutableMapping[str, Any]:
        """Current values of the graph's states by name, readable and assignable."""
        return self._present().state

    def explain(self) -> str:
        """The report as text: what fused, what did not, why not, and what change would make it fuse."""
        return explain(self.report)

    def _present(self) -> Program:
        if self._program is None:
            raise ExecutionError(
                f"graph {self.graph.name} was planned for {self.report.target}, which is not here; "
                'compile it with target="auto" to run it on this machine'
            )
        return self._program
