"""Keeps things alive for as long as a caller's captured graph, or one made from it, may replay their addresses.

A CUDA user object calls a C function once the last graph that holds it is destroyed, in a thread of the driver's where
neither Python nor CUDA may be called.  So the function is the C library's own `sem_post`, and `sweep` looks later which
semaphores were posted.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any

SEMAPHORE_BYTES = 64
"""At least the size of a sem_t on every platform."""

REFERENCE_MOVES = 1
"""CU_GRAPH_USER_OBJECT_MOVE: the graph takes over our reference."""

DESTRUCTOR_IS_LATE = 1
"""CU_USER_OBJECT_NO_DESTRUCTOR_SYNC, the one flag that the driver accepts: nothing waits for the destructor."""


@functools.cache
def semaphores() -> Any:
    """The C library where it has POSIX semaphores, else None."""
    if sys.platform == "win32":
        return None
    library = ctypes.CDLL(None)
    if not hasattr(library, "sem_post"):
        return None
    library.calloc.restype = ctypes.c_void_p
    for function in (library.sem_init, library.sem_post, library.sem_getvalue, library.free):
        function.argtypes = [ctypes.c_void_p]
    library.sem_init.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint]
    library.sem_getvalue.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    return library


class Retentions:
    """What callers' graphs hold, until they are gone; and what had to be held without a graph, until `release`."""

    def __init__(self) -> None:
        self._by_graph: list[tuple[int, object]] = []
        self._until_released: dict[int, object] = {}

    def add(self, driver: Any, stream: int, thing: object) -> bool:
        """Holds `thing` for as long as what is being captured on `stream` may run.  False where nobody tells how long
        that is: it is held until `release` then."""
        semaphore = attached(driver, stream)
        if semaphore is None:
            self._until_released[id(thing)] = thing
            return False
        self._by_graph.append((semaphore, thing))
        return True

    def release(self, thing: object) -> None:
        """Lets go of a thing that no graph holds."""
        self._until_released.pop(id(thing), None)

    def sweep(self) -> None:
        """Lets go of everything whose graphs are gone."""
        if not self._by_graph:
            return
        library = semaphores()
        value = ctypes.c_int(0)
        for entry in self._by_graph[:]:
            library.sem_getvalue(entry[0], ctypes.byref(value))
            if value.value > 0:
                self._by_graph.remove(entry)
                library.free(entry[0])

    def __len__(self) -> int:
        return len(self._by_graph) + len(self._until_released)


def attached(driver: Any, stream: int) -> int | None:
    """A semaphore that is posted when the graph under capture on `stream` and all made from it are gone; None where the
    platform or the driver has no such thing."""
    library = semaphores()
    captured = driver.cuStreamGetCaptureInfo(stream)
    if library is None or int(captured[0]) or not int(captured[3]):
        return None
    # The C heap and not Python's: a graph may go after the interpreter has.
    semaphore: int = library.calloc(1, SEMAPHORE_BYTES)
    library.sem_init(semaphore, 0, 0)
    post = driver.CUhostFn(ctypes.cast(library.sem_post, ctypes.c_void_p).value)
    status, user_object = driver.cuUserObjectCreate(semaphore, post, 1, DESTRUCTOR_IS_LATE)
    if int(status):
        library.free(semaphore)
        return None
    if int(driver.cuGraphRetainUserObject(captured[3], user_object, 1, REFERENCE_MOVES)[0]):
        # The semaphore is not freed: the driver posts it at some moment after this.
        driver.cuUserObjectRelease(user_object, 1)
        return None
    return semaphore
