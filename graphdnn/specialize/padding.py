"""Which padded graph serves calls of exact shapes: traced, masked, and proved, before anything is compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from itertools import repeat

from graphdnn.answer import Decline
from graphdnn.errors import CompileError, ExecutionError, in_words
from graphdnn.ir.graph import Graph
from graphdnn.ir.types import TensorType
from graphdnn.passes.canonicalize import drop_dead
from graphdnn.specialize.buckets import Buckets, Rule, lengthened, shortened, spread
from graphdnn.specialize.masking import Masking, names_of
from graphdnn.specialize.parameters import Function
from graphdnn.specialize.proof import Mask, masks_needed, prove
from graphdnn.specialize.routes import Build, Lengths, length_types, limits_of
from graphdnn.specialize.signature import Form, Signature, signature_text, type_of

Change = Callable[[str, Form, Mapping[int, Rule]], Form]
"""What makes one form of another: for a parameter, by its rules."""

Exact = tuple[Signature, Graph]
"""Exact shapes and the function's graph of them."""


@dataclass(frozen=True)
class Padding:
    """A function of inputs `names`, with the rules that round extents up and the lengths that are filled in."""

    function: Function
    names: tuple[str, ...]
    buckets: Buckets
    lengths: Lengths

    def longer(self, signature: Signature) -> Signature:
        """The padded shapes that serve a signature."""
        return self._changed(signature, lengthened)

    def _changed(self, signature: Signature, change: Change) -> Signature:
        """A signature with each form changed by the rules for its parameter."""
        return tuple(
            form if form is None else change(name, form, self.buckets.get(name, {}))
            for name, form in zip(self.names, signature, strict=True)
        )

    def trace(self, signature: Signature) -> Graph:
        """The function's graph for a signature, with parameters for the lengths.  Raises ExecutionError.

        What nothing reads is left out: padding changes no result by it.
        """
        for name, form in zip(self.names, signature, strict=True):
            if form is not None and 0 in form[1]:
                raise ExecutionError(f"input {name} has shape {tuple(form[1])}; every extent must be at least 1")
        types = {n: type_of(f) for n, f in zip(self.names, signature, strict=True) if f is not None}
        types.update(length_types(self.lengths, types))
        ordered: dict[str, TensorType] = {n: types[n] for n in self.function.parameters if n in types}
        return drop_dead(self.function.trace(ordered)).graph

    def traced(self, signature: Signature, exact: Graph, longer: Signature) -> Graph:
        """The function's graph of the padded shapes, `exact` being that of the shapes of a call.

        Raises CompileError for whatever the function raises: the caller gave it no such shapes.
        """
        if signature == longer:
            return exact
        try:
            return self.trace(longer)
        except Exception as error:
            raise CompileError(
                f"{self.function.name} takes {signature_text(self.names, signature)}, but not padded to "
                f"{signature_text(self.names, longer)}: {in_words(error)}"
            ) from error

    def masking(self, known: Masking, traced: Graph, signature: Signature, exact: Graph, longer: Signature) -> Masking:
        """What to mask of the padded graph, for these exact shapes besides those that `known` serves.

        Other exact shapes are looked at as well, so that one build is likely to serve all that come.  Raises
        CompileError where padding would change a result all the same: to these shapes or, where they need no padding,
        to the next shorter ones, which a later call would be refused for.
        """
        masks = list(self._masks(traced, signature, exact, longer))
        graphs = [exact]
        shorter = self._taken(longer, shortened)
        for other in (shorter, self._shortest(longer)):
            try:
                if other is not None:
                    masks += self._masks(traced, *other, longer)
                    graphs.append(other[1])
            except CompileError:
                if other is shorter and signature == longer:
                    raise
        taken = set().union(*map(names_of, (traced, *graphs)))
        return reduce(lambda made, graph: made.extended(masks, graph, taken), graphs, known)

    def serves(self, build: Build, signature: Signature, exact: Graph, longer: Signature) -> bool:
        """Whether a build has the masks that these exact shapes need, and so gives the results of the exact graph.

        Raises CompileError where it would not give them with any.
        """
        masking = build.masking
        if not masking.fits(self._masks(build.traced, signature, exact, longer), exact):
            return False
        if masking.inputs:  # else no mask is needed, which was the proof
            limits = limits_of(exact, self.lengths) | masking.extents(exact)
            answer = prove(masking.applied(exact), build.graph, limits)
            if answer is not None:
                raise self._refusal(signature, longer, answer)
        return True

    def _masks(self, traced: Graph, signature: Signature, exact: Graph, longer: Signature) -> tuple[Mask, ...]:
        masks = masks_needed(exact, traced, limits_of(exact, self.lengths))
        if isinstance(masks, Decline):
            raise self._refusal(signature, longer, masks)
        return masks

    def _shortest(self, longer: Signature) -> Exact | None:
        """Shapes that are padded to these, the first of the padded axes being as short as may be and each other by
        another share longer, so that extents which are equal by chance are told apart.  Where the function does not
        take these, all as short as may be."""
        count = sum(map(len, self.buckets.values()))
        apart = self._taken(longer, partial(spread, shares=(i / count for i in range(count))))
        return apart or self._taken(longer, partial(spread, shares=repeat(0.0)))

    def _taken(self, longer: Signature, change: Change) -> Exact | None:
        """Shapes made of padded ones, with their graph; None where the function does not take them."""
        signature = self._changed(longer, change)
        try:
            return signature, self.trace(signature)
        except Exception:  # no call will have these shapes
            return None

    def _refusal(self, signature: Signature, longer: Signature, answer: Decline) -> CompileError:
        return CompileError(
            f"{self.function.name} cannot be padded from {signature_text(self.names, signature)} to "
            f"{signature_text(self.names, longer)}: {answer.reason}"
        )
