"""compile as a whole: what happens where engines promise more than they hold, and what it refuses."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.answer import Code, Decline
from graphdnn.engines import manifest
from graphdnn.engines.contract import Candidate, Device, HostPlan, Policy, Support
from graphdnn.engines.reference import ReferenceEngine
from graphdnn.ir.op import Op
from graphdnn.ir.region import Region
from graphdnn.target import Target


def has_composite(region: Region) -> bool:
    return any(type(n.op).expand is not Op.expand for n in region.nodes)


class Boastful:
    """Takes composite ops on paper and can build none of them."""

    name = "boastful"

    def supports(self, region: Region, target: Target, policy: Policy) -> Support | Decline:
        if not has_composite(region):
            return Decline(Code.OP, "boastful takes composite ops only")
        return Support(0.001, "float32")

    def candidates(self, region: Region, device: Device, policy: Policy) -> Sequence[Candidate]:
        return (Candidate(self.name, region, "only", 0, "float32"),)

    def build(self, candidate: Candidate, device: Device) -> Decline:
        return Decline(Code.BUILD, "the library gave up")


class Plain(ReferenceEngine):
    """Takes everything but composite ops."""

    name = "plain"

    def supports(self, region: Region, target: Target, policy: Policy) -> Support | Decline:
        if has_composite(region):
            return Decline(Code.OP, "plain takes no composite ops")
        return super().supports(region, target, policy)

    def candidates(self, region: Region, device: Device, policy: Policy) -> Sequence[Candidate]:
        return (Candidate(self.name, region, "numpy", 0, "float32"),)

    def build(self, candidate: Candidate, device: Device) -> HostPlan:
        return super().build(candidate, device)


@pytest.fixture
def two_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = {"boastful": Boastful, "plain": Plain}
    monkeypatch.setattr(manifest, "load_engine", lambda name: engines[name]())
    monkeypatch.setitem(manifest.BY_KIND, "cpu", tuple(engines))


@pytest.mark.usefixtures("two_engines")
def test_what_no_plan_can_be_built_for_is_expanded_after_all(rng: np.random.Generator) -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (5, 7), gd.float32)
    graph = g.build({"y": g.softmax(g.layer_norm(x, name="norm"), name="soft")})
    exe = gd.compile(graph, target="cpu")
    inputs = {"x": rng.standard_normal((5, 7)).astype(np.float32)}
    np.testing.assert_allclose(exe(inputs)["y"], gd.evaluate(graph, inputs, gd.float64)["y"], rtol=1e-5, atol=1e-6)
    assert {r.engine for r in exe.report.regions} == {"plain"}
    told = [c for c in exe.report.candidates if c.engine == "boastful" and c.verdict == "failed"]
    assert {node for c in told for node in c.nodes} >= {"norm", "soft"}
    assert all("the library gave up" in c.reason for c in told)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"graph": "text"}, "graph is a str"),
        ({"options": {"precision": "tf32"}}, "options is a dict"),
        ({"target": "h200"}, r'gd\.Target\.named\("h200"\)'),
        ({"target": 3}, "target is 3; .* is needed$"),
        ({"target": Target("x", "tpu", False, 1e12, {"float32": 1e12})}, r"target x .* of kind 'tpu'; cuda or cpu"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, object], message: str) -> None:
    g = gd.GraphBuilder()
    graph = g.build({"y": g.relu(g.input("x", (3,), gd.float32))})
    with pytest.raises(gd.CompileError, match=message):
        gd.compile(**({"graph": graph, "target": "cpu"} | arguments))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"disabled_passes": ("fuze",)}, r"disabled_passes is \('fuze',\): 'fuze' is not one of canonicalize, .*fuse"),
        ({"cache_dir": "a\0b"}, "cache_dir is .*: a path without null characters is needed"),
        ({"workspace_limit": True}, "workspace_limit is True; a whole number is needed"),
    ],
)
def test_wrong_options_are_named(option: dict[str, Any], message: str) -> None:
    with pytest.raises(gd.CompileError, match=message):
        gd.CompileOptions(**option)
