"""What is cached of cuDNN between processes: the proposals of its heuristics and its plans, their keys and formats.

Reading a plan takes less time than making the operation graph it came from, and the heuristics take 10 to 460 ms.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from graphdnn.answer import Decline
from graphdnn.engines.cudnn.plans import Bindings, CudnnPlan, PlanName, Proposal
from graphdnn.engines.environment import environment
from graphdnn.engines.serialization import Identity, damaged, json_object, key_text, pack, unpack
from graphdnn.ir.region import Region
from graphdnn.spelling import quoted
from graphdnn.target import Target

PROPOSALS = "cudnn-proposals"
PLANS = "cudnn-plan"


def environment_here(cudnn: Any, target: Target) -> dict[str, str]:
    """Device, driver and library versions on which a cached proposal or plan depends."""
    return environment(target, "cudnn", cudnn=str(cudnn.backend_version()), frontend=cudnn.__version__)


def proposals_key(cudnn: Any, region: Region, target: Target) -> str:
    """The key under which the heuristics' proposals for a region are cached."""
    return key_text({"region": region.key, **environment_here(cudnn, target)})


def encode_proposals(found: Sequence[Proposal]) -> bytes:
    """The heuristics' answer as bytes."""
    return json.dumps([[str(p.name), p.workspace, list(p.notes), p.deterministic] for p in found]).encode()


def decode_proposals(content: bytes) -> list[Proposal] | None:
    """The heuristics' answer again, or None where the bytes are none."""
    try:
        rows = json.loads(content)
        return [decode_proposal(row) for row in rows] if isinstance(rows, list) else None
    except (ValueError, RecursionError):
        return None


def decode_proposal(row: Any) -> Proposal:
    """One plan of the answer.  Raises ValueError where it is not what `encode_proposals` writes."""
    match row:
        case [str() as name, int() as workspace, [*notes], bool() as deterministic] if is_count(workspace):
            if all(isinstance(note, str) for note in notes):
                return Proposal(PlanName.parse(name), workspace, tuple(notes), deterministic)
    raise ValueError(f"{quoted(row)} describes no plan")


@dataclass(frozen=True)
class SerializedPlan:
    """A plan as cuDNN wrote it down (`content`, empty where it could not), with what running it needs beside it."""

    bindings: Bindings
    workspace: int
    content: bytes


def encode_plan(plan: CudnnPlan) -> bytes:
    """A built plan as bytes."""
    beside = {"bindings": plan.bindings, "workspace": plan.workspace_bytes}
    return pack(plan.identity, json.dumps(beside).encode(), plan.content)


def decode_plan(content: bytes, identity: Identity, region: Region) -> SerializedPlan | Decline:
    """What `encode_plan` wrote, checked; declines where it is damaged or of another plan, device or version."""
    parts = unpack(content, identity)
    if isinstance(parts, Decline):
        return parts
    beside = json_object(parts[0]) if len(parts) == 2 else None
    if beside is None or beside.keys() != {"bindings", "workspace"}:
        return damaged("it does not say where its tensors are bound")
    bindings, workspace = beside["bindings"], beside["workspace"]
    if not is_count(workspace) or not isinstance(bindings, list):
        return damaged(f"its workspace is {quoted(workspace)} and its bindings are a {type(bindings).__name__}")
    places = len(region.inputs) + len(region.outputs)
    if not all(isinstance(b, list) and len(b) == 2 and all(map(is_count, b)) and b[1] < places for b in bindings):
        return damaged(f"its bindings {quoted(bindings)} are not those of {places} tensors")
    return SerializedPlan(tuple((uid, index) for uid, index in bindings), workspace, parts[1])


def is_count(number: Any) -> bool:
    """Whether this is a whole number that a library takes, such as bytes or the number of a tensor."""
    return type(number) is int and 0 <= number < 2**63
