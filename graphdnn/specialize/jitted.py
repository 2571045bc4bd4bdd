"""`jit`: a function of a graph builder that is called with arrays and compiled once for each signature of theirs."""

from __future__ import annotations

import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from graphdnn import compiler
from graphdnn.config import CompileOptions
from graphdnn.errors import CompileError, ExecutionError, in_words
from graphdnn.executable import Executable
from graphdnn.forking import renew_in_children
from graphdnn.ir.graph import Graph
from graphdnn.once import MakeOnce
from graphdnn.specialize.buckets import Buckets, checked_buckets, is_whole
from graphdnn.specialize.call_inputs import NOTHING, CallInputs
from graphdnn.specialize.masking import Masking
from graphdnn.specialize.padding import Padding
from graphdnn.specialize.parameters import Function
from graphdnn.specialize.routes import Build, Lengths, PaddingTarget, Route, checked_lengths
from graphdnn.specialize.signature import Signature, signature_text
from graphdnn.specialize.tuning import BACKGROUND
from graphdnn.specialize.variation import RepeatedBuildsWarning, warning
from graphdnn.spelling import counted, named_arguments, quoted
from graphdnn.target import WORDS, Target, unknown_target

ROUTES_PER_ENTRY = 16
"""Exact shapes that are remembered for each build kept."""

SIGNATURES_KEPT = 64
"""Signatures of the last builds that a warning looks at."""


def circular(who: str, names: tuple[str, ...]) -> Callable[[Signature], str]:
    """What is said of a function whose build asks for itself, by signature."""
    return lambda signature: (
        f"jitted function {who} was called by itself, directly or through others, with the signature that is being "
        f"built, ({signature_text(names, signature)}); one whose build does not lead back to itself is needed"
    )


class TuningWarning(UserWarning):
    """A tuned build failed in the background; calls go on with the one that was there."""


@dataclass(frozen=True)
class JitStats:
    """What a jitted function has done: builds that calls waited for and their seconds, calls that found one (and had
    it made anew where its masks would not do, which is a build too), builds dropped to keep the
    bound, tuned builds swapped in, and tuned builds that failed."""

    builds: int
    hits: int
    evictions: int
    build_seconds: float
    tuned: int
    tuning_failures: int


@named_arguments(CompileOptions.model_fields)
def jit(
    fn: Callable[..., Any],
    *,
    target: str | Target = "auto",
    options: CompileOptions | None = None,
    max_entries: int = 16,
    buckets: Buckets | None = None,
    lengths: Lengths | None = None,
    on_new_shape: Literal["compile", "heuristic_then_tune"] = "compile",
    tuned_options: CompileOptions | None = None,
    warn_after: int = 8,
) -> Jitted:
    """A callable that compiles `fn` for each signature (types, shapes, layouts) of the arrays it is called with.

    `fn(g, x, ...)` gets a GraphBuilder and a value for each input, bound by the parameter's name, and returns outputs
    by name, or what `g.build` gives; parameters with defaults may be left out of a call.  It is called for each
    signature, for each exact shape that is padded, and for some that no call had (what it raises there is ignored), to
    see what padding them takes; it must give the same graph for the same shapes.

    max_entries: builds kept, the least recently used dropped; each holds a copy of the constants, so give weights that
        many shapes share as inputs.
    buckets: {"x": {0: "pow2", 1: (128, 512), 2: 64}} pads axes of x with zeros up to a power of two, a size of the list
        or a multiple, and cuts the outputs back.  Where padding would be seen (keys of an attention, a softmax,
        reductions, inner extents of matrix products, borders of convolutions and poolings) the build masks it; a graph
        in which neither helps, such as a norm along the axis, is refused.
    lengths: {"n": ("x", 1)} fills the parameter n with int32 lengths, one for each entry of axis 0 of x: the exact
        extent of axis 1, for masks of the function's own.
    on_new_shape: "heuristic_then_tune" serves a new signature without timing anything and swaps in a tuned build later,
        between calls; `tuned_options` are those of that build, `options` with selection="autotune" by default.
    warn_after: builds after which a warning names what varies, and again each time there are twice as many.

    Raises CompileError for a function, a target or an option that cannot be.
    """
    if not is_whole(max_entries) or max_entries < 1:
        raise CompileError(f"jit: max_entries is {quoted(max_entries)}; a number of at least 1 is needed")
    if not is_whole(warn_after) or warn_after < 1:
        raise CompileError(f"jit: warn_after is {quoted(warn_after)}; a number of at least 1 is needed")
    if not isinstance(target, Target) and target not in WORDS:
        raise unknown_target("jit", target)
    for what, given in (("options", options), ("tuned_options", tuned_options)):
        if not isinstance(given, CompileOptions | None):
            raise CompileError(f"jit: {what} is a {type(given).__name__}; a gd.CompileOptions is needed")
    first, later = options or CompileOptions(), tuned_options
    mode: object = on_new_shape
    if mode not in ("compile", "heuristic_then_tune"):
        raise CompileError(f'jit: on_new_shape is {quoted(on_new_shape)}; "compile" or "heuristic_then_tune" is needed')
    if mode == "heuristic_then_tune":
        timed = "autotune" if first.selection == "heuristic" else first.selection
        # nobody watches a build in the background, so it shows its progress only where that was asked for
        later = tuned_options or changed(first, selection=timed, progress=bool(first.progress))
        first = changed(first, selection="heuristic")
    elif tuned_options is not None:
        raise CompileError('jit: tuned_options are given; on_new_shape="heuristic_then_tune" is needed to use them')
    if isinstance(fn, Jitted):
        raise CompileError(f"jit: {quoted(fn)} is a jitted function already; what it was made of is needed")
    function = Function.of(fn)
    filled = checked_lengths(function.name, lengths or {}, function.parameters)
    names = tuple(name for name in function.parameters if name not in filled)
    rules = checked_buckets(function.name, buckets or {}, names)
    return Jitted(
        Padding(function, names, rules, filled),
        target=target,
        options=first,
        tuned_options=later,
        max_entries=max_entries,
        warn_after=warn_after,
    )


