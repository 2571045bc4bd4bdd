"""Arrays by name in a safetensors file: eight bytes of header length, a JSON header, then the elements, nothing else.

The format is small and the file may come from anywhere, so it is read here, with every claim of the header checked
before it is used; no library is needed for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from graphdnn.errors import GraphError
from graphdnn.files import AtomicFile
from graphdnn.ir.types import DTYPES, LARGEST_RANK, Array
from graphdnn.spelling import quoted

NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
"""What the format calls our data types."""

BY_NAME = {name: DTYPES[dtype] for dtype, name in NAMES.items()}
PREFIX = 8
LARGEST_HEADER = 100_000_000
"""Bytes; the limit of the format."""

ALIGNMENT = 64
"""The header is filled up with spaces so that the first array starts at a multiple of this."""


def write_tensors(path: Path, arrays: Mapping[str, Array]) -> None:
    """Writes the arrays, widest elements first, so that each is aligned to its element.  The file appears whole."""
    header: dict[str, object] = {}
    order = sorted(arrays, key=lambda n: (-arrays[n].dtype.itemsize, n))
    offset = 0
    for name in order:
        array = arrays[name]
        end = offset + array.nbytes
        header[name] = {"dtype": NAMES[array.dtype.name], "shape": list(array.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(PREFIX + len(text)) % ALIGNMENT)
    with AtomicFile(path) as file:
        file.write(len(text).to_bytes(PREFIX, "little") + text)
        for name in order:
            file.write(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data)


def read_tensors(path: Path) -> dict[str, Array]:
    """The arrays of a file, read-only.  Raises GraphError naming the file and what is wrong with it."""
    content = path.read_bytes()
    header, start = read_header(path.name, content)
    data = memoryview(content)[start:]
    arrays: dict[str, Array] = {}
    spans: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype, shape, (first, end) = read_entry(f"{path.name}: tensor {name}", entry, len(data))
        spans.append((first, end, name))
        arrays[name] = np.frombuffer(data[first:end], np.uint8).view(BY_NAME[dtype].numpy).reshape(shape)
    check_coverage(path.name, sorted(spans), len(data))
    return arrays


def read_header(who: str, content: bytes) -> tuple[dict[str, Any], int]:
    """The header and where the elements start."""
    length = int.from_bytes(content[:PREFIX], "little")
    if len(content) < PREFIX or length > min(len(content) - PREFIX, LARGEST_HEADER):
        raise GraphError(
            f"{who}: the header is said to take {length} bytes, but the file has {len(content)}; it is damaged or no "
            "safetensors file"
        )
    try:
        header = json.loads(content[PREFIX : PREFIX + length].decode("utf-8"), object_pairs_hook=distinct)
    except (ValueError, RecursionError) as error:
        raise GraphError(f"{who}: the header is no JSON ({error}); it is damaged or no safetensors file") from None
    if not isinstance(header, dict):
        raise GraphError(f"{who}: the header is a JSON {type(header).__name__}; an object of tensors is needed")
    return header, PREFIX + length


def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object as a dict.  Raises ValueError for a name that stands in it twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the name {quoted(next(n for n in names if names.count(n) > 1))} stands in one object twice")
    return found


def read_entry(who: str, entry: Any, available: int) -> tuple[str, tuple[int, ...], tuple[int, int]]:
    """Data type, shape and byte range of one tensor, each checked against the others."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise GraphError(f"{who}: its entry needs dtype, shape and data_offsets, and nothing else")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BY_NAME:
        raise GraphError(f"{who}: dtype is {quoted(dtype)}; one of {', '.join(BY_NAME)} is needed")
    if not whole_numbers(shape) or len(shape) > LARGEST_RANK:
        raise GraphError(f"{who}: shape is {quoted(shape)}; a list of at most {LARGEST_RANK} whole numbers is needed")
    if not whole_numbers(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= available:
        raise GraphError(
            f"{who}: data_offsets are {quoted(offsets)}; two ascending numbers up to {available} are needed"
        )
    needed = prod(shape) * BY_NAME[dtype].itemsize
    if offsets[1] - offsets[0] != needed:
        raise GraphError(f"{who}: {dtype} of shape {shape} takes {needed} bytes, but data_offsets are {offsets}")
    return dtype, tuple(shape), (offsets[0], offsets[1])


def whole_numbers(entries: Any) -> bool:
    return isinstance(entries, list) and all(type(n) is int and 0 <= n < 2**63 for n in entries)


def check_coverage(who: str, spans: list[tuple[int, int, str]], available: int) -> None:
    """Raises GraphError unless the tensors lie one after the other and fill the file."""
    place = 0
    for first, end, name in spans:
        if first != place:
            raise GraphError(f"{who}: tensor {name} starts at byte {first} of the data, where {place} is needed")
        place = end
    if place != available:
        raise GraphError(f"{who}: the tensors take {place} bytes, but the file has {available} bytes of data")
