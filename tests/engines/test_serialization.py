"""Saved plans: bytes that are damaged or of something else are refused with the reason, whatever they hold."""

import hashlib
import json
import random
import struct

import pytest

import graphdnn as gd
from graphdnn.answer import Code, Decline
from graphdnn.engines.contract import Candidate, Engine, Policy
from graphdnn.engines.manifest import load_engine
from graphdnn.engines.serialization import BODY, MAGIC, identity_of, key_text, pack, unpack
from graphdnn.ir.region import Region
from graphdnn.runtime.device import HostDevice
from tests.cases.fake_engine import FakeEngine, Faulting
from tests.engines.cudnn.layouts import whole

WHO = {"engine": "e", "plan": "p"}


def sealed(body: bytes) -> bytes:
    """Any body under a checksum that fits."""
    return MAGIC + hashlib.sha256(body).digest() + body


@pytest.mark.parametrize("parts", [(), (b"",), (b"a", b"", bytes(range(256)))])
def test_parts_are_read_as_written(parts: tuple[bytes, ...]) -> None:
    assert unpack(pack(WHO, *parts), WHO) == list(parts)


def test_equal_plans_have_equal_bytes() -> None:
    assert pack({"b": "2", "a": "1"}, b"x") == pack({"a": "1", "b": "2"}, b"x")
    assert key_text({"b": "2", "a": "1"}) == '{"a": "1", "b": "2"}'


@pytest.mark.parametrize("change", [{"plan": "q"}, {"engine": ""}, {"driver": "580"}])
def test_another_identity_is_refused_by_name(change: dict[str, str]) -> None:
    content = pack(WHO, b"content")
    for stored, needed in ((content, {**WHO, **change}), (pack({**WHO, **change}, b"content"), WHO)):
        answer = unpack(stored, needed)
        assert isinstance(answer, Decline)
        assert answer.code == Code.VERSION
        assert next(iter(change)) in answer.reason


def test_every_truncation_and_every_flipped_bit_is_noticed() -> None:
    content = pack(WHO, b"first", b"second")
    for size in range(len(content)):
        assert isinstance(unpack(content[:size], WHO), Decline), size
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        assert isinstance(unpack(bytes(flipped), WHO), Decline), bit
    assert isinstance(unpack(content + b"\0", WHO), Decline)


def test_absurd_counts_under_a_right_checksum_are_refused() -> None:
    head = json.dumps(WHO, sort_keys=True).encode()
    bodies = [
        struct.pack("<II", 2**32 - 1, 0),
        struct.pack("<II", 0, 2**32 - 1),
        struct.pack("<II", len(head), 1) + struct.pack("<Q", 2**64 - 1) + head,
        struct.pack("<II", len(head), 2) + struct.pack("<QQ", 2**63, 2**63) + head,
        struct.pack("<II", len(head), 1) + struct.pack("<Q", 1) + head,
        struct.pack("<II", len(head), 0) + head + b"more",
        struct.pack("<II", 2, 0) + b"[]",
        struct.pack("<II", 1, 0) + b"{",
        struct.pack("<II", 2, 0) + b"\xff\xfe",
        struct.pack("<II", 200_000, 0) + b"[" * 200_000,
    ]
    for body in bodies:
        answer = unpack(sealed(body), WHO)
        assert isinstance(answer, Decline)
        assert answer.code == Code.BUILD


def test_noise_is_refused() -> None:
    draw = random.Random(1)
    for _ in range(500):
        noise = draw.randbytes(draw.randrange(200))
        assert isinstance(unpack(noise, WHO), Decline)
        assert isinstance(unpack(sealed(noise), WHO), Decline)
        assert isinstance(unpack(pack(WHO)[:BODY] + noise, WHO), Decline)


@pytest.fixture
def region() -> Region:
    g = gd.GraphBuilder()
    return whole(g.build({"y": g.relu(g.input("x", (4, 6), gd.float32))}))


@pytest.mark.parametrize("engine", [load_engine("reference"), FakeEngine()], ids=lambda e: e.name)
def test_host_engines_name_save_and_restore(engine: Engine, region: Region) -> None:
    device = HostDevice()
    found = engine.candidates(region, device, Policy())
    assert not isinstance(found, Decline)
    candidate = engine.named(region, found[0].name, device, Policy())
    assert candidate == found[0]
    plan = engine.build(found[0], device)
    assert not isinstance(plan, Decline)
    content = engine.save(found[0], plan)
    bare = Candidate(engine.name, region, found[0].name, 0, "")
    assert engine.restore(bare, content, device)
    assert isinstance(engine.restore(bare, content[:-1], device), Decline)
    assert isinstance(engine.restore(Candidate(engine.name, region, "other", 0, ""), content, device), Decline)
    answer = engine.named(region, "other", device, Policy())
    assert isinstance(answer, Decline)
    assert "'other'" in answer.reason


def test_the_fake_engine_restores_what_it_saved(region: Region) -> None:
    engine = FakeEngine()
    candidate = Candidate("fake", region, "plan0", 0, "", recipe="run")
    plan = engine.restore(candidate, engine.save(candidate, Faulting()), HostDevice())
    assert isinstance(plan, Faulting)


def test_an_identity_says_what_the_plan_is_of(region: Region) -> None:
    identity = identity_of(Candidate("e", region, "p", 0, ""), {"device": "h200"})
    assert identity == {"engine": "e", "region": region.key, "plan": "p", "device": "h200"}
