"""What is saved of a cuBLASLt plan: its algorithms, opaque to all but the library's version that chose them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from graphdnn.answer import Decline
from graphdnn.engines.cublaslt.library import Algorithm
from graphdnn.engines.cublaslt.problem import Problem
from graphdnn.engines.cublaslt.support import arithmetic_of
from graphdnn.engines.serialization import damaged, json_object
from graphdnn.spelling import quoted

FIELDS: dict[str, type] = {
    "name": str,
    "workspace_bytes": int,
    "split_k": int,
    "reduction": int,
    "flags": int,
    "waves": float,
}
"""What is saved of an algorithm beside its content, with each field's type."""


def encode_algorithms(compute: str, algorithms: Sequence[Algorithm]) -> list[bytes]:
    """The compute type and the algorithms as parts of a saved plan."""
    rows = [{name: getattr(a, name) for name in FIELDS} for a in algorithms]
    head = json.dumps({"compute": compute, "algorithms": rows}).encode()
    return [head, *(a.content for a in algorithms)]


def decode_algorithms(parts: Sequence[bytes], problem: Problem, size: int) -> tuple[str, list[Algorithm]] | Decline:
    """What `encode_algorithms` wrote, checked; `size` is that of an algorithm's content."""
    head = json_object(parts[0]) if len(parts) in (2, 3) else None
    if head is None or head.keys() != {"compute", "algorithms"}:
        return damaged("it does not say how it computes")
    compute, rows = head["compute"], head["algorithms"]
    known = arithmetic_of(problem)
    if compute not in (known.compute, known.relaxed):
        return damaged(
            f"it computes in {quoted(compute)}; {known.compute} or {known.relaxed} is what such operands need"
        )
    if not isinstance(rows, list) or len(rows) != len(parts) - 1:
        return damaged(f"it describes other than {len(parts) - 1} algorithms")
    for row, content in zip(rows, parts[1:], strict=True):
        if not isinstance(row, dict) or {k: type(v) for k, v in row.items()} != FIELDS or row["workspace_bytes"] < 0:
            return damaged(f"{quoted(row)} describes no algorithm")
        if len(content) != size:
            return damaged(f"an algorithm has {len(content)} bytes where {size} are needed")
    return compute, [Algorithm(content, **row) for row, content in zip(rows, parts[1:], strict=True)]
