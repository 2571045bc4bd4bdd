"""What engines answered, kept across compilations and processes: the same question is not asked twice."""

from __future__ import annotations

import functools
import hashlib
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TypeVar

from graphdnn.answer import Decline
from graphdnn.engines.answers_file import OF_THE_MOMENT, Answer, Place, Question, read_answers, spelled_answers
from graphdnn.engines.contract import Policy, Store, Support
from graphdnn.engines.environment import code_digest, is_as_loaded
from graphdnn.engines.saved import spelled
from graphdnn.forking import renew_in_children
from graphdnn.ir.graph import Graph
from graphdnn.ir.region import Region
from graphdnn.lazy import cached_property
from graphdnn.target import Target

KIND = "answers"
"""Kind of the store's entries."""

MOST = 16384
"""Answers kept, here and in an entry, a kilobyte or so each; a ResNet-50 asks 1233 questions."""

OURS = "graphdnn.engines."
"""Where engines live whose code an entry's key stands for; what others answer is kept in this process only."""

E = TypeVar("E")
Supports = Callable[[E, Region, Target, Policy], Support | Decline]


class Answers:
    """Answers by question; those that were not asked for longest are forgotten.  Safe to use from several threads.

    A "yes" is about a structure.  A "no" is said in the words of one region, so it answers only where a region has the
    same names.
    """

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self.renew()
        renew_in_children(self)
        self._kept: OrderedDict[Question, tuple[Answer, str]] = OrderedDict()

    def renew(self) -> None:
        """Makes the lock anew."""
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, question: Question, region: Region) -> Answer | None:
        """The answer to a question, if it is known in this region's words."""
        with self._lock:
            found = self._kept.get(question)
            if found is None:
                return None
            self._kept.move_to_end(question)
        answer, wording = found
        return answer if not wording or wording == region.wording else None

    def keep(self, question: Question, region: Region, answer: Answer) -> None:
        """Keeps an answer, but not what is true of the moment only."""
        if is_of_the_moment(answer):
            return
        with self._lock:
            self._kept[question] = answer, wording_of(answer, region)
            self._kept.move_to_end(question)
            while len(self._kept) > self.most:
                self._kept.popitem(last=False)

    def clear(self) -> None:
        """Forgets everything."""
        with self._lock:
            self._kept.clear()


ANSWERS = Answers()
"""Those of this process."""


def is_of_the_moment(answer: Answer) -> bool:
    return isinstance(answer, Decline) and answer.code in OF_THE_MOMENT


def wording_of(answer: Answer, region: Region) -> str:
    """In whose words an answer about a region is."""
    return "" if isinstance(answer, Support) else region.wording


class Notebook:
    """All that is asked of one graph: first looked up in the store's entry of the graph, at the end written there.

    The entry is read at the first question that this process cannot answer, and written where one was new.
    """

    def __init__(self, store: Store, key: Callable[[], str]) -> None:
        self._store = store
        self._key = functools.cache(key)
        self._asked: dict[Place, Answer] = {}
        self._has_news = False

    @cached_property
    def _known(self) -> dict[Place, Answer]:
        content = self._store.get(KIND, self._key()) if is_as_loaded() else None
        if content is None:
            return {}
        found = read_answers(content)
        if found is None:
            self._store.drop(KIND, self._key())
            text = "cached answers of engines are dropped and asked for anew: the entry is no list of answers"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        return found or {}

    def recall(self, question: Question, region: Region) -> Answer | None:
        """What an earlier process was answered, in this region's words."""
        known = self._known
        answer = known.get((*question, ""))
        return known.get((*question, region.wording)) if answer is None else answer

    def note(self, question: Question, region: Region, answer: Answer, is_new: bool) -> None:
        """Takes down an answer, whoever gave it; `is_new` where it had to be worked out."""
        if not is_of_the_moment(answer):
            self._asked[*question, wording_of(answer, region)] = answer
            self._has_news |= is_new

    def close(self) -> None:
        """Writes down what was asked, beside what stood there, as long as there is room for both."""
        if not self._has_news or not is_as_loaded():
            return
        both = {**self._known, **self._asked}
        written = both if len(both) <= MOST else dict(list(self._asked.items())[:MOST])
        self._store.put(KIND, self._key(), spelled_answers(written))


NOTEBOOK: ContextVar[Notebook | None] = ContextVar("NOTEBOOK", default=None)
"""That of the compilation that this thread is at."""


@contextmanager
def kept_in(store: Store, graph: Graph, target: Target, policy: Policy) -> Iterator[None]:
    """A while in which what this thread asks is about one graph, and its answers are kept in a store."""
    notebook = Notebook(store, lambda: entry_key(graph, target, policy))
    token = NOTEBOOK.set(notebook)
    try:
        yield
    finally:
        NOTEBOOK.reset(token)
    notebook.close()


def remembered(supports: Supports[E]) -> Supports[E]:
    """The same method, which asks only what it does not know yet.

    For engines whose answers follow from the region's structure, the target and the policy alone.
    """
    who = f"{supports.__module__}.{supports.__qualname__}"
    is_ours = who.startswith(OURS)

    @functools.wraps(supports)
    def asked(self: E, region: Region, target: Target, policy: Policy) -> Support | Decline:
        question = who, circumstances(target, policy), region.key
        notebook = NOTEBOOK.get() if is_ours else None
        answer, is_new = ANSWERS.get(question, region), False
        if answer is None and notebook is not None:
            answer = notebook.recall(question, region)
            if answer is not None:
                ANSWERS.keep(question, region, answer)
        if answer is None:
            answer, is_new = supports(self, region, target, policy), True
            ANSWERS.keep(question, region, answer)
        if notebook is not None:
            notebook.note(question, region, answer, is_new)
        return answer

    return asked


@functools.lru_cache(maxsize=64)
def circumstances(target: Target, policy: Policy) -> str:
    """Target and policy as part of a key, whichever of several such devices it is; made once, since a key is looked up
    by its hash."""
    return repr((replace(target, ordinal=0), policy))


def entry_key(graph: Graph, target: Target, policy: Policy) -> str:
    """Under what the answers about a graph are kept: all of the graph but its weights, the machine, the options that
    engines see, and the code that answers."""
    digest = hashlib.sha256(circumstances(target, policy).encode()).hexdigest()
    return spelled(
        {
            "graph": graph.name,
            "device": target.name,
            "structure": structure(graph),
            "circumstances": digest,
            "code": code_digest(),
        }
    )


def structure(graph: Graph) -> str:
    """SHA-256 of what a graph is and how it is named, without the content of constants, which no engine is told."""
    values = {"in": graph.inputs, "constant": graph.constants, "state": graph.states, "out": graph.outputs}
    lines = [f"{what} {name!r} {v.name!r} {v.type.spelled}" for what, all in values.items() for name, v in all.items()]
    for node in graph.nodes:
        reads = [v.name if v.literal is None else (v.literal, v.type.spelled) for v in node.operands]
        lines.append(f"{node.name!r} {node.kind} of {reads} to {[v.name for v in node.results]} from {node.origins}")
    lines += [f"next {name!r} {v.name!r}" for name, v in graph.updates.items()]
    lines.append(repr(sorted(graph.output_strides.items())))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
