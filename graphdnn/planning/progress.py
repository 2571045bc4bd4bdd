"""What is seen of timing while it goes on: one line on a terminal with region, candidates, best time and budget."""

from __future__ import annotations

import sys
from typing import Any

from graphdnn.engines.tune import Progress


class ProgressLine:
    """A rich progress bar on standard error, drawn when there is first something to show."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None

    def show(self, progress: Progress) -> None:
        """Draws how far timing has come."""
        if self._bar is None:
            self._bar, self._task = started()
        best = "" if progress.best_us is None else f"best {progress.best_us:.1f} us"
        left = "" if progress.left_s is None else f"{progress.left_s:.0f} s left"
        self._bar.update(
            self._task,
            completed=progress.number - 1,
            total=progress.total,
            region=progress.pattern[:40],
            candidates=f"candidate {progress.candidate} of {progress.candidates}",
            plan=progress.plan,
            best=best,
            left=left,
        )

    def close(self) -> None:
        """Takes the bar away."""
        if self._bar is not None:
            self._bar.stop()


def started() -> tuple[Any, Any]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    fields = ("region", "candidates", "best", "left", "plan")  # what does not fit in the line ends on the right
    columns = [TextColumn("{task.fields[" + name + "]}", markup=False) for name in fields]
    bar = Bar(BarColumn(20), MofNCompleteColumn(), *columns, console=Console(stderr=True), transient=True)
    task = bar.add_task("timing", total=None, region="", candidates="", best="", left="", plan="")
    bar.start()
    return bar, task


def watcher(wanted: bool | None) -> ProgressLine | None:
    """What shows the progress where it is wanted: as told, else where standard error is a terminal."""
    return ProgressLine() if wanted or (wanted is None and sys.stderr.isatty()) else None
