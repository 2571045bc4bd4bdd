"""In what order the chosen plans run, and where every value lies: inputs, outputs, states, or one arena.

The order keeps peak memory low.  Views lie in the memory of what they view.  An output or the next value of a state is
written in place by the step that makes it where that is legal, and copied at the end where it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Literal

from graphdnn.engines.contract import Plan
from graphdnn.errors import CompileError
from graphdnn.ir.graph import Graph, Value
from graphdnn.ir.region import Region
from graphdnn.ir.types import TensorType
from graphdnn.ir.views import is_free
from graphdnn.lazy import cached_property
from graphdnn.runtime.memory import Lifetime, lower_bound, pack

Space = Literal["input", "constant", "state", "output", "arena"]

Buffer = str | int
"""A part of the arena by what it is for: a value by its name, the next value of a state that waits for its place by the
state's, and a step's workspace by the number of the step.  Names may be any text, and are unique among values.
"""


@dataclass(frozen=True)
class Step:
    """One region and the plan that runs it; `plan` is None when only a described device is planned for.

    `offered` is what the engine says of `in_place` where there is no plan to say it.  `name` is the plan's, as
    CompileOptions.disabled_plans takes it: "cudnn:eng8_k24=2".
    """

    region: Region
    plan: Plan | None
    workspace_bytes: int = 0
    offered: tuple[tuple[int, int], ...] = ()
    name: str = ""

    @property
    def in_place(self) -> tuple[tuple[int, int], ...]:
        """(input, output) indices that may share memory, from the plan's attribute of this name; most have none.

        A plan that offers a pair works right with both addresses equal, whatever else it reads; and with several pairs
        so, where no index is in two of them, since each is a matter of when it loads the one and stores the other.
        """
        return self.offered if self.plan is None else tuple(getattr(self.plan, "in_place", ()))


@dataclass(frozen=True)
class MemoryPlace:
    """Where a value's first element lies: `offset` bytes into an input, constant, state, output, or into the arena."""

    space: Space
    name: str
    offset: int = 0


@dataclass(frozen=True)
class Copy:
    """A copy at the end of a run, between places of one type; dense ones are plain copies of `type.nbytes`."""

    source: MemoryPlace
    target: MemoryPlace
    type: TensorType


@dataclass(frozen=True, eq=False)
class Schedule:
    """What a run does: `steps` in order, then `copies` in order.

    `places` has every value that a step reads or writes; `workspaces` one offset into the arena per step.
    `arena_bytes` holds intermediates and workspaces, `bound_bytes` is the least that any packing needs; `peak_bytes`
    counts inputs, outputs, constants and states too.
    """

    graph: Graph
    steps: tuple[Step, ...]
    places: Mapping[Value, MemoryPlace]
    workspaces: tuple[int, ...]
    copies: tuple[Copy, ...]
    arena_bytes: int
    bound_bytes: int

    @cached_property
    def peak_bytes(self) -> int:
        graph = self.graph
        values = (*graph.inputs.values(), *graph.constants.values(), *graph.states.values())
        outputs = sum(graph.output_type(name).nbytes for name in graph.outputs)
        return self.arena_bytes + outputs + sum(v.type.nbytes for v in values)


def schedule(graph: Graph, steps: Sequence[Step]) -> Schedule:
    """Order and places for steps that together compute every node but the free ones.

    Raises CompileError when a value that is needed is computed by no step, or by two.
    """
    return _Planner(graph, tuple(steps)).plan()


