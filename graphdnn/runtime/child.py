"""A second interpreter for work that might fault: started like this one, spoken to in frames of JSON over pipes.

However the child ends, whatever it prints and however long it takes, this process lives on and is told in words.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import Any, TypeVar

T = TypeVar("T")

LENGTH = struct.Struct("<I")
MOST_BYTES = 1 << 28
"""Longest frame that is believed."""

MARK = b"\x00graphdnn child\x00"
"""What the child writes before its first frame; what start-up files of the interpreter print before is passed over."""

MOST_CHATTER = 1 << 16
"""Bytes before the mark after which a process is taken for something else than our child."""

START_SECONDS = 120.0
KILL_SECONDS = 5.0
GRACE_SECONDS = 3.0
"""How long the child has to say where it hangs and end by itself, before it is killed."""

LOOK_SECONDS = 0.05
"""Between two looks at whether anybody still waits for the child."""

WATCHDOG = b"Timeout ("
"""What the child's own watchdog says, on a line of its own, before it ends the child with status 1."""

LISTEN_SECONDS = 0.5
"""How long to wait for the end of what a dead child said: a process that it left behind may keep the pipe open."""

TAIL_BYTES = 4096
TAIL_LINES = 3
TAIL_LENGTH = 400
"""What is kept of the child's stderr, and what of that is told."""

STACK_WORDS = (" ", "<", "Extension modules", "Traceback")
"""How lines of a stack begin, which say less than the error above or below them."""

INNERMOST_FIRST = "(most recent call first):"
"""How the line above a stack ends that Python leaves when a process dies."""

KILLED = 9
"""The signal that ends a process unasked: from us when it hangs, else from whoever ran out of memory or patience."""

DEPTH_VARIABLE = "GRAPHDNN_CHILD_DEPTH"
DEEPEST = 2
"""Children of children that may be started: an interpreter that is none may run the caller's program again."""

BOOTSTRAP = "import sys; sys.path[:] = sys.argv[2:]; from graphdnn.runtime.child import serve; serve(sys.argv[1])"
"""Takes the module search path from the command line, whatever the environment and the working directory would make
of it; `-m` would put the working directory first."""


@dataclass(frozen=True)
class Ended:
    """A child that will not answer any more, and how that came, in words.

    `by_chance` says that its work is not to blame: it never began, or somebody killed it.
    """

    how: str
    by_chance: bool = False


CLOSED = Ended("it was closed before", by_chance=True)


class Child:
    """A running child process.  `entry` is "module:function"; the function is called there with a `Parent`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._said = bytearray()
        self._listener = threading.Thread(target=_listen, args=(process.stderr, self._said), daemon=True)
        self._listener.start()
        self._finalizer = weakref.finalize(self, _release, process)

    @staticmethod
    def start(entry: str, seconds: float = START_SECONDS) -> Child | Ended:
        """A child that has imported its work and waits, or why there is none."""
        if not sys.executable or getattr(sys, "frozen", False):
            return Ended(
                "this program has no Python interpreter that could be started (sys.executable)", by_chance=True
            )
        told = os.environ.get(DEPTH_VARIABLE, "")
        depth = int(told) if told.isdecimal() else 0
        if depth >= DEEPEST:
            return Ended("this is the child of a child process already", by_chance=True)
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", BOOTSTRAP, entry, *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env={**os.environ, DEPTH_VARIABLE: str(depth + 1)},
                start_new_session=True,  # Ctrl-C in a terminal is for us; and the whole session can be killed
            )
        except (OSError, ValueError, TypeError) as error:  # of the system, or for what stands in sys.path
            return Ended(f"{sys.executable} could not be started ({error})", by_chance=True)
        child = Child(process)
        problem = child._exchange(seconds, child._skip_to_mark)
        return replace(problem, by_chance=True) if isinstance(problem, Ended) else child

    def ask(
        self, message: dict[str, Any], seconds: float, is_over: Callable[[], bool] | None = None
    ) -> dict[str, Any] | Ended:
        """The child's answer to a message.

        A child that takes longer than `seconds`, or until `is_over` comes true, is ended; one that was closed, here or
        from another thread meanwhile, says so.
        """
        frame = packed({**message, "seconds": seconds})

        def work() -> dict[str, Any] | Ended | None:
            self._write(frame)
            return self._read()

        return self._exchange(seconds, work, is_over)

    def next(self, seconds: float) -> dict[str, Any] | Ended:
        """The next message of a child that sends several."""
        return self._exchange(seconds, self._read)

    def kill(self) -> None:
        """Ends the child from another thread than the one that talks to it, which is told so, and is to close it."""
        _kill(self._process)

    def close(self) -> None:
        """Ends the child, whatever it is doing."""
        self._finalizer()
        self._listener.join(LISTEN_SECONDS)

    def _exchange(
        self, seconds: float, work: Callable[[], T | Ended | None], is_over: Callable[[], bool] | None = None
    ) -> T | Ended:
        if not self._finalizer.alive:
            return CLOSED
        begun = time.monotonic()
        answered = threading.Event()
        watch = (self._process, begun + seconds + GRACE_SECONDS, is_over, answered)
        threading.Thread(target=_watch, args=watch, daemon=True).start()
        try:
            found = work()
        except (OSError, ValueError):  # a pipe that is broken, or closed by another thread
            found = None
        except BaseException:  # Ctrl-C: the answer that is still to come would be taken for that to another question
            self.close()
            raise
        finally:
            answered.set()
        if found is None:
            return self._ended(time.monotonic() - begun >= seconds, seconds)
        if isinstance(found, Ended):
            self.close()
        return found

    def _ended(self, hung: bool, seconds: float) -> Ended:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_SECONDS)
        status = self._process.poll()
        self.close()
        hung = hung or (status == 1 and WATCHDOG in bytes(self._said))
        how = f"it did not answer within {seconds:g} s" if hung else ending(status)
        last = last_words(bytes(self._said))
        return Ended(f"{how}; it said: {last}" if last else how, by_chance=not hung and status == -KILLED)

    def _write(self, frame: bytes) -> None:
        assert self._process.stdin is not None
        view = memoryview(frame)
        while view:
            view = view[self._process.stdin.write(view) :]

    def _take(self, count: int) -> bytes | None:
        assert self._process.stdout is not None
        return taken(self._process.stdout.fileno(), count)

    def _read(self) -> dict[str, Any] | Ended | None:
        head = self._take(LENGTH.size)
        if head is None:
            return None
        (count,) = LENGTH.unpack(head)
        body = self._take(count) if count <= MOST_BYTES else b""
        return None if body is None else unpacked(body)

    def _skip_to_mark(self) -> bool | Ended | None:
        passed = bytearray()
        while not passed.endswith(MARK):
            byte = self._take(1)
            if byte is None:
                return None
            passed += byte
            if len(passed) > MOST_CHATTER:
                return Ended(f"{sys.executable} writes something else than a child of ours does")
        return True


class Parent:
    """The child's end of the pipes: requests come in, answers go out."""

    def __init__(self, requests: int, answers: int) -> None:
        self._requests = requests
        self._answers = answers
        self._lock = threading.Lock()

    def receive(self) -> dict[str, Any] | None:
        """The next message; None where the parent wants no more or is gone.

        From now on the child has the message's `seconds`: then it says where it hangs, and ends.
        """
        faulthandler.cancel_dump_traceback_later()
        head = taken(self._requests, LENGTH.size)
        body = None if head is None else taken(self._requests, *LENGTH.unpack(head))
        message = None if body is None else unpacked(body)
        if not isinstance(message, dict):
            return None
        self.allow(float(message["seconds"]))
        return message

    def allow(self, seconds: float) -> None:
        """Gives the child so long from now on, whatever it had before."""
        faulthandler.dump_traceback_later(seconds, exit=True)

    def send(self, message: dict[str, Any]) -> None:
        """One message, whole, from any thread."""
        frame = memoryview(packed(message))
        with self._lock:
            while frame:
                frame = frame[os.write(self._answers, frame) :]


