"""Says which axis makes a function be built again and again, and what would help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphdnn.answer import Decline
from graphdnn.ir.graph import Graph
from graphdnn.specialize.padding import Padding
from graphdnn.specialize.proof import masks_needed
from graphdnn.specialize.routes import Lengths, limits_of
from graphdnn.specialize.signature import Form, Signature, signature_text
from graphdnn.spelling import counted

VALUES_SHOWN = 6
"""Values of an axis that a warning lists; enough to see what they are."""

Axis = tuple[str, int]
"""A parameter and one of its axes."""


class RepeatedBuildsWarning(UserWarning):
    """A function was built for many signatures; the message names what varies and what would help."""


def varying_axes(names: Sequence[str], signatures: Sequence[Signature]) -> dict[tuple[int, ...], list[Axis]]:
    """Axes that took several extents, those that always vary together under one key: the extents in order of time.

    Parameters whose rank varies, or that some calls leave out, have no axes to speak of.
    """
    found: dict[tuple[int, ...], list[Axis]] = {}
    for name, forms in zip(names, zip(*signatures, strict=True), strict=True):
        shapes = [form[1] for form in forms if form is not None]
        if len(shapes) < len(forms) or len({len(s) for s in shapes}) > 1:
            continue
        for axis, extents in enumerate(zip(*shapes, strict=True)):
            if len(set(extents)) > 1:
                found.setdefault(tuple(extents), []).append((name, axis))
    return found


def other_causes(names: Sequence[str], signatures: Sequence[Signature]) -> list[str]:
    """What else differs between signatures: types, layouts, ranks, parameters left out."""
    found: list[str] = []
    for name, forms in zip(names, zip(*signatures, strict=True), strict=True):
        given: list[Form] = [form for form in forms if form is not None]
        if 0 < len(given) < len(forms):
            found.append(f"{name} was given or left out")
        for what, values in (
            ("types", dict.fromkeys(form[0] for form in given)),
            ("ranks", dict.fromkeys(str(len(form[1])) for form in given)),
            ("orders of axes", dict.fromkeys(str(form[2] or "row-major") for form in given)),
        ):
            if len(values) > 1 and not (what == "orders of axes" and len({len(form[1]) for form in given}) > 1):
                found.append(f"{name} had the {what} {listed(list(values))}")
    return found


def listed(values: Sequence[object]) -> str:
    """The first distinct values, and dots where there are more."""
    distinct = list(dict.fromkeys(map(str, values)))
    return ", ".join(distinct[:VALUES_SHOWN]) + (", ..." if len(distinct) > VALUES_SHOWN else "")


def warning(padding: Padding, builds: int, signatures: Sequence[Signature], graphs: Mapping[Signature, Graph]) -> str:
    """One sentence on why a function was built so often: the last of its builds by signature, and the graphs kept."""
    name, names = padding.function.name, padding.names
    axes = varying_axes(names, signatures)
    places = [axis for together in axes.values() for axis in together]
    causes = [f"{' and '.join(map(said_of, places))} took {listed(extents)}" for extents, places in axes.items()]
    causes += other_causes(names, signatures)
    said = f"{name} was built {counted(builds, 'time')}"
    if len(signatures) == 1:
        return f"{said}, for {signature_text(names, signatures[0])}"
    distinct = len(set(signatures))
    if distinct <= len(signatures) / 2:
        return (
            f"{said}, lately for {distinct} signatures that displace each other; max_entries={distinct} keeps them all"
        )
    said = f"{said}, as {', and '.join(causes)}"
    if not places:
        return f"{said}; inputs that are converted before the call are built for once"
    free = [(n, axis) for n, axis in places if axis not in buckets_of(n, signatures, padding)]
    if not free:
        return f"{said}; coarser buckets of {' and '.join(map(said_of, places))} need fewer builds"
    reason = why_not_padded(graphs, padding.lengths)
    if reason is not None:
        return f"{said}, and cannot be padded to fewer sizes, since {reason}"
    rules: dict[str, dict[int, str]] = {}
    for n, axis in free:
        rules.setdefault(n, {})[axis] = "pow2"
    return f"{said}; buckets={rules} pads to a few sizes that are built for once each"


def said_of(axis: Axis) -> str:
    return f"axis {axis[1]} of {axis[0]}"


def buckets_of(name: str, signatures: Sequence[Signature], padding: Padding) -> set[int]:
    """Axes of a parameter that are padded already, counted from the front."""
    form = signatures[-1][padding.names.index(name)]
    return set() if form is None else {axis % len(form[1]) for axis in padding.buckets.get(name, {})}


def why_not_padded(graphs: Mapping[Signature, Graph], lengths: Lengths) -> str | None:
    """Why a kept graph could not be padded to another; None where it could, or where there are no two such."""
    for smaller, exact in graphs.items():
        for larger, padded in graphs.items():
            if smaller != larger and is_within(smaller, larger):
                answer = masks_needed(exact, padded, limits_of(exact, lengths))
                return answer.reason if isinstance(answer, Decline) else None
    return None


def is_within(smaller: Signature, larger: Signature) -> bool:
    """Whether one signature differs from another in shorter axes only."""
    for ours, theirs in zip(smaller, larger, strict=True):
        if (ours is None) != (theirs is None):
            return False
        if ours is None or theirs is None:
            continue
        if (ours[0], len(ours[1]), ours[2]) != (theirs[0], len(theirs[1]), theirs[2]):
            return False
        if any(n > m for n, m in zip(ours[1], theirs[1], strict=True)):
            return False
    return True
