"""What a machine is: a frozen description, of the device that is here or of one that is not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from graphdnn.errors import CompileError
from graphdnn.spelling import hint, nearest, quoted

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

CPU_BANDWIDTH = 20e9
CPU_RATE = 50e9
"""Bytes/s and operations/s that numpy is taken to reach, in round numbers: estimates for the CPU decide nothing between
engines, since there is one."""

WORDS = ("auto", "cpu", "cuda")
"""Targets that are meant by a word: machines that are here."""

ELSEWHERE = {"gpu": "cuda", "nvidia": "cuda", "device": "cuda", "host": "cpu", "numpy": "cpu", "default": "auto"}
"""What other libraries call them."""


@dataclass(frozen=True)
class Target:
    """A machine to plan for.  Rates are what large kernels reach, measured, not a datasheet's peak.

    `bandwidth` in bytes/s (read plus written), `rates` in operations/s by name of the unit's type ("float16" is the
    matrix unit, "tf32" its float32 mode, "float32" plain arithmetic), `launch_us` the device-side gap between two
    kernels of a CUDA graph.  `versions` are the libraries planned for.  `present` is False for a described device.
    """

    name: str
    kind: str
    present: bool
    bandwidth: float
    rates: Mapping[str, float] = field(hash=False)
    launch_us: float = 0.0
    compute_capability: tuple[int, int] = (0, 0)
    sm_count: int = 1
    l2_bytes: int = 0
    memory_bytes: int = 0
    shared_bytes: int = 0
    versions: Mapping[str, str] = field(default_factory=dict, hash=False)
    ordinal: int = 0

    @staticmethod
    def named(name: str) -> Target:
        """The described device `name` ("h200", ...).  Raises CompileError listing the known names."""
        return described(name)

    @staticmethod
    def cpu() -> Target:
        """This machine's processor, run by numpy."""
        return Target("cpu", "cpu", True, CPU_BANDWIDTH, {"float32": CPU_RATE})

    @property
    def arch(self) -> str:
        """Architecture as NVRTC names it, such as sm_90."""
        return f"sm_{self.compute_capability[0]}{self.compute_capability[1]}"

    def rate(self, unit: str) -> float:
        """Operations per second of a unit, or the float32 rate where the description has none."""
        return self.rates.get(unit, self.rates["float32"])

    def __str__(self) -> str:
        return self.name if self.present else f"{self.name} (described)"


def known_devices() -> tuple[str, ...]:
    """Names of the described devices."""
    return tuple(sorted(f.name.removesuffix(".json") for f in descriptions().iterdir() if f.name.endswith(".json")))


def descriptions() -> Traversable:
    """The folder with the descriptions.  `importlib.resources` would take a fifth of the time of importing graphdnn, so
    it waits until a device is asked for."""
    from importlib import resources

    return resources.files("graphdnn") / "devices"


def described(name: str) -> Target:
    """Reads a device description.  Raises CompileError for an unknown name."""
    names = known_devices()
    if name not in names:
        raise CompileError(
            f"target {quoted(name)} is not described here; known devices are {', '.join(names)}{hint(name, names)}"
        )
    import json

    data = json.loads((descriptions() / f"{name}.json").read_text())
    data["compute_capability"] = tuple(data["compute_capability"])
    return Target(name=name, kind="cuda", present=False, **data)


def meant(given: object) -> str | None:
    """The word or described device that is most like what was given as a target; None where none is."""
    form = given.strip().casefold() if isinstance(given, str) else ""
    return ELSEWHERE.get(form) or nearest(given, (*WORDS, *known_devices()))


def unknown_target(who: str, given: object) -> CompileError:
    """The error for what is no target in Python, given to the function `who`."""
    needed = f'"auto", "cpu", "cuda" or a described device, gd.Target.named("{known_devices()[0]}"), is needed'
    name = meant(given)
    asked = "" if name is None else f'; did you mean "{name}"?'
    if name is not None and name not in WORDS:
        asked = f'; did you mean gd.Target.named("{name}")?'
    return CompileError(f"{who}: target is {quoted(given)}; {needed}{asked}")