class _Planner:
    """Works out one schedule.  Steps are known by their number in the order given until `order` is decided."""

    def __init__(self, graph: Graph, steps: tuple[Step, ...]) -> None:
        self.graph = graph
        self.steps = steps
        self.maker: dict[Value, int] = {}
        for number, step in enumerate(steps):
            for value in step.region.outputs:
                if self.maker.setdefault(value, number) != number:
                    raise CompileError(f"graph {graph.name}: {value} is computed by two regions")
        self.sources = {
            **{v: MemoryPlace("input", n) for n, v in graph.inputs.items()},
            **{v: MemoryPlace("constant", n) for n, v in graph.constants.items()},
            **{v: MemoryPlace("state", n) for n, v in graph.states.items()},
        }
        self.roots: dict[Value, tuple[Value, int]] = {}
        self.readers: dict[Value, set[int]] = {}
        for number, step in enumerate(steps):
            for value in step.region.inputs:
                self.readers.setdefault(self.root(value)[0], set()).add(number)
        self.before: list[set[int]] = [
            {self.maker[r] for r in (self.root(v)[0] for v in s.region.inputs) if r in self.maker} - {n}
            for n, s in enumerate(steps)
        ]
        self.claimed: dict[Value, MemoryPlace] = {}
        self.at_end: set[Value] = set()
        self.copies: tuple[Copy, ...] = ()

    def root(self, value: Value) -> tuple[Value, int]:
        """In whose memory a value lies, and its offset there in elements.

        Unlike `views.resolve` this stops at values that a step computes: a region may hold a free node and write its
        result to memory of its own.
        """
        found = self.roots.get(value)
        if found is None:
            found = self.roots[value] = self._find_root(value)
        return found

    def _find_root(self, value: Value) -> tuple[Value, int]:
        offset = 0
        while value not in self.maker and value not in self.sources:
            node = self.graph.producer.get(value)
            views = node.op.view(node.operands[0].type) if node is not None and is_free(node) else None
            if node is None or views is None:
                raise CompileError(f"graph {self.graph.name}: {value} is needed, but no region computes it")
            offset += views[node.results.index(value)].offset
            value = node.operands[0]
        return value, offset

    def plan(self) -> Schedule:
        # Copies that read a state's old value at the end keep everybody from overwriting it earlier.
        kept_states = {self.root(v)[0] for v in self.graph.outputs.values()} | {
            self.root(v)[0] for n, v in self.graph.updates.items() if self.root(v)[0] is not self.graph.states[n]
        }
        for name, value in self.graph.updates.items():
            self._claim_state(name, value, kept_states)
        for name, value in self.graph.outputs.items():
            self._claim_output(name, value)
        self.copies = self._copies()
        return self._pack(self._order())

    def _claim_state(self, name: str, value: Value, kept: set[Value]) -> None:
        """Lets the step that makes a state's next value write it over the old one, where nobody reads that later."""
        state = self.graph.states[name]
        root, offset = self.root(value)
        if root not in self.maker or root in self.claimed or offset or state in kept or not same_memory(root, state):
            return
        step = self.maker[root]
        others = self.readers.get(state, set()) - {step}
        if any(self._reaches(step, other) for other in others) or not self._may_overwrite(step, state, root):
            return
        self.before[step] |= others
        self.claimed[root] = MemoryPlace("state", name)

    def _may_overwrite(self, number: int, old: Value, new: Value) -> bool:
        """Whether a step that reads `old` may write `new` over it."""
        region, pairs = self.steps[number].region, self.steps[number].in_place
        target = region.outputs.index(new)
        reads = [i for i, v in enumerate(region.inputs) if self.root(v)[0] is old]
        return all((i, target) in pairs and self.root(region.inputs[i])[1] == 0 for i in reads)

    def _reaches(self, start: int, end: int) -> bool:
        """Whether `end` must run after `start`."""
        seen, todo = set(), [end]
        while todo:
            number = todo.pop()
            if number == start:
                return True
            if number not in seen:
                seen.add(number)
                todo += self.before[number]
        return False

    def _claim_output(self, name: str, value: Value) -> None:
        """Lets the step that makes an output write it where the caller gets it."""
        root, offset = self.root(value)
        declared = self.graph.output_type(name)
        whole = not offset and root.type.nbytes == declared.nbytes and root.type.is_dense and declared.is_dense
        if root in self.maker and root not in self.claimed and (whole or root is value):
            self.claimed[root] = MemoryPlace("output", name)

    def _copies(self) -> tuple[Copy, ...]:
        """What is still to be copied when all steps have run.  Whatever reads a state's old value goes first."""
        early: list[Copy] = []
        late: list[Copy] = []
        for name, value in self.graph.outputs.items():
            target = MemoryPlace("output", name)
            if self.claimed.get(self.root(value)[0]) != target:
                early.append(Copy(self._end_place(value), target, value.type))
        for name, value in self.graph.updates.items():
            target, source = MemoryPlace("state", name), self._end_place(value)
            if source == target:
                continue
            if source.space == "state":
                parked = MemoryPlace("arena", name)
                early.append(Copy(source, parked, value.type))
                source = parked
            late.append(Copy(source, target, value.type))
        return (*early, *late)

    def _end_place(self, value: Value) -> MemoryPlace:
        root, offset = self.root(value)
        self.at_end.add(root)
        base = self.claimed.get(root) or self.sources.get(root) or MemoryPlace("arena", root.name)
        return MemoryPlace(base.space, base.name, offset * value.type.dtype.itemsize)

    def _order(self) -> list[int]:
        """A topological order: the cheaper, by bytes in use at once, of the graph's own order and a greedy one."""
        position = self.graph.position
        last = [max(position[n] for n in s.region.nodes) for s in self.steps]
        own = self._sorted(lambda number, unread: (last[number],))
        greedy = self._sorted(lambda number, unread: (self._growth(number, unread), last[number]))
        return min((own, greedy), key=lambda order: lower_bound(list(self._lifetimes(order)[0].values())))

    def _sorted(self, key: Callable[[int, Mapping[Value, set[int]]], tuple[int, ...]]) -> list[int]:
        """Takes the ready step of least `key(step, steps that have yet to read each value)` until none is left.

        A key may become smaller when a step is left as the only one to read a value, and at no other time.
        """
        unread = {root: set(numbers) for root, numbers in self.readers.items()}
        missing = [set(b) for b in self.before]
        after: list[list[int]] = [[] for _ in self.steps]
        for number, needed in enumerate(self.before):
            for other in needed:
                after[other].append(number)
        ready = [(key(n, unread), n) for n, needed in enumerate(missing) if not needed]
        heapify(ready)
        order: dict[int, None] = {}
        while ready:
            _, number = heappop(ready)
            if number in order:
                continue  # it stood here once more, with an earlier and larger key
            order[number] = None
            changed = list(after[number])
            for other in changed:
                missing[other].discard(number)
            for value in self.steps[number].region.inputs:
                left = unread[self.root(value)[0]]
                left.discard(number)
                changed += left if len(left) == 1 else ()
            for other in changed:
                if not missing[other] and other not in order:
                    heappush(ready, (key(other, unread), other))
        if len(order) < len(self.steps):
            stuck = next(s for n, s in enumerate(self.steps) if n not in order)
            raise CompileError(
                f"graph {self.graph.name}: the regions around {stuck.region.nodes[0]} wait for each other"
            )
        return list(order)

    def _growth(self, number: int, unread: Mapping[Value, set[int]]) -> int:
        """Bytes that the arena has to hold more of once a step has run."""
        region = self.steps[number].region
        made = sum(v.type.span_bytes for v in region.outputs if self._in_arena(v))
        roots = {self.root(v)[0] for v in region.inputs}
        freed = sum(
            r.type.span_bytes for r in roots if self._in_arena(r) and r not in self.at_end and unread[r] == {number}
        )
        return made - freed

    def _in_arena(self, root: Value) -> bool:
        return root in self.maker and root not in self.claimed

    def _lifetimes(self, order: list[int]) -> tuple[dict[Buffer, Lifetime], dict[Value, Buffer]]:
        """When each buffer of the arena is in use, and which buffer each value lies in."""
        time = {number: t for t, number in enumerate(order)}
        end = len(order)
        lives: dict[Buffer, Lifetime] = {}
        buffers: dict[Value, Buffer] = {}
        for number in order:
            step, now = self.steps[number], time[number]
            if step.workspace_bytes:
                lives[number] = Lifetime(step.workspace_bytes, now, now)
            for root in step.region.outputs:
                if not self._in_arena(root) or self.maker[root] != number:
                    continue
                last = end if root in self.at_end else max((time[r] for r in self.readers.get(root, ())), default=now)
                shared = self._reusable(number, now, root, lives, buffers)
                buffers[root] = root.name if shared is None else shared
                born = now if shared is None else lives[shared].first
                lives[buffers[root]] = Lifetime(root.type.span_bytes, born, last)
        for copy in self.copies:
            if copy.target.space == "arena":
                lives[copy.target.name] = Lifetime(copy.type.span_bytes, end, end)
        return lives, buffers

    def _reusable(
        self, number: int, now: int, new: Value, lives: Mapping[Buffer, Lifetime], buffers: Mapping[Value, Buffer]
    ) -> Buffer | None:
        """The buffer of an input that dies in this step and that the step may write `new` over."""
        region = self.steps[number].region
        for index, target in self.steps[number].in_place:
            old = self.root(region.inputs[index])[0]
            buffer = buffers.get(old)
            if region.outputs[target] is not new or buffer is None or lives[buffer].last != now:
                continue
            if old not in self.at_end and same_memory(old, new) and self._may_overwrite(number, old, new):
                return buffer
        return None

    def _pack(self, order: list[int]) -> Schedule:
        lives, buffers = self._lifetimes(order)
        packing = pack(list(lives.values()))
        offsets = dict(zip(lives, packing.offsets, strict=True))
        places: dict[Value, MemoryPlace] = {}
        for step in self.steps:
            for value in (*step.region.inputs, *step.region.outputs):
                root, elements = self.root(value)
                base = self.claimed.get(root) or self.sources.get(root)
                base = base or MemoryPlace("arena", "", offsets[buffers[root]])
                places[value] = MemoryPlace(base.space, base.name, base.offset + elements * value.type.dtype.itemsize)

        by_name = {root.name: buffer for root, buffer in buffers.items()}

        def settled(place: MemoryPlace) -> MemoryPlace:
            if place.space != "arena":
                return place
            return MemoryPlace("arena", "", offsets[by_name.get(place.name, place.name)] + place.offset)

        copies = tuple(Copy(settled(c.source), settled(c.target), c.type) for c in self.copies)
        steps = tuple(self.steps[n] for n in order)
        workspaces = tuple(offsets.get(n, 0) for n in order)
        return Schedule(
            self.graph, steps, places, workspaces, copies, packing.nbytes, lower_bound(list(lives.values()))
        )


def same_memory(a: Value, b: Value) -> bool:
    """Whether two dense values have their elements at the same places, so that one may be written over the other."""
    return a.type.is_dense and (a.type.shape, a.type.layout, a.type.dtype.itemsize) == (
        b.type.shape,
        b.type.layout,
        b.type.dtype.itemsize,
    )
