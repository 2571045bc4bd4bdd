"""A cache of engines' answers, in memory across compilations and on disk across processes."""

from __future__ import annotations

import functools
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TypeVar

from graphdnn.answer import Decline
from graphdnn.engines.answers_file import UNCACHED, Answer, AnswerKey, Question, decode_answers, encode_answers
from graphdnn.engines.contract import Policy, Store, Support, forget
from graphdnn.engines.environment import code_digest, is_as_loaded
from graphdnn.engines.serialization import key_text
from graphdnn.forking import renew_in_children
from graphdnn.ir.graph import Graph
from graphdnn.ir.region import Region
from graphdnn.lazy import cached_property
from graphdnn.target import Target

KIND = "answers"
"""Kind of the store's entries."""

MOST = 16384
"""Most answers in memory, and in one entry on disk, of about a kilobyte each; a ResNet-50 asks 1233 questions."""

OURS = "graphdnn.engines."
"""Package of the engines whose code `entry_key` covers; answers of other engines are cached in memory only."""

E = TypeVar("E")
Supports = Callable[[E, Region, Target, Policy], Support | Decline]


class Answers:
    """A least-recently-used cache of answers by question.  Safe to use from several threads.

    A "yes" holds for every region with the same key.  A "no" names nodes of the region that it was given for, so it is
    returned only for regions with the same names (`Region.wording`).
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
        """The cached answer to a question about this region, if there is one."""
        with self._lock:
            found = self._kept.get(question)
            if found is None:
                return None
            self._kept.move_to_end(question)
        answer, wording = found
        return answer if not wording or wording == region.wording else None

    def keep(self, question: Question, region: Region, answer: Answer) -> None:
        """Caches an answer, unless its code is one of UNCACHED."""
        if is_uncached(answer):
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


def is_uncached(answer: Answer) -> bool:
    return isinstance(answer, Decline) and answer.code in UNCACHED


def wording_of(answer: Answer, region: Region) -> str:
    """The region's names where an answer mentions them: empty for a "yes"."""
    return "" if isinstance(answer, Support) else region.wording


class StoredAnswers:
    """The answers about one graph as an entry of a store.

    The entry is read at the first question whose answer is not in memory, and written by `close` if any answer is new.
    """

    def __init__(self, store: Store, key: Callable[[], str]) -> None:
        self._store = store
        self._key = functools.cache(key)
        self._asked: dict[AnswerKey, Answer] = {}
        self._has_news = False

    @cached_property
    def _known(self) -> dict[AnswerKey, Answer]:
        content = self._store.get(KIND, self._key()) if is_as_loaded() else None
        if content is None:
            return {}
        found = decode_answers(content)
        if found is None:
            forget(self._store, KIND, self._key(), "list of engines' answers", "it holds none")
        return found or {}

    def recall(self, question: Question, region: Region) -> Answer | None:
        """The answer that an earlier process stored for this region, if there is one."""
        known = self._known
        answer = known.get((*question, ""))
        return known.get((*question, region.wording)) if answer is None else answer

    def note(self, question: Question, region: Region, answer: Answer, is_new: bool) -> None:
        """Adds an answer to the entry; `is_new` where neither memory nor the store had it."""
        if not is_uncached(answer):
            self._asked[*question, wording_of(answer, region)] = answer
            self._has_news |= is_new

    def close(self) -> None:
        """Writes the entry if any answer is new: what was asked now, and what it held before if there is room."""
        if not self._has_news or not is_as_loaded():
            return
        both = {**self._known, **self._asked}
        written = both if len(both) <= MOST else dict(list(self._asked.items())[:MOST])
        self._store.put(KIND, self._key(), encode_answers(written))


STORED: ContextVar[StoredAnswers | None] = ContextVar("STORED", default=None)
"""The answers of the compilation that runs in this thread."""


@contextmanager
def answers_stored_in(store: Store, graph: Graph, target: Target, policy: Policy) -> Iterator[None]:
    """A context in which this thread's questions are about one graph, and their answers are stored under its key."""
    stored = StoredAnswers(store, lambda: entry_key(graph, target, policy))
    token = STORED.set(stored)
    try:
        yield
    finally:
        STORED.reset(token)
    stored.close()


def remembered(supports: Supports[E]) -> Supports[E]:
    """The same method with its answers cached, in memory and in the entry of the thread's compilation if there is one.

    For engines whose answers depend on the region's structure, the target and the policy alone.
    """
    method = f"{supports.__module__}.{supports.__qualname__}"
    is_ours = method.startswith(OURS)

    @functools.wraps(supports)
    def asked(self: E, region: Region, target: Target, policy: Policy) -> Support | Decline:
        question = method, circumstances(target, policy), region.key
        stored = STORED.get() if is_ours else None
        answer, is_new = ANSWERS.get(question, region), False
        if answer is None and stored is not None:
            answer = stored.recall(question, region)
            if answer is not None:
                ANSWERS.keep(question, region, answer)
        if answer is None:
            answer, is_new = supports(self, region, target, policy), True
            ANSWERS.keep(question, region, answer)
        if stored is not None:
            stored.note(question, region, answer, is_new)
        return answer

    return asked


@functools.lru_cache(maxsize=64)
def circumstances(target: Target, policy: Policy) -> str:
    """Target and policy as part of a key, the same for several equal devices.

    Cached so that equal keys hold the same string object, whose hash is computed once.
    """
    return repr((replace(target, ordinal=0), policy))


def entry_key(graph: Graph, target: Target, policy: Policy) -> str:
    """The store's key of the answers about a graph: the graph without its weights, the target, the policy, and a digest
    of the code that answers."""
    digest = hashlib.sha256(circumstances(target, policy).encode()).hexdigest()
    return key_text(
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
    lines = [f"{what} {name!r} {v.name!r} {v.type.key}" for what, all in values.items() for name, v in all.items()]
    for node in graph.nodes:
        reads = [v.name if v.literal is None else (v.literal, v.type.key) for v in node.operands]
        lines.append(f"{node.name!r} {node.kind} of {reads} to {[v.name for v in node.results]} from {node.origins}")
    lines += [f"next {name!r} {v.name!r}" for name, v in graph.updates.items()]
    lines.append(repr(sorted(graph.output_strides.items())))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
