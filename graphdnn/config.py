"""What a user may ask of the compiler: validated once, here, and frozen into a Policy for everything inside."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from graphdnn.engines.contract import Policy
from graphdnn.engines.manifest import MANIFEST
from graphdnn.errors import CompileError
from graphdnn.passes.pipeline import OPTIONAL_PASSES
from graphdnn.spelling import hint, quoted

Bytes = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Names = Annotated[tuple[str, ...], Field(strict=False)]

WANTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "True or False",
    "string_type": "text",
    "tuple_type": "a tuple or list of names",
    "finite_number": "a finite number",
    "greater_than_equal": "a number of at least 0",
}
"""What an option of a wrong type or value should have been, by pydantic's word for the mistake."""


MEANT = dict.fromkeys(("fp32", "float32", "f32"), "ieee")
"""Words for a precision that are spelt unlike the one they mean: what float32 is called elsewhere is like "tf32"."""

OTHERS = "gd.CompileOptions(name=value, ...) makes other ones"
"""What to do instead of changing options, which are frozen."""


class CompileOptions(BaseModel):
    """Options of `compile`.

    precision: "ieee" computes float32 as float32; "tf32" lets matrix products round float32 operands to TF32;
        "reduced" also lets them accumulate in less.
    deterministic: only plans that give the same bits on every run, and nothing is chosen by timing.
    workspace_limit: most bytes of scratch that any one plan may use; None is no limit.
    memory_limit: most bytes of intermediates and scratch together; None is no limit.
    selection: "heuristic" chooses by estimates and the libraries' own order, without timing; "autotune" times the plans
        of each region; "measure" also times competing covers, and keeps the fastest whole.
    tuning_budget_s: seconds that timing may take; None is no limit.  What was timed until then is used.
    tuning_memory: most bytes of device memory for what is timed; None is no limit.
    progress: whether timing shows how far it has come; None shows it on a terminal.
    disabled_passes: passes to leave out, for finding out what one does (OPTIONAL_PASSES in passes/pipeline.py).
    disabled_engines: engines not to ask (MANIFEST in engines/manifest.py).
    disabled_plans: plans not to run, as engine and the beginning of the name: "cudnn:eng8_k24=2" is one plan, or those
        that differ from it in more knobs, "cudnn:eng8" all of an engine of the library.
    cache_dir: directory of the disk cache; None is the default one, "" is no cache.  Planning for a described device
        uses a cache only where one is named.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    precision: Literal["ieee", "tf32", "reduced"] = "ieee"
    deterministic: bool = False
    workspace_limit: Bytes | None = None
    memory_limit: Bytes | None = None
    selection: Literal["heuristic", "autotune", "measure"] = "heuristic"
    tuning_budget_s: Seconds | None = None
    tuning_memory: Bytes | None = None
    progress: bool | None = None
    disabled_passes: Names = ()
    disabled_engines: Names = ()
    disabled_plans: Names = ()
    cache_dir: str | None = None

    def __init__(self, /, **options: object) -> None:
        try:
            super().__init__(**options)
        except ValidationError as error:
            raise CompileError(f"CompileOptions: {complaint(error.errors()[0])}") from None

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"CompileOptions: {name} cannot be set on options that exist; {OTHERS}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"CompileOptions: {name} cannot be deleted from options that exist; {OTHERS}")

    @field_validator("disabled_passes")
    @classmethod
    def _passes_are_known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return known(names, OPTIONAL_PASSES)

    @field_validator("disabled_engines")
    @classmethod
    def _engines_are_known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return known(names, tuple(MANIFEST))

    @field_validator("disabled_plans")
    @classmethod
    def _plans_are_named(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            engine, _, plan = name.partition(":")
            if not plan or any(c.isspace() for c in name):
                raise ValueError(
                    f'{quoted(name)} is no engine with a plan; a form such as "cudnn:eng8_k24=2" is needed'
                )
            known((engine,), tuple(MANIFEST))
        return names

    @field_validator("cache_dir")
    @classmethod
    def _directory_can_be_named(cls, path: str | None) -> str | None:
        if path is not None and "\0" in path:
            raise ValueError("a path without null characters is needed")
        return path

    def policy(self) -> Policy:
        """Those of the options that engines see."""
        return Policy(precision=self.precision, deterministic=self.deterministic, workspace_limit=self.workspace_limit)


def complaint(error: Any) -> str:
    """The first thing that is wrong with options, with the nearest of the words that are known where it is one."""
    given, kind = error["input"], error["type"]
    name, *place = error["loc"]
    if kind == "extra_forbidden":
        options = tuple(CompileOptions.model_fields)
        return f"there is no option {quoted(name)}{hint(name, options)} (options are {', '.join(options)})"
    who = f"{name} is {quoted(given)}" if not place else f"entry {place[0]} of {name} is {quoted(given)}"
    if kind == "literal_error":
        words = get_args(CompileOptions.model_fields[name].annotation)
        meant = MEANT.get(str(given).casefold(), given) if name == "precision" else given
        return f"{who}; {error['ctx']['expected']} is needed{hint(meant, words)}"
    if kind == "value_error":
        return f"{who}: {error['ctx']['error']}"
    return f"{who}; {WANTED[kind]} is needed" if kind in WANTED else f"{who}: {error['msg']}"


def known(names: tuple[str, ...], allowed: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in allowed:
            raise ValueError(f"{quoted(name)} is not one of {', '.join(allowed)}{hint(name, allowed)}")
    return names
