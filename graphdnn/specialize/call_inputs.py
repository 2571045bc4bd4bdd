"""What a call of a jitted function passes: its inputs as a signature, and the sentences for calls that are wrong."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from graphdnn.errors import ExecutionError
from graphdnn.specialize.parameters import Function
from graphdnn.specialize.signature import Signature, form_of
from graphdnn.spelling import hint, quoted

NOTHING: Any = object()
"""Stands for inputs that a call was not given."""


class CallInputs:
    """The inputs of a function by `names`; those in `optional` may be left out, those in `filled` are never given."""

    def __init__(self, function: Function, names: tuple[str, ...], filled: Collection[str]) -> None:
        self.function = function
        self.names = names
        self.filled = filled
        self.optional = function.optional.intersection(names)

    def signature(self, inputs: Mapping[str, Any]) -> Signature:
        """The forms of a call's inputs, None for those left out.  Raises ExecutionError for inputs that have none."""
        names, optional = self.names, self.optional
        try:
            if optional:
                forms = [None if n in optional and n not in inputs else form_of(inputs[n]) for n in names]
                given = len(forms) - forms.count(None)
            else:
                forms = [form_of(inputs[n]) for n in names]
                given = len(forms)
            if len(inputs) == given:
                return tuple(forms)
        except Exception as error:
            raise self._wrong(inputs, error) from None
        raise self._wrong(inputs, None)

    def _wrong(self, inputs: Any, error: Exception | None) -> ExecutionError:
        """The error for inputs that have no signature."""
        who = self.function.name
        if inputs is NOTHING:
            return ExecutionError(f"inputs of {who} are missing; a mapping from name to array is needed")
        if not isinstance(inputs, Mapping):
            return ExecutionError(
                f"inputs of {who} are a {type(inputs).__name__}; a mapping from name to array is needed"
            )
        for name in inputs:
            if name in self.filled:
                return ExecutionError(f"input {name} of {who} is filled in with lengths, and cannot be given")
            if name not in self.names:
                known = ", ".join(self.names) or "none"
                builder = self.function.builder
                taken = f"; its first parameter, {name}, takes the GraphBuilder" if name == builder else ""
                return ExecutionError(f"{name} is not an input of {who}; its inputs are {known}{taken}")
        for name in self.names:
            if name not in inputs and name not in self.optional:
                return ExecutionError(f"input {name} of {who} is missing")
            try:
                if name in inputs:
                    form_of(inputs[name])
            except Exception as reason:
                return ExecutionError(f"input {name} of {who} cannot be read: {reason}")
        return ExecutionError(f"inputs of {who} cannot be read: {error}")

    def miscalled(self, others: Sequence[object], named: Mapping[str, object]) -> ExecutionError:
        """The error for arguments that a call does not take: all but one mapping and `stream`."""
        who = self.function.name
        if others:
            return ExecutionError(
                f"{who} was called with {1 + len(others)} arguments in a row; one mapping from name to array is needed"
            )
        for name in named:
            if name in self.names:
                return ExecutionError(
                    f"input {name} of {who} is given as an argument by name; one mapping from name to array, "
                    f"{{{quoted(name)}: ...}}, is needed"
                )
        name = next(iter(named))
        return ExecutionError(
            f"calls of {who} have no argument {quoted(name)}{hint(name, ('inputs', 'stream'))} "
            "(they take inputs, stream)"
        )
