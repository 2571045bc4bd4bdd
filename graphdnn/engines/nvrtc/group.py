"""A thread's group of neighbours along one axis: its loads, the pointwise work on each, its stores.

Pointwise kernels are nothing else; matmuls and convolutions end in it.  The text that is made here expects the index
variables it is told, `whole` (the group lies inside), `count` (elements of it that do) and `wide` (see
`wide_condition`) in scope where the width is more than 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphdnn.engines.nvrtc.emit import emit_node, literal, register, storage
from graphdnn.engines.nvrtc.indexing import offset_terms
from graphdnn.engines.nvrtc.placement import Placement, operand_placement, placed_strides
from graphdnn.ir.graph import Node, Value

LARGEST_PIECE = 16
"""Bytes that one instruction moves at most."""


@dataclass(frozen=True)
class Access:
    """One tensor as a kernel walks it: parameter name, the value, strides along the axes of the walk."""

    name: str
    value: Value
    strides: tuple[int, ...]

    @property
    def item(self) -> str:
        return storage(self.value.type.dtype)

    def address(self, names: Sequence[str]) -> str:
        """C++ expression of the address at these indices."""
        return f"{self.name} + ({offset_terms(self.strides, names)})"

    def is_held_whole(self, axis: int, width: int) -> bool:
        """Whether a group along `axis` holds more than one element."""
        return width > 1 and self.strides[axis] != 0

    def is_vector(self, axis: int, width: int) -> bool:
        """Whether groups along `axis` are neighbours in memory and start at multiples of the width."""
        others = (s for a, s in enumerate(self.strides) if a != axis)
        return width > 1 and self.strides[axis] == 1 and all(s % width == 0 for s in others)

    def piece(self, width: int) -> int:
        """Bytes at whose multiples a group of it must start to be moved in one go."""
        return min(LARGEST_PIECE, width * self.value.type.dtype.itemsize)


class Demand:
    """Emits, at one place of an index space, what the asked values need: each (value, placement) once.

    `given` names values that are computed already, such as a matmul's accumulator; what no node of `nodes` produces
    is loaded.  After all were asked for, `loads` are the loads with the variables that hold them, `lines` the work.
    """

    def __init__(self, nodes: Sequence[Node], rank: int, given: Mapping[Value, str] | None = None) -> None:
        self.rank = rank
        self.producer = {n.result: n for n in nodes}
        self.given = dict(given or {})
        self.lines: list[str] = []
        self.loads: dict[tuple[Value, tuple[int, ...]], str] = {}
        self._names: dict[tuple[Value, Placement], str] = {}

    def __call__(self, value: Value, placement: Placement) -> str:
        """The C++ expression of a value at the current place."""
        if value.literal is not None:
            return literal(value.literal, value.type.dtype)
        if value in self.given:
            return self.given[value]
        known = self._names.get((value, placement))
        if known is not None:
            return known
        node = self.producer.get(value)
        if node is None:
            strides = placed_strides(value, placement, self.rank)
            name = self.loads.setdefault((value, strides), f"x{len(self.loads)}")
        else:
            operands = [self(v, operand_placement(node, i, placement)) for i, v in enumerate(node.operands)]
            name = f"v{len(self.lines)}"
            self.lines.append("\n".join(emit_node(node, operands, name)))
        self._names[value, placement] = name
        return name


@dataclass(frozen=True)
class Store:
    """One output: where it goes, the expression that goes there, and the condition under which this place has one."""

    access: Access
    result: str
    only: str = ""


def wide_condition(accesses: Sequence[Access], axis: int, width: int) -> str:
    """Statement that decides whether the addresses allow vector moves: the same for all threads."""
    if width == 1:
        return ""
    checks = dict.fromkeys(f"aligned({a.piece(width)}, {a.name})" for a in accesses if a.is_vector(axis, width))
    return f"const bool wide = {' && '.join(checks) or 'false'};"


def held(access: Access, axis: int, width: int) -> str:
    """C++ type of what a thread keeps of one load."""
    return f"Pack<{access.item}, {width}>" if access.is_held_whole(axis, width) else access.item


def load_group(access: Access, into: str, names: Sequence[str], axis: int, width: int) -> str:
    """The statement that fills the variable `into`, of type `held(...)`."""
    at = access.address(names)
    if not access.is_held_whole(axis, width):
        return f"{into} = *({at});"
    single = f"{into}.at[j] = ({at})[j * {access.strides[axis]}];"
    by_one = f'_Pragma("unroll") for (int j = 0; j < {width}; ++j) if (whole || j < count) {single}'
    if not access.is_vector(axis, width):
        return by_one
    return f"if (wide && whole) {into} = load_pack<{access.item}, {width}>({at}, true); else {{ {by_one} }}"


def work_group(
    loads: Mapping[str, Access],
    held_in: Mapping[str, str],
    lines: Sequence[str],
    stores: Sequence[Store],
    names: Sequence[str],
    axis: int,
    width: int,
) -> list[str]:
    """Statements from loaded groups to stored ones.

    `loads` gives each load by the variable that the lines read, `held_in` the variable that holds its group; inside
    the lines `j` is the element's place in the group.
    """
    text = [
        f"Pack<{s.access.item}, {width}> y{i};" for i, s in enumerate(stores) if s.access.is_held_whole(axis, width)
    ]
    if width > 1:
        text.append(f"#pragma unroll\nfor (int j = 0; j < {width}; ++j) {{")
    for name, access in loads.items():
        place = ".at[j]" if access.is_held_whole(axis, width) else ""
        text.append(f"const {register(access.value.type.dtype)} {name} = widen({held_in[name]}{place});")
    text += lines
    after: list[str] = []
    for i, store in enumerate(stores):
        when = f"if ({store.only}) " if store.only else ""
        if store.access.is_held_whole(axis, width):
            text.append(f"y{i}.at[j] = narrow<{store.access.item}>({store.result});")
            after.append(f"{when}{{ {store_group(store.access, f'y{i}', names, axis, width)} }}")
            continue
        # It does not move along the group: the first place writes the one element.
        first = "if (j == 0) " if width > 1 else ""
        text.append(f"{first}{{ {when}store({store.access.address(names)}, {store.result}); }}")
    return [*text, *(["}"] if width > 1 else []), *after]


def store_group(access: Access, source: str, names: Sequence[str], axis: int, width: int) -> str:
    """The statement that writes a group that is held whole."""
    at = access.address(names)
    single = f"({at})[j * {access.strides[axis]}] = {source}.at[j];"
    by_one = f'_Pragma("unroll") for (int j = 0; j < {width}; ++j) if (whole || j < count) {single}'
    if not access.is_vector(axis, width):
        return by_one
    return f"if (wide && whole) store_pack<{access.item}, {width}>({at}, {source}, true); else {{ {by_one} }}"
