"""What a saved executable says of itself: for which machine and versions, with which options, which plan runs what."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from graphdnn.strict_json import Record
from graphdnn.target import Target

UNCOMPARED = ("driver_release",)
"""Facts that a file states for its reader and that may differ where it is loaded: what was built under one release of
the driver runs under another."""

Count = Annotated[int, Field(ge=0, lt=1 << 62)]


class PlanModel(Record):
    """One built plan; what its engine needs to make it again is the section `plan.<its place in the list>`."""

    engine: str
    name: str
    workspace_bytes: Count
    precision: str
    deterministic: bool
    notes: list[str]
    kernels: Count


class StepModel(Record):
    """One region of the cover: its nodes in the prepared graph, and the plan, by its place in the list."""

    nodes: Annotated[list[str], Field(min_length=1)]
    plan: Count


class ManifestModel(Record):
    """The whole.  `environment` must be the same where the plans are to be restored; `left_out` are passes that tuning
    left out for speed."""

    kind: Annotated[str, Field(pattern=r"^(cpu|cuda)$")]
    environment: dict[str, str]
    options: dict[str, Any]
    left_out: list[str]
    plans: list[PlanModel]
    steps: list[StepModel]


def environment(target: Target) -> dict[str, str]:
    """What plans depend on besides their region: this package, the device, and its libraries."""
    from graphdnn import __version__

    found = {"graphdnn": __version__, "device": target.name}
    if target.kind == "cuda":
        found |= {"architecture": target.arch, "multiprocessors": str(target.sm_count)}
    return {**found, **target.versions}


def difference(saved: dict[str, str], here: dict[str, str]) -> str:
    """In what two environments differ first, in words; empty where they are the same."""
    for name in compared(saved, here):
        if saved.get(name) != here.get(name):
            return f"it was compiled for {named(name, saved)}, and here is {named(name, here)}"
    return ""


def compared(there: dict[str, str], here: dict[str, str]) -> list[str]:
    """The facts in which a file may differ from where it is read, each once."""
    return [name for name in dict.fromkeys((*there, *here)) if name not in UNCOMPARED]


def named(name: str, environment: dict[str, str]) -> str:
    return f"{name} {environment[name]}" if name in environment else f"no {name}"
