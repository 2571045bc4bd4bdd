"""The text form of a graph: one line a node, readable, and read back by `parse`.

    graph block(x: f16[2x3x5x4]) {
      constant %w: f16[8x3x3x3] sha256:6b86...
      %y = conv(%x, %w) {stride=(1, 1), padding=((1, 1), (1, 1)), dilation=(1, 1)} : f16[2x8x5x4]
      return y = %y
    }

Attributes with their default are left out; numbers among the operands carry their type (`0.5:f16`); strides follow
the extents (`f16[2x3:1,2]`); `@name` names a node that has several results; `from` lists origins other than itself.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import ParamSpec, TypeVar

from graphdnn.errors import GraphError
from graphdnn.ir.arguments import check_arrays, text_of
from graphdnn.ir.assembly import Assembly, checked_literal, checked_op, checked_type
from graphdnn.ir.graph import Graph, Node, Value
from graphdnn.ir.op import Op
from graphdnn.ir.ops.pointwise import FUNCTIONS
from graphdnn.ir.ops.reduction import REDUCTIONS
from graphdnn.ir.types import Array, TensorType
from graphdnn.spelling import is_whole_number, named, quoted

P = ParamSpec("P")
R = TypeVar("R")

LABELS: dict[str, tuple[str, str]] = {
    **{fn: ("pointwise", fn) for fn in FUNCTIONS},
    **{f"reduce_{fn}": ("reduce", fn) for fn in REDUCTIONS},
}
"""Kind and attribute `fn` of the ops that are written by their label instead of their kind."""

WORD = re.compile(r"[\w.+\-/]+")
TOKEN = re.compile(
    r'(?P<skip>[ \t\r]+|#[^\n]*)|(?P<line>\n)|(?P<text>"(?:[^"\\\n]|\\.)*")|(?P<word>[\w.+\-/]+)|(?P<mark>.)'
)
SPECIAL: dict[str, object] = {
    "None": None,
    "True": True,
    "False": False,
    "inf": math.inf,
    "-inf": -math.inf,
    "nan": math.nan,
}
NUMBER = re.compile(r"-?[0-9]+(?P<fraction>\.[0-9]+)?(?P<power>e[+-]?[0-9]+)?")
LONGEST_NUMBER = 400
"""Characters of a number: more than any that is printed has, and few enough to be read at once."""


def print_graph(graph: Graph) -> str:
    """The text form of a graph, ending in a newline.  Needs no constant's data."""
    inputs = ", ".join(f"{name_text(name)}: {value.type}" for name, value in graph.inputs.items())
    lines = [f"graph {name_text(graph.name)}({inputs}) {{"]
    lines += [f"  state {reference(v)}: {v.type}" for v in graph.states.values()]
    for name, value in graph.constants.items():
        lines.append(f"  constant {reference(value)}: {value.type} sha256:{graph.payloads[name].digest}")
    lines += [f"  {print_node(node)}" for node in graph.nodes]
    for name, value in graph.outputs.items():
        declared = f" : {graph.output_type(name)}" if name in graph.output_strides else ""
        lines.append(f"  return {name_text(name)} = {reference(value)}{declared}")
    lines += [f"  update {name_text(name)} = {reference(value)}" for name, value in graph.updates.items()]
    return "\n".join((*lines, "}\n"))


def print_node(node: Node) -> str:
    """One node's line."""
    results = ", ".join(map(reference, node.results))
    named = "" if [v.name for v in node.results] == [node.name] else f"@{name_text(node.name)}"
    operands = ", ".join(
        reference(v) if v.literal is None else f"{v.literal!r}:{v.type.dtype.text}" for v in node.operands
    )
    attributes = print_attributes(node.op)
    origins = "" if node.origins == (node.name,) else f" from {', '.join(map(name_text, node.origins)) or '()'}"
    types = ", ".join(map(str, node.result_types))
    return f"{results} = {node.op.label}{named}({operands}){attributes} : {types}{origins}"


def print_attributes(op: Op) -> str:
    """Attributes in braces, those with their default and those in the label left out."""
    defaults = {f.name: f.default for f in fields(op)}  # type: ignore[arg-type]
    shown = {n: v for n, v in op.attributes().items() if not same(v, defaults[n])}
    if op.label in LABELS:
        del shown["fn"]
    return f" {{{', '.join(f'{n}={print_value(v)}' for n, v in shown.items())}}}" if shown else ""


def same(value: object, default: object) -> bool:
    """Whether it is written the same: unlike 0.0, -0.0 is no default of 0.0, and True none of 1."""
    return repr(value) == repr(default)


def print_value(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(print_value, value))}{',' if len(value) == 1 else ''})"
    return json.dumps(value) if isinstance(value, str) else repr(value)


