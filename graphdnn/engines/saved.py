"""Saved plans: bytes that say which plan of which region they are, under a checksum, with parts that the engine reads.

Whatever stands in such bytes, nothing of it reaches a library before length, checksum and identity have been compared.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping

from graphdnn.answer import Code, Decline
from graphdnn.engines.contract import Candidate
from graphdnn.ir.region import Region

MAGIC = b"gdnnpln1"
HEADER = struct.Struct("<8s32sII")
"""Magic, SHA-256 over all that follows it, bytes of the identity, number of parts."""

LENGTH = struct.Struct("<Q")
"""Bytes of one part; the lengths of all parts stand before the identity."""

Identity = Mapping[str, str]
"""What a saved plan is of: it is used only where every entry is the same."""


def identity(candidate: Candidate, environment: Mapping[str, str]) -> dict[str, str]:
    """Engine, region and plan with what else must be equal: device, driver, libraries (`environment`)."""
    return {"engine": candidate.engine, "region": candidate.region.key, "plan": candidate.name, **environment}


def pack(who: Identity, *parts: bytes) -> bytes:
    """The parts with the identity, under a checksum."""
    head = json.dumps(dict(who), sort_keys=True).encode()
    counts = struct.pack("<II", len(head), len(parts))
    body = b"".join((*(LENGTH.pack(len(p)) for p in parts), head, *parts))
    return MAGIC + hashlib.sha256(counts + body).digest() + counts + body


def unpack(content: bytes, who: Identity) -> list[bytes] | Decline:
    """The parts of a saved plan; declines with `build` where it is damaged, with `version` where it is of another
    plan, device or version."""
    if len(content) < HEADER.size or not content.startswith(MAGIC):
        return damaged(f"it has {len(content)} bytes and no header of one")
    _, checksum, head_bytes, count = HEADER.unpack_from(content)
    if hashlib.sha256(content[len(MAGIC) + len(checksum) :]).digest() != checksum:
        return damaged("its checksum does not match")
    start = HEADER.size + count * LENGTH.size
    sizes = [LENGTH.unpack_from(content, HEADER.size + i * LENGTH.size)[0] for i in range(count)]
    found: dict[str, str] = json.loads(content[start : start + head_bytes])
    for name in sorted(found.keys() | who.keys()):
        if found.get(name) != who.get(name):
            return Decline(
                Code.VERSION, f"a saved plan has {name} {found.get(name)!r}, and {who.get(name)!r} is needed here"
            )
    parts, place = [], start + head_bytes
    for size in sizes:
        parts.append(content[place : place + size])
        place += size
    return parts


def damaged(how: str) -> Decline:
    """The decline for bytes that are no saved plan."""
    return Decline(Code.BUILD, f"a saved plan is damaged: {how}")


def unnamed(engine: str, name: str, region: Region) -> Decline:
    """The decline for a name that is none of the engine's plans of this region."""
    return Decline(Code.BUILD, f"{engine} has no plan named {name!r} for {region.pattern}")