def changed(options: CompileOptions, **others: object) -> CompileOptions:
    """The options with other values for some."""
    return CompileOptions(**{**options.model_dump(), **others})


class Jitted:
    """A function compiled for each signature it is called with; see `jit`.

    Threads may call it at the same time: a signature is built once, others go on meanwhile, and calls of one signature
    take turns.
    """

    def __init__(
        self,
        padding: Padding,
        *,
        target: str | Target,
        options: CompileOptions,
        tuned_options: CompileOptions | None,
        max_entries: int,
        warn_after: int,
    ) -> None:
        self._function = padding.function
        self._names = padding.names
        self._inputs = CallInputs(padding.function, padding.names, padding.lengths)
        self._padding = padding
        self._is_direct = not padding.buckets and not padding.lengths
        self._target = target
        self._options = options
        self._tuned_options = tuned_options
        self._builds: MakeOnce[Signature, Build] = MakeOnce(max_entries, circular(self._function.name, self._names))
        self._routes: MakeOnce[Signature, tuple[Signature, Route]] = MakeOnce(max_entries * ROUTES_PER_ENTRY)
        self._build_count = 0
        self._build_seconds = 0.0
        self._tuned = 0
        self._tuning_failures = 0
        self._signatures: deque[Signature] = deque(maxlen=SIGNATURES_KEPT)
        self._warn_at = warn_after
        self._messages: deque[UserWarning] = deque()
        self.renew()
        renew_in_children(self)

    def __call__(
        self, inputs: Mapping[str, Any] = NOTHING, *others: object, stream: object = None, **named: object
    ) -> dict[str, Any]:
        """Outputs by name, as an Executable gives them; the first call of a signature builds.

        Raises ExecutionError for arguments other than one mapping and `stream`, naming an input that is missing, extra
        or no array, CompileError where padding would change a result, and whatever the function raises.
        """
        if others or named:
            raise self._inputs.miscalled(others, named)
        signature = self._inputs.signature(inputs)
        if self._is_direct:
            build = self._builds.find(signature) or self._built(signature, lambda: self._made(signature))
            if self._messages:
                self._speak()
            return build.executable(inputs, stream=stream)
        build, route = self._routed(signature)
        if self._messages:
            self._speak()
        return route.run(build.executable, inputs, stream)

    def __reduce__(self) -> Any:
        raise ExecutionError(
            f"jitted function {self._function.name} cannot be pickled or copied; gd.jit of the function that it was "
            "made of is needed there"
        )

    def __repr__(self) -> str:
        builds = counted(len(self._builds.items()), "build")
        return f"<jit {self._function.name}({', '.join(self._names)}) for {self._target}: {builds} kept>"

    def renew(self) -> None:
        """Makes the lock anew; builds that a thread of the background was to tune stay untuned."""
        self._lock = threading.Condition()
        self._tuning = 0

    def stats(self) -> JitStats:
        """The counters as they are now."""
        with self._lock:
            return JitStats(
                self._build_count,
                self._builds.hits,
                self._builds.evictions,
                self._build_seconds,
                self._tuned,
                self._tuning_failures,
            )

    @property
    def executables(self) -> dict[str, Executable]:
        """The executables kept, by their signature in words, least recently used first: for their reports.

        Called directly, one for padded shapes takes arrays of these, the `lengths` too, and where it masks int32
        scalars, `jit.extent_0` and so on: the exact extents behind which it masks.
        """
        return {signature_text(self._names, signature): build.executable for signature, build in self._builds.items()}

    def wait_for_tuning(self, timeout: float | None = None) -> bool:
        """Waits until no tuned build is due, at most `timeout` seconds; whether that is so."""
        with self._lock:
            return self._lock.wait_for(lambda: self._tuning == 0, timeout)

    def _built(self, signature: Signature, make: Callable[[], Build]) -> Build:
        """The build for a signature, made where there is none."""
        return self._served(signature, self._builds.get(signature, make))

    def _rebuilt(self, signature: Signature, old: Build, make: Callable[[], Build]) -> Build:
        """Another build for a signature, in the place of one that cannot serve some exact shapes."""
        return self._served(signature, self._builds.remake(signature, old, make))

    def _served(self, signature: Signature, build: Build) -> Build:
        """A build that is kept; a tuned one is asked for where that was not done yet."""
        if build.is_untuned:
            self._tune_later(signature, build)
        return build

    def _made(self, signature: Signature) -> Build:
        """A build for these very shapes."""
        started = time.perf_counter()
        return self._noted(signature, self._compiled(self._padding.trace(signature), Masking(), started))

    def _compiled(self, traced: Graph, masking: Masking, started: float) -> Build:
        graph = masking.applied(traced)
        executable = compiler.compile(graph, self._target, self._options)
        build = Build(traced, masking, graph, executable, is_untuned=self._tuned_options is not None)
        with self._lock:
            self._build_count += 1
            self._build_seconds += time.perf_counter() - started
        return build

    def _noted(self, signature: Signature, build: Build) -> Build:
        """A build for a signature that none was kept for, which a warning may be due about."""
        with self._lock:
            self._signatures.append(signature)
            recent, count, is_often = list(self._signatures), self._build_count, self._build_count >= self._warn_at
            if is_often:
                self._warn_at *= 2
        if is_often:
            kept = {**{s: b.traced for s, b in self._builds.items()}, signature: build.traced}
            text = warning(self._padding, count, recent, kept)
            self._messages.append(RepeatedBuildsWarning(text))
        return build

    def _routed(self, signature: Signature) -> tuple[Build, Route]:
        """The build for the padded shapes and the way to it, where the way was proved for these exact ones."""
        known = self._routes.find(signature)
        if known is not None:
            padded, route = known
            build = route.build()
            if build is not None and self._builds.reuse(padded, build):
                return build, route
        longer = self._padding.longer(signature)
        exact = self._padding.trace(signature)
        shapes = signature, exact, longer
        build = self._built(longer, partial(self._first, *shapes))
        while not self._padding.serves(build, *shapes):
            build = self._rebuilt(longer, build, partial(self._padded, build.masking, build.traced, *shapes))
        route = Route(build, exact, self._padding.lengths, PaddingTarget(self._target, self._options.cache_dir))
        self._routes.put(signature, (longer, route))
        return build, route

    def _first(self, signature: Signature, exact: Graph, longer: Signature) -> Build:
        """A build of the padded graph that serves these exact shapes, where none for the padded ones is kept."""
        traced = self._padding.traced(signature, exact, longer)
        return self._noted(longer, self._padded(Masking(), traced, signature, exact, longer))

    def _padded(self, known: Masking, traced: Graph, signature: Signature, exact: Graph, longer: Signature) -> Build:
        """A build of the padded graph that serves these exact shapes, and those that `known` does."""
        started = time.perf_counter()
        masking = self._padding.masking(known, traced, signature, exact, longer)
        return self._compiled(traced, masking, started)

    def _tune_later(self, signature: Signature, build: Build) -> None:
        with self._lock:
            if not build.is_untuned:
                return
            build.is_untuned = False
            self._tuning += 1
        owner, wanted = weakref.ref(self), weakref.ref(build)

        def tune() -> None:
            jitted, present = owner(), wanted()
            if jitted is not None:
                jitted._tune(signature, present)

        BACKGROUND.put(tune)

    def _tune(self, signature: Signature, build: Build | None) -> None:
        """Replaces a build's executable by a tuned one, unless it was dropped meanwhile."""
        done, failure = False, None
        try:
            if build is not None and self._builds.holds(signature, build):
                assert self._tuned_options is not None
                build.executable = compiler.compile(build.graph, self._target, self._tuned_options)
                done = True
        except Exception as error:
            failure = error
        finally:
            with self._lock:
                self._tuning -= 1
                self._tuned += done
                if failure is not None:
                    self._tuning_failures += 1
                    self._messages.append(
                        TuningWarning(
                            f"{self._function.name} stays untuned for {signature_text(self._names, signature)}: "
                            f"{in_words(failure)}"
                        )
                    )
                self._lock.notify_all()

    def _speak(self) -> None:
        """Warns at the user's call of what happened since the last one."""
        while self._messages:
            try:
                message = self._messages.popleft()
            except IndexError:  # another thread said the last one
                return
            warnings.warn(message, stacklevel=3)