class NoTorch:
    """Finds that there is no torch: cuDNN's frontend imports it where it is, which takes seconds, and does without."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "torch":
            raise ModuleNotFoundError("a child process does without torch", name=name)


def serve(entry: str) -> None:
    """The child's whole life: what is printed goes to stderr, so that the pipes carry frames only."""
    faulthandler.enable()
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # faults are expected here, and nobody reads the dumps
    requests, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    sys.argv[:] = ["graphdnn"]
    sys.meta_path.insert(0, NoTorch)
    work = resolve_name(entry)
    os.write(answers, MARK)
    work(Parent(requests, answers))


def packed(message: dict[str, Any]) -> bytes:
    body = json.dumps(message).encode()
    return LENGTH.pack(len(body)) + body


def unpacked(body: bytes) -> dict[str, Any] | Ended:
    with contextlib.suppress(ValueError, RecursionError):
        message = json.loads(body)
        if isinstance(message, dict):
            return message
    return Ended("what it wrote is no answer")


def taken(source: int, count: int) -> bytes | None:
    """Exactly so many bytes, or None where the other end closed before."""
    parts: list[bytes] = []
    while count:
        part = os.read(source, min(count, 1 << 20))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def ending(status: int | None) -> str:
    """How a process ended, in words."""
    if status is None:
        return "it closed its pipes and cannot be ended"
    if status >= 0:
        return f"it ended with exit status {status}"
    with contextlib.suppress(ValueError):
        return f"it was ended by {signal.Signals(-status).name}"
    return f"it was ended by signal {-status}"


def last_words(said: bytes) -> str:
    """The last lines of what a process wrote to stderr; of a stack that it left when it died, the innermost place."""
    lines = [line for line in said.decode(errors="replace").splitlines() if line.strip()]
    died = next((i for i, line in enumerate(lines) if line.endswith(INNERMOST_FIRST)), None)
    place = [] if died is None else [line.strip() for line in lines[died + 1 : died + 2]]
    telling = [line.strip() for line in lines[:died] if not line.startswith(STACK_WORDS)]
    return " | ".join(telling[-TAIL_LINES:] + place)[-TAIL_LENGTH:]


def _listen(source: Any, said: bytearray) -> None:
    """Keeps the end of what the child says, so that it is never held up by a full pipe."""
    with source:
        while part := os.read(source.fileno(), 4096):
            said += part
            del said[:-TAIL_BYTES]


def _watch(
    process: subprocess.Popen[bytes], end: float, is_over: Callable[[], bool] | None, answered: threading.Event
) -> None:
    """Kills a child that has not answered at that time, or when nobody waits for it any more."""
    while not answered.wait(max(0.0, end - time.monotonic()) if is_over is None else LOOK_SECONDS):
        if time.monotonic() >= end or (is_over is not None and is_over()):
            _kill(process)
            return


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(KILL_SECONDS)


def _release(process: subprocess.Popen[bytes]) -> None:
    _kill(process)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