def name_text(name: str) -> str:
    """A name as it stands in text: bare where it is a word, quoted elsewhere."""
    return name if WORD.fullmatch(name) else json.dumps(name)


def reference(value: Value) -> str:
    return f"%{name_text(value.name)}"


@dataclass(frozen=True)
class Token:
    """A piece of text: kind is "text" (quoted), "word", "mark" or "end"."""

    kind: str
    text: str
    line: int

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else quoted(self.text)


def tokens(text: str) -> Iterator[Token]:
    """The pieces of the text in order, then its end."""
    line = 1
    for match in TOKEN.finditer(text):
        kind = match.lastgroup or ""
        if kind == "line":
            line += 1
        elif kind != "skip":
            yield Token(kind, match.group(), line)
    yield Token("end", "", line)


def parse(text: str, constants: Mapping[str, Array] | None = None) -> Graph:
    """The graph that `str(graph)` printed; `constants` gives arrays by the constants' names.

    Constants without an array keep their type and hash, which is enough to plan and explain.  Raises GraphError
    naming line and token.
    """
    if constants is not None:
        check_arrays("parse", "constants", constants)
    try:
        return Parser(text_of("parse", text), constants or {}).graph()
    except RecursionError:
        raise GraphError("parse: the text has tuples nested too deeply to be a graph's attributes") from None


