"""What a closed context answers: whoever asks for its lock is told so, which costs the calls of open ones nothing."""

from __future__ import annotations

from contextlib import AbstractContextManager

from graphdnn.errors import ExecutionError

ContextLock = AbstractContextManager[object]
"""What admits one call of a context at a time."""


class ClosedLock:
    """The lock of a context of graph `name` that was closed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        """Raises ExecutionError."""
        raise ExecutionError(
            f"graph {self._name} was used in a context that was closed; another context, or the graph compiled or "
            "loaded anew, is needed"
        )

    def __exit__(self, *_: object) -> None:
        """Nobody gets here."""


def check_open(lock: ContextLock) -> None:
    """Raises ExecutionError where this is the lock of a closed context; waits for nobody."""
    if isinstance(lock, ClosedLock):
        lock.__enter__()
