"""Which engines there are and where they live.  Nothing of an engine is imported until it is asked for."""

from __future__ import annotations

from pkgutil import resolve_name

from graphdnn.engines.contract import Engine

MANIFEST: dict[str, str] = {
    "cudnn": "graphdnn.engines.cudnn.engine:CudnnEngine",
    "cublaslt": "graphdnn.engines.cublaslt.engine:CublasLtEngine",
    "nvrtc": "graphdnn.engines.nvrtc.engine:NvrtcEngine",
    "reference": "graphdnn.engines.reference:ReferenceEngine",
}
"""Engine by name, in the order in which equal costs are decided: the earlier wins."""

BY_KIND: dict[str, tuple[str, ...]] = {"cuda": ("cudnn", "cublaslt", "nvrtc"), "cpu": ("reference",)}
"""Engines that are asked, by kind of target."""


def load_engine(name: str) -> Engine:
    """The engine of that name, imported now."""
    engine: Engine = resolve_name(MANIFEST[name])()
    return engine


def engines_for(kind: str, disabled: tuple[str, ...] = ()) -> tuple[Engine, ...]:
    """The engines for a kind of target, in manifest order, without the disabled ones."""
    return tuple(load_engine(name) for name in BY_KIND[kind] if name not in disabled)
