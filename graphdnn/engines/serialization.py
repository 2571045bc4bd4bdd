"""Saved plans: bytes that say which plan of which region they are, under a checksum, with parts that the engine reads.

Whatever stands in such bytes, nothing of it reaches a library before length, checksum and identity have been compared.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import Any

from graphdnn.answer import Code, Decline
from graphdnn.engines.contract import Candidate
from graphdnn.ir.region import Region

MAGIC = b"gdnnpln1"
CHECKSUM = 32
COUNTS = struct.Struct("<II")
"""Bytes of the identity and number of parts.  They follow magic and SHA-256 over all that stands behind it."""

LENGTH = struct.Struct("<Q")
"""Bytes of one part; the lengths of all parts stand before the identity."""

BODY = len(MAGIC) + CHECKSUM
SHORTEST = BODY + COUNTS.size

Identity = Mapping[str, str]
"""What a saved plan is of: it is used only where every entry is the same."""


def identity_of(candidate: Candidate, environment: Mapping[str, str]) -> dict[str, str]:
    """Engine, region and plan with what else must be equal: device, driver, libraries (`environment`)."""
    return {"engine": candidate.engine, "region": candidate.region.key, "plan": candidate.name, **environment}


def key_text(identity: Identity) -> str:
    """An identity as one line of text, such as a cache takes for a key and a person can read."""
    return json.dumps(dict(identity), sort_keys=True)


def pack(identity: Identity, *parts: bytes) -> bytes:
    """The parts with the identity, under a checksum."""
    head = key_text(identity).encode()
    lengths = b"".join(LENGTH.pack(len(part)) for part in parts)
    body = b"".join((COUNTS.pack(len(head), len(parts)), lengths, head, *parts))
    return MAGIC + hashlib.sha256(body).digest() + body


def unpack(content: bytes, identity: Identity) -> list[bytes] | Decline:
    """The parts of a saved plan; declines with `build` where it is damaged, with `version` where it is of another
    plan, device or version."""
    if len(content) < SHORTEST or not content.startswith(MAGIC):
        return damaged(f"its {len(content)} bytes do not start with the header of one")
    if hashlib.sha256(content[BODY:]).digest() != content[len(MAGIC) : BODY]:
        return damaged("its checksum does not match")
    head_bytes, count = COUNTS.unpack_from(content, BODY)
    if SHORTEST + count * LENGTH.size > len(content):
        return damaged(f"it has no room for {count} parts")
    sizes = [LENGTH.unpack_from(content, SHORTEST + i * LENGTH.size)[0] for i in range(count)]
    start = SHORTEST + count * LENGTH.size
    places = list(accumulate((head_bytes, *sizes), initial=start))
    if places[-1] != len(content):
        return damaged(f"its parts take {places[-1]} bytes, and it has {len(content)}")
    different = difference(json_object(content[start : places[1]]), identity)
    if different is not None:
        return different
    return [content[first:end] for first, end in pairwise(places[1:])]


def json_object(text: bytes) -> dict[str, Any] | None:
    """A JSON object, or None where the text is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def difference(found: Mapping[str, Any] | None, identity: Identity) -> Decline | None:
    """The decline that names the first fact that is not as needed; None where all are."""
    if found is None:
        return damaged("it does not say what it is of")
    for name in sorted(found.keys() | identity.keys()):
        if found.get(name) != identity.get(name):
            return Decline(
                Code.VERSION,
                f"a saved plan is of {name} {found.get(name)!r}, and {identity.get(name)!r} is needed here",
            )
    return None


def damaged(how: str) -> Decline:
    """The decline for bytes that are no saved plan."""
    return Decline(Code.BUILD, f"a saved plan is damaged: {how}")


def unknown_plan(engine: str, name: str, region: Region) -> Decline:
    """The decline for a name that is none of the engine's plans of this region."""
    return Decline(Code.BUILD, f"{engine} has no plan named {name!r} for {region.pattern}")
