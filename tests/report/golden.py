"""Graphs whose reports are kept as text, made so that a fix of the report can be applied to them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import graphdnn as gd
from graphdnn.ir.graph import Value
from graphdnn.ir.types import DType
from graphdnn.report.model import CompileReport, FixReport
from tests.planned import h200_report

DTYPES: dict[str, DType] = {t.name: t for t in (gd.float16, gd.bfloat16, gd.float32, gd.float64, gd.int32)}


@dataclass
class Wishes:
    """What a fix asks of a graph; `met` tells whether the graph had such a thing to change."""

    fix: FixReport | None = None
    met: list[FixReport] = field(default_factory=list)

    def dtype(self, present: DType, *targets: str) -> DType:
        """The element type of what has one of these names."""
        return DTYPES[self._take("dtype", present.name, targets)]

    def extent(self, attribute: str, present: int, *targets: str) -> int:
        return int(self._take(attribute, str(present), targets))

    def options(self) -> dict[str, str]:
        if self.fix is None or self.fix.target != "options":
            return {}
        self.met.append(self.fix)
        return {self.fix.attribute: self.fix.after}

    def _take(self, attribute: str, present: str, targets: tuple[str, ...]) -> str:
        fix = self.fix
        if fix is None or fix.attribute != attribute or fix.target not in targets:
            return present
        assert fix.before == present, f"the fix says {fix.before} where the graph has {present}"
        self.met.append(fix)
        return fix.after


def filled(g: gd.GraphBuilder, name: str, shape: tuple[int, ...], dtype: DType, seed: int) -> Value:
    values = np.random.default_rng(seed).standard_normal(shape)
    return g.constant(values.astype(dtype.numpy), name=name)


def conv_block(wish: Wishes) -> gd.Graph:
    """The README's block: convolution, bias, relu in float16, row-major at its edges."""
    g = gd.GraphBuilder("conv_block")
    w, b = filled(g, "w", (24, 16, 3, 3), gd.float16, 1), filled(g, "b", (24,), gd.float16, 2)
    y = g.conv(g.input("x", (3, 16, 23, 17), gd.float16), w, padding=1, name="conv")
    return g.build({"y": g.relu(g.bias(y, b, axis=1, name="bias"), name="relu")})


def float32_attention(wish: Wishes) -> gd.Graph:
    """Attention that no library takes in float32, between two matrix products."""
    g = gd.GraphBuilder("float32_attention")
    dtype = wish.dtype(gd.float32, "attention")
    q, k = g.input("q", (2, 4, 33, 64), dtype), g.input("k", (2, 4, 65, 64), dtype)
    v = g.input("v", (2, 4, 65, 40), dtype)
    o = g.attention(q, k, v, causal="top_left", name="attention")
    return g.build({"y": g.matmul(o, filled(g, "w", (40, 24), dtype, 3), name="projection")})


def float32_gelu(wish: Wishes) -> gd.Graph:
    """A matrix product and a gelu in float32, which is float32."""
    g = gd.GraphBuilder("float32_gelu")
    y = g.matmul(g.input("x", (65, 300), gd.float32), filled(g, "w", (300, 129), gd.float32, 4), name="product")
    return g.build({"y": g.gelu(y, name="gelu")})


def odd_norm(wish: Wishes) -> gd.Graph:
    """A layer norm over two axes of odd extents, with an addition before it."""
    g = gd.GraphBuilder("odd_norm")
    row = wish.extent("row length", 105, "x", "r", "add")
    shape = (7, row) if row != 105 else (7, 15, 7)
    axes = tuple(range(1, len(shape)))
    total = g.add(g.input("x", shape, gd.float16), g.input("r", shape, gd.float16), name="add")
    parameters = [filled(g, n, shape[1:], gd.float16, 5 + i) for i, n in enumerate(("scale", "shift"))]
    return g.build({"y": g.layer_norm(total, *parameters, axes=axes, name="norm")})


