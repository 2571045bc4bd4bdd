"""Executable: a compiled graph as the user holds it, a runtime Program together with its report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from threading import Lock
from typing import Any, Self

from graphdnn.errors import ExecutionError
from graphdnn.forking import renew_in_children
from graphdnn.ir.graph import Graph
from graphdnn.planning.decisions import Compilation
from graphdnn.report.explain import explain
from graphdnn.report.model import CompileReport
from graphdnn.runtime.program import Program
from graphdnn.spelling import counted


class LazyReport:
    """A report that is written when first asked for, by whichever thread: many are never read."""

    def __init__(self, write: Callable[[], CompileReport]) -> None:
        self._write: Callable[[], CompileReport] | None = write
        self._written: CompileReport | None = None
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Makes the lock anew."""
        self._lock = Lock()

    def __call__(self) -> CompileReport:
        with self._lock:
            if self._written is None:
                assert self._write is not None
                self._written, self._write = self._write(), None
            return self._written

    def changed(self, change: Callable[[CompileReport], CompileReport]) -> LazyReport:
        """The report as `change` makes it of this one."""
        return LazyReport(lambda: change(self()))


class Executable:
    """A compiled graph.  Call it with arrays by input name; `explain()` and `report` say what was decided and why."""

    def __init__(self, graph: Graph, report: LazyReport, program: Program | None, compilation: Compilation) -> None:
        self.graph = graph
        self._report = report
        self._program = program
        self.compilation = compilation

    @property
    def report(self) -> CompileReport:
        """What was decided and why, as data; written when first asked for."""
        return self._report()

    def with_report(self, change: Callable[[CompileReport], CompileReport]) -> Executable:
        """The same executable, with its report as `change` makes it."""
        return Executable(self.graph, self._report.changed(change), self._program, self.compilation)

    def __call__(self, inputs: Mapping[str, Any], *, stream: object = None) -> dict[str, Any]:
        """Outputs by name, on `stream` (an int or an object with `__cuda_stream__`; the legacy default stream if None).

        numpy arrays give numpy arrays; arrays on the device go in without a copy and give DeviceArrays.
        Raises ExecutionError naming an input that is missing, extra, or of the wrong type or shape.
        """
        return self._present().run(inputs, stream=stream)

    def bind(
        self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None
    ) -> Callable[..., dict[str, Any]]:
        """A callable for these very arrays: each call reads them as they are then and overwrites the same outputs.

        Raises ExecutionError where an array does not fit, where an output has an element in common with an input or
        another output, and while a stream is being captured; the callable itself may be called then.
        """
        return self._present().bind(inputs, outputs)

    def context(self) -> Executable:
        """The same plans with scratch memory and states of their own, for another thread or stream.

        It is an executable too, and closed by itself: `with exe.context() as own: ...`.
        """
        return Executable(self.graph, self._report, self._present().context(), self.compilation)

    def close(self) -> None:
        """Lets go of this context's scratch memory and states; whatever is called here later, bound calls too, raises
        ExecutionError.  `with gd.compile(...) as exe: ...` does so at its end.  Closing again does nothing.

        Other contexts go on, as do outputs that were handed out, and CUDA graphs of the caller's that captured a bound
        call: what they replay stays valid for as long as they live.  Where the driver cannot tell how long that is (on
        Windows) it stays valid until the context is closed, and no longer.
        """
        if self._program is not None:
            self._program.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def state(self) -> MutableMapping[str, Any]:
        """Current values of the graph's states by name: what is read is a copy, what is assigned is taken over."""
        return self._present().state

    def explain(self) -> str:
        """The report as text: what fused, what did not, why not, and what change would make it fuse."""
        return explain(self.report)

    def save(self, path: str | Path) -> None:
        """Writes graph, weights, plans and report into one file that `graphdnn.load` runs without compiling again.

        Current values of states are not in it.  Raises ExecutionError for a device that was only described: there are
        no plans to save.
        """
        from graphdnn.serialization.kinds import path_of
        from graphdnn.serialization.save import save

        self._present()
        save(self.graph, self.report, self.compilation, path_of("save: path", path))

    def save_lock(self, path: str | Path) -> None:
        """Writes the regions, engines and plans as text, for `compile(..., lock=path)` to take them again.

        Of a device that was only described it has the regions and engines.
        """
        from graphdnn.serialization.kinds import path_of
        from graphdnn.serialization.lock import write_lock

        write_lock(self.report, self.compilation, path_of("save_lock: path", path))

    def __reduce__(self) -> Any:
        raise ExecutionError(
            f"the executable of graph {self.graph.name} cannot be pickled or copied; save and graphdnn.load carry it "
            "to another process, and context gives another one here"
        )

    def __repr__(self) -> str:
        """One line, without the report, which may be long in the making."""
        picks = self.compilation.picks
        runs = counted(len(picks), "region")
        if all(pick.chosen is not None for pick in picks):
            runs = f"{counted(sum(pick.chosen.kernels for pick in picks if pick.chosen), 'kernel')} in {runs}"
        return f"<Executable {self.graph.name} for {self.compilation.target}: {runs}; {self.graph.signature}>"

    def _present(self) -> Program:
        if self._program is None:
            raise ExecutionError(
                f"graph {self.graph.name} was planned for {self.compilation.target}, which is not here; "
                'compile it with target="auto" to run it on this machine'
            )
        return self._program
