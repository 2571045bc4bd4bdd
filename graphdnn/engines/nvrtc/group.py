"""The C++ text by which a thread loads a group of neighbouring elements, computes with each, and stores the results.

Pointwise kernels consist of it; matmuls, convolutions and pooling end in it.  It reads the index variables that it is
given by name.  Where groups have more than one element it also reads `whole` (whether the whole group lies inside the
tensor), `count` (how many of its elements do) and `wide` (see `wide_condition`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphdnn.engines.nvrtc.emit import register, storage
from graphdnn.engines.nvrtc.hardware import VECTOR_BYTES
from graphdnn.engines.nvrtc.indexing import offset_terms
from graphdnn.ir.graph import Value


@dataclass(frozen=True)
class Access:
    """How a kernel addresses one tensor: the name of its parameter, the value, and strides along the kernel's axes.

    Index 0 along all axes is element `offset` of the tensor.  `when` is the C++ condition under which there is an
    element at the current indices, empty where there always is.
    """

    name: str
    value: Value
    strides: tuple[int, ...]
    offset: int = 0
    when: str = ""

    @property
    def item(self) -> str:
        return storage(self.value.type.dtype)

    def address(self, names: Sequence[str]) -> str:
        """C++ expression of the address at these indices."""
        start = f"{self.offset} + " if self.offset else ""
        return f"{self.name} + ({start}{offset_terms(self.strides, names)})"

    def is_held_whole(self, axis: int, width: int) -> bool:
        """Whether a group along `axis` holds more than one element."""
        return width > 1 and self.strides[axis] != 0

    def is_vector(self, axis: int, width: int) -> bool:
        """Whether groups along `axis` are neighbours in memory and start at multiples of the width."""
        others = (s for a, s in enumerate(self.strides) if a != axis)
        starts = self.offset % width == 0 and all(s % width == 0 for s in others)
        return width > 1 and self.strides[axis] == 1 and starts

    def piece(self, width: int) -> int:
        """Bytes to which a group's address must be aligned to be moved as vectors."""
        return min(VECTOR_BYTES, width * self.value.type.dtype.itemsize)


@dataclass(frozen=True)
class Store:
    """One output: its access, the C++ expression of the element, and the condition `only` under which it is stored."""

    access: Access
    result: str
    only: str = ""


def wide_condition(accesses: Sequence[Access], axis: int, width: int, name: str = "wide") -> str:
    """Statement that declares `name`: whether the addresses of all vectors are aligned, the same in all threads."""
    if width == 1:
        return ""
    checks = dict.fromkeys(f"aligned({a.piece(width)}, {a.name})" for a in accesses if a.is_vector(axis, width))
    return f"const bool {name} = {' && '.join(checks) or 'false'};"


def held(access: Access, axis: int, width: int) -> str:
    """C++ type of what a thread keeps of one load."""
    return f"Pack<{access.item}, {width}>" if access.is_held_whole(axis, width) else access.item


def load_group(access: Access, into: str, names: Sequence[str], axis: int, width: int) -> str:
    """The statement that fills the variable `into`, of type `held(...)`."""
    when = f"if ({access.when}) " if access.when else ""
    at = access.address(names)
    if not access.is_held_whole(axis, width):
        return f"{when}{into} = *({at});"
    single = f"{into}.at[j] = ({at})[j * {access.strides[axis]}];"
    by_one = f'_Pragma("unroll") for (int j = 0; j < {width}; ++j) if (whole || j < count) {single}'
    if not access.is_vector(axis, width):
        return f"{when}{{ {by_one} }}" if when else by_one
    text = f"if (wide && whole) {into} = load_pack<{access.item}, {width}>({at}, true); else {{ {by_one} }}"
    return f"{when}{{ {text} }}" if when else text


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