class Parser:
    """Reads one graph, a statement at a time."""

    def __init__(self, text: str, constants: Mapping[str, Array]) -> None:
        self.tokens = list(tokens(text))
        self.place = 0
        self.constants = constants
        self.assembly = Assembly("graph")
        self.outputs: dict[str, Value] = {}
        self.updates: dict[str, Value] = {}
        self.output_strides: dict[str, tuple[int, ...]] = {}

    @property
    def token(self) -> Token:
        return self.tokens[self.place]

    def graph(self) -> Graph:
        start = self.token
        self.keyword("graph")
        self.assembly = self.located(start, Assembly, self.name())
        self.mark("(")
        self.each(")", self.input)
        self.mark("{")
        while not self.at("}"):
            self.statement()
        self.mark("}")
        if self.token.kind != "end":
            raise self.wrong("the end after the graph's last brace")
        unknown = [n for n in self.constants if n not in self.assembly.writer.constants]
        if unknown:
            raise GraphError(f"parse: {named(unknown[0])} is given as a constant, but the text has none of that name")
        return self.located(start, self.assembly.finish, self.outputs, self.updates, self.output_strides)

    def statement(self) -> None:
        readers = {"state": self.state, "constant": self.constant, "return": self.output, "update": self.update}
        if self.at("%"):
            self.node()
        elif self.token.kind == "word" and self.token.text in readers:
            readers[self.take().text]()
        else:
            raise self.wrong("%, state, constant, return, update or }")

    def input(self) -> None:
        start, name = self.token, self.name()
        self.mark(":")
        self.located(start, self.assembly.input, name, self.type())

    def state(self) -> None:
        start, name = self.token, self.reference()
        self.mark(":")
        self.located(start, self.assembly.state, name, self.type())

    def constant(self) -> None:
        start, name = self.token, self.reference()
        self.mark(":")
        type = self.type()
        self.keyword("sha256")
        self.mark(":")
        self.located(start, self.assembly.constant, name, type, self.word(), self.constants.get(name))

    def output(self) -> None:
        start, name = self.token, self.name()
        self.mark("=")
        if name in self.outputs:
            raise GraphError(f"line {start.line}: output {named(name)} is returned twice")
        value = self.outputs[name] = self.value(named(name))
        if self.at(":"):
            self.take()
            type = self.type()
            if (type.shape, type.dtype) != (value.type.shape, value.type.dtype) or type.strides is None:
                raise GraphError(
                    f"line {start.line}: output {named(name)} is declared as {type}, but its value is {value.type}"
                )
            self.output_strides[name] = type.strides

    def update(self) -> None:
        start, name = self.token, self.name()
        self.mark("=")
        if name in self.updates:
            raise GraphError(f"line {start.line}: state {named(name)} is updated twice")
        self.updates[name] = self.value(named(name))

    def node(self) -> None:
        start, names = self.token, [self.reference()]
        while self.at(","):
            self.take()
            names.append(self.reference())
        self.mark("=")
        label, name = self.word(), names[0]
        if self.at("@"):
            self.take()
            name = self.name()
        operands: list[Value] = []
        self.mark("(")
        self.each(")", lambda: operands.append(self.operand(name)))
        attributes = self.attributes() if self.at("{") else {}
        self.mark(":")
        types = [self.type()]
        while self.at(","):
            self.take()
            types.append(self.type())
        origins = self.origins()
        if len(types) != len(names):
            raise GraphError(f"line {start.line}: node {named(name)} has {len(names)} results and {len(types)} types")
        kind, fn = LABELS.get(label, (label, None))
        if fn is not None and "fn" in attributes:
            raise GraphError(f"line {start.line}: node {named(name)}: {label} has no attribute 'fn'")
        if fn is not None:
            attributes = {"fn": fn, **attributes}
        op = self.located(start, checked_op, f"node {named(name)}", kind, attributes)
        self.located(start, self.assembly.node, name, op, operands, list(zip(names, types, strict=True)), origins)

    def operand(self, node: str) -> Value:
        if self.at("%"):
            return self.value(f"node {named(node)}")
        start, number = self.token, self.number()
        self.mark(":")
        return self.located(start, checked_literal, f"node {named(node)}", number, self.word())

    def value(self, who: str) -> Value:
        start, name = self.token, self.reference()
        return self.located(start, self.assembly.value, who, name)

    def attributes(self) -> dict[str, object]:
        found: dict[str, object] = {}

        def one() -> None:
            start, name = self.token, self.word()
            self.mark("=")
            if name in found:
                raise GraphError(f"line {start.line}: attribute {named(name)} is given twice")
            found[name] = self.constant_value()

        self.mark("{")
        self.each("}", one)
        return found

    def constant_value(self) -> object:
        """A number, a string, None, True, False, or a tuple of these."""
        if self.at("("):
            self.take()
            entries: list[object] = []
            self.each(")", lambda: entries.append(self.constant_value()))
            return tuple(entries)
        if self.token.kind == "text":
            return self.name()
        return self.number()

    def origins(self) -> tuple[str, ...] | None:
        if not (self.token.kind == "word" and self.token.text == "from"):
            return None
        self.take()
        if self.at("("):
            self.take()
            self.mark(")")
            return ()
        names = [self.name()]
        while self.at(","):
            self.take()
            names.append(self.name())
        return tuple(names)

    def type(self) -> TensorType:
        start, dtype = self.token, self.word()
        self.mark("[")
        extents = self.word() if self.token.kind == "word" else ""
        shape = [self.whole(n, start) for n in extents.split("x")] if extents else []
        strides: list[int] | None = None
        if self.at(":"):
            self.take()
            strides = []
            while not self.at("]"):
                strides.append(self.whole(self.word(), start))
                if not self.at("]"):
                    self.mark(",")
        self.mark("]")
        return self.located(start, checked_type, "type", dtype, shape, strides)

    def whole(self, text: str, start: Token) -> int:
        if not is_whole_number(text):
            raise GraphError(f"line {start.line}: {quoted(text)} is no extent or stride; a whole number is needed")
        return int(text)

    def number(self) -> object:
        token = self.take("word")
        if token.text in SPECIAL:
            return SPECIAL[token.text]
        written = NUMBER.fullmatch(token.text)
        if written is None:
            raise self.wrong("a number, None, True, False, a quoted string or a tuple", token)
        if len(token.text) > LONGEST_NUMBER:
            raise self.wrong(f"a number of at most {LONGEST_NUMBER} characters", token)
        if not (written["fraction"] or written["power"]):
            return int(token.text)
        number = float(token.text)
        if math.isinf(number):
            raise self.wrong("a number that float64 holds, inf or -inf", token)
        return number

    def reference(self) -> str:
        self.mark("%")
        return self.name()

    def name(self) -> str:
        if self.token.kind == "text":
            token = self.take()
            try:
                name = str(json.loads(token.text))
                name.encode()  # half of a character is none
                return name
            except ValueError:
                raise self.wrong("a quoted name with JSON's escapes", token) from None
        return self.word()

    def each(self, end: str, read: Callable[[], None]) -> None:
        """Reads entries with commas between them (one may follow the last) up to and with the mark `end`."""
        while not self.at(end):
            read()
            if not self.at(end):
                self.mark(",")
        self.mark(end)

    def at(self, mark: str) -> bool:
        return self.token.kind == "mark" and self.token.text == mark

    def take(self, kind: str | None = None) -> Token:
        token = self.token
        if kind is not None and token.kind != kind:
            raise self.wrong(f"a {kind}")
        self.place += token.kind != "end"
        return token

    def word(self) -> str:
        return self.take("word").text

    def keyword(self, word: str) -> None:
        if self.token.kind != "word" or self.token.text != word:
            raise self.wrong(word)
        self.take()

    def mark(self, mark: str) -> None:
        if not self.at(mark):
            raise self.wrong(mark)
        self.take()

    def wrong(self, needed: str, token: Token | None = None) -> GraphError:
        found = token or self.token
        return GraphError(f"line {found.line}: found {found} where {needed} is needed")

    def located(self, start: Token, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """What `call` gives; a GraphError of its own gains the line."""
        try:
            return call(*args, **kwargs)
        except GraphError as error:
            raise GraphError(f"line {start.line}: {error}") from None