def mixed_norm(wish: Wishes) -> gd.Graph:
    """A norm whose parameters are float32, with an addition before it."""
    g = gd.GraphBuilder("mixed_norm")
    total = g.add(g.input("x", (33, 192), gd.float16), g.input("r", (33, 192), gd.float16), name="add")
    scale = filled(g, "scale", (192,), wish.dtype(gd.float32, "scale"), 6)
    return g.build({"y": g.rms_norm(total, scale, name="norm")})


def odd_heads(wish: Wishes) -> gd.Graph:
    """Attention with 36 features a head."""
    g = gd.GraphBuilder("odd_heads")
    features, dtype = wish.extent("head features", 36, "attention"), wish.dtype(gd.float16, "attention")
    q, k, v = (g.input(n, (2, 3, s, features), dtype) for n, s in (("q", 33), ("k", 65), ("v", 65)))
    return g.build({"o": g.attention(q, k, v, name="attention")})


def depthwise(wish: Wishes) -> gd.Graph:
    """A depthwise convolution with relu, which a generated kernel runs faster than cuDNN."""
    g = gd.GraphBuilder("depthwise")
    w, b = filled(g, "w", (33, 1, 5, 5), gd.float16, 7), filled(g, "b", (33,), gd.float16, 8)
    y = g.conv(g.input("x", (2, 33, 29, 31), gd.float16), w, padding=2, groups=33, name="conv")
    return g.build({"y": g.relu(g.bias(y, b, axis=1, name="bias"), name="relu")})


def norm_relu(wish: Wishes) -> gd.Graph:
    """An inference batch norm with nothing to fold it into, and a relu."""
    g = gd.GraphBuilder("norm_relu")
    parameters = [g.constant(np.linspace(0.5, 2 + i, 23, dtype=np.float32), name=f"p{i}") for i in range(4)]
    x = g.input("x", (3, 23, 9, 7), gd.float16)
    return g.build({"y": g.relu(g.batch_norm(x, *parameters, name="norm"), name="relu")})


def float64_product(wish: Wishes) -> gd.Graph:
    """A product and a norm in float64: a change of types makes the first acceptable alone, the second not."""
    g = gd.GraphBuilder("float64_product")
    dtype = wish.dtype(gd.float64, "x and w")
    y = g.matmul(g.input("x", (65, 33), dtype), filled(g, "w", (33, 17), dtype, 9), name="product")
    return g.build({"y": g.layer_norm(y, name="norm")})


GOLDEN: dict[str, Callable[[Wishes], gd.Graph]] = {
    f.__name__: f
    for f in (
        conv_block,
        float32_attention,
        float32_gelu,
        odd_norm,
        mixed_norm,
        odd_heads,
        depthwise,
        norm_relu,
        float64_product,
    )
}
"""The graphs by the name of their file beside the tests."""

FOLDER = Path(__file__).parent / "golden"


def rendered(report: CompileReport) -> str:
    """Every answer of the engines, one a line, without what a new calibration of estimates would change."""
    lines = [f"{report.graph} for {report.target}"]
    for c in report.candidates:
        verdict = "offered" if c.verdict in ("chosen", "slower") else f"{c.verdict} [{c.code}] {c.reason}"
        fix = f"; {c.fix.sentence}" if c.fix else ""
        lines.append(f"{c.engine} {c.pattern} ({', '.join(c.nodes)}): {verdict}{fix}")
    for p in report.passes:
        lines += [f"{p.name}: {change}" for change in p.changes]
        lines += [f"{p.name}: not {r.rule} on {', '.join(r.nodes)}: {r.reason}" for r in p.refusals]
    return "\n".join(lines) + "\n"


def update() -> None:
    """Writes the reports as they are now: look at the difference before committing it."""
    FOLDER.mkdir(exist_ok=True)
    for name, build in GOLDEN.items():
        (FOLDER / f"{name}.txt").write_text(rendered(h200_report(build(Wishes()))))


if __name__ == "__main__":
    if sys.argv[1:] != ["--update"]:
        sys.exit("python -m tests.report.golden --update rewrites the reports that are kept as text")
    update()
