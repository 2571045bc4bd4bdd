"""The text of row kernels: one for a whole program, or one a phase where several blocks share a row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from graphdnn.engines.contract import aligned
from graphdnn.engines.nvrtc.emit import BOUNDS, emit_node, literal, opening, prelude, register, storage, template
from graphdnn.engines.nvrtc.hardware import LOADS_IN_FLIGHT, VECTOR_BYTES, WARP
from graphdnn.engines.nvrtc.indexing import offset_terms, split_index
from graphdnn.engines.nvrtc.recipe import Argument, Kernel, Pairs, Recipe, Scratch, buffers, parameter_names, parameters
from graphdnn.engines.nvrtc.rows_layout import Access, Layout, accesses, element
from graphdnn.engines.nvrtc.rows_phases import Phase, phases
from graphdnn.engines.nvrtc.rows_program import Output, Program, Term
from graphdnn.ir.region import Region
from graphdnn.ir.types import DType, int32, int64

FOLDS = {"sum": "Sum", "mean": "Sum", "max": "Largest", "min": "Least"}
UNROLL = "#pragma unroll"
UNROLL_INLINE = '_Pragma("unroll")'
"""The same where a line holds more than it."""


def accumulator(fold: Term) -> DType:
    """The type that a fold is held in: at least 32 bits, so that warps can exchange it."""
    dtype = fold.dtype.compute
    return dtype if dtype.is_float or dtype == int64 else int32


def neutral(fold: Term) -> str:
    """What a fold begins with."""
    dtype = accumulator(fold)
    if FOLDS[fold.fold] == "Sum":
        return literal(0, dtype)
    least = fold.fold == "max"
    if dtype.is_float:
        return literal(-math.inf if least else math.inf, dtype)
    return literal(BOUNDS[dtype.name][0 if least else 1], dtype)


def recipe(region: Region, program: Program, layout: Layout, name: str) -> Recipe:
    """The kernels of a program."""
    if layout.splits == 1:
        kernel = Writer(region, program, layout, None).kernel()
        return Recipe(name, (kernel,), in_place=in_place(region, program, layout))
    offsets, end = scratch(program, layout)
    kernels = tuple(Writer(region, program, layout, p, offsets).kernel() for p in range(program.phases + 1))
    return Recipe(f"{name}_split{layout.splits}", kernels, end)


def in_place(region: Region, program: Program, layout: Layout) -> Pairs:
    """Inputs that lie as an output does, element for element, and are loaded before it is stored.

    Only where a block has its rows to itself and keeps what it loads: a thread then loads what it stores over, once.
    """
    if layout.splits > 1 or not layout.kept:
        return ()
    first: dict[Term, int] = {}
    for number, work in enumerate(phases(program, True)):
        for term in work.loads:
            first.setdefault(term, number)
    pairs: list[tuple[int, int]] = []
    for i, value in enumerate(region.inputs):
        loads = [t for t in program.loads if t.value is value]
        for output in program.outputs:
            same = all(layout.strides[t] == layout.strides[output] for t in loads)
            before = all(t in first and first[t] <= output.term.phase for t in loads)
            if loads and output.varies and same and before and value.type.dtype == output.value.type.dtype:
                pairs.append((i, region.outputs.index(output.value)))
    return tuple(pairs)


def scratch(program: Program, layout: Layout) -> tuple[dict[Term, int], int]:
    """Bytes into the workspace at which the blocks' partial results of each fold start, and the bytes of it all."""
    offsets: dict[Term, int] = {}
    end = 0
    for fold in (t for t in program.terms if t.fold):
        offsets[fold] = end
        entries = layout.row_vectors * layout.splits * (layout.width if layout.across else 1)
        end += aligned(entries * accumulator(fold).itemsize)
    return offsets, end


class Writer:
    """Writes one kernel: the whole program (`only` None), or its phase `only` with the folds before it read back."""

    def __init__(
        self, region: Region, program: Program, layout: Layout, only: int | None, offsets: dict[Term, int] | None = None
    ) -> None:
        self.region, self.program, self.layout, self.only = region, program, layout, only
        self.offsets = offsets or {}
        self.phases = phases(program, layout.kept > 0)
        self.ids = {t: i for i, t in enumerate(program.terms)}
        self.index = "int" if layout.fits_int else "i64"
        self.parameter = parameter_names(region)
        self.row_names = [f"a{i}" for i in range(len(layout.rows))]
        self.col_names = [f"c{i}" for i in range(len(layout.cols))]
        self.held: set[Term] = set()

    # --- the frame -----------------------------------------------------------------------------------------------

    def kernel(self) -> Kernel:
        layout = self.layout
        arguments: list[Argument] = [*buffers(self.region), *map(Scratch, self.offsets.values())]
        walks = self.only is None or self.phases[self.only].is_walk
        grid = (layout.blocks, layout.splits if walks else 1, 1)
        return Kernel(self.entry, self.text, tuple(arguments), grid, (layout.threads, 1, 1))

    @property
    def entry(self) -> str:
        return "rows" if self.only is None else f"rows_{self.only}"

    def text(self) -> str:
        """The kernel's text."""
        layout, entry = self.layout, self.entry
        declared = [parameters(self.region, in_place(self.region, self.program, layout))]
        declared += [f"{register(accumulator(fold))}* w{self.ids[fold]}" for fold in self.offsets]
        return "\n".join(
            (
                prelude() + template("rows.cu"),
                opening(layout.threads, entry, ", ".join(declared)),
                *self.place(),
                *(self.section(p) for p in range(len(self.phases)) if self.only is None or p <= self.only),
                "}\n",
            )
        )

    def place(self) -> list[str]:
        """Which row the thread works on, and where it begins in each operand."""
        layout, index = self.layout, self.index
        inner, outer = f"threadIdx.x % {layout.members}", f"threadIdx.x / {layout.members}"
        if layout.across:
            outer, inner = f"threadIdx.x % {layout.lanes}", f"threadIdx.x / {layout.lanes}"
        even = layout.row_vectors % layout.lanes == 0
        extents, names = list(layout.rows), list(self.row_names)
        after: list[str] = []
        if layout.across:
            extents[-1] //= layout.width
            after = [f"const {index} {names[-1]} = vector_row * {layout.width};"]
            names[-1] = "vector_row"
        lines = [
            f"const int member = {inner};",
            f"const {index} line = ({index})blockIdx.x * {layout.lanes} + {outer};",
            f"const bool live = {'true' if even else f'line < {layout.row_vectors}'};",
            f"const {index} row = live ? line : {layout.row_vectors - 1};",
            *split_index("row", extents, names, index),
            *after,
        ]
        for access in accesses(self.program):
            rows, _ = layout.strides[access]
            constant = "const " if isinstance(access, Term) else ""
            item = storage(element(access))
            start = f"{self.pointer(access)} + ({offset_terms(rows, self.row_names)})"
            lines.append(f"{constant}{item}* {self.base(access)} = {start};")
        moving = [a for a in accesses(self.program) if self.step(a) == 1]
        if layout.width > 1 and moving:
            tests = dict.fromkeys(
                (min(VECTOR_BYTES, layout.width * element(a).itemsize), self.pointer(a)) for a in moving
            )
            lines.append("const bool wide = " + " && ".join(f"aligned({n}, {p})" for n, p in tests) + ";")
        return lines

    def pointer(self, access: Access) -> str:
        assert access.value is not None
        return self.parameter[access.value]

    def base(self, access: Access) -> str:
        if isinstance(access, Output):
            return f"out{self.program.outputs.index(access)}"
        return f"in{self.ids[access]}"

    def step(self, access: Access) -> int:
        """Stride of an access along the vectors."""
        rows, cols = self.layout.strides[access]
        return (rows if self.layout.across else cols)[-1]

    # --- names ---------------------------------------------------------------------------------------------------

    def name(self, term: Term) -> str:
        """The C++ expression of a term where lane j of a vector is computed."""
        if term.text:
            return term.text
        number = self.ids[term]
        if term.varies:
            return f"x{number}" if term.is_load else f"v{number}"
        return f"r{number}[j]" if self.layout.across else f"v{number}"

    def statement(self, term: Term) -> list[str]:
        """Defines v<id> from the operands."""
        names, number = [self.name(t) for t in term.operands], self.ids[term]
        if term.node is not None:
            return emit_node(term.node, names, f"v{number}")
        return [f"const {register(term.dtype)} v{number} = {term.call}({', '.join(names)});"]

    # --- phases --------------------------------------------------------------------------------------------------

    def section(self, p: int) -> str:
        """One phase: numbers a row, then the walk over the row, then its folds."""
        work = self.phases[p]
        lines = [line for t in work.rows for line in self.row_term(t)]
        if self.only is None or p == self.only:
            lines += [line for o in work.stores if not o.varies for line in self.store_row(o)]
            if work.is_walk:
                lines += self.walk(work)
                lines += [line for f in work.folds for line in self.hand_over(f)]
            return "\n".join(lines)
        return "\n".join((*lines, *(line for f in work.folds for line in self.read_back(f))))

    def row_term(self, term: Term) -> list[str]:
        number, across = self.ids[term], self.layout.across
        if term.is_load:
            return self.load_row(term)
        if term.fold:
            total = f"fold{number}[j]" if across else f"fold{number}"
            if term.fold == "mean":
                total = f"{total} / ({register(accumulator(term))}){self.program.length}"
            body = [f"const {register(term.dtype)} v{number} = ({register(term.dtype)})({total});"]
        else:
            body = self.statement(term)
        return self.for_lanes(term, body) if across else body

    def for_lanes(self, term: Term, body: Iterable[str]) -> list[str]:
        """Row terms of vectors across rows are arrays, one entry a lane."""
        number = self.ids[term]
        return [
            f"{register(term.dtype)} r{number}[{self.layout.width}];",
            f"{UNROLL}\nfor (int j = 0; j < {self.layout.width}; ++j) {{",
            *body,
            f"r{number}[j] = v{number};\n}}",
        ]

    def load_row(self, term: Term) -> list[str]:
        base, item, number = self.base(term), storage(term.dtype), self.ids[term]
        if not self.layout.across:
            return [f"const {register(term.dtype)} v{number} = load({base});"]
        step = self.step(term)
        if step == 1 and self.layout.width > 1:
            pack = (
                f"Pack<{item}, {self.layout.width}> m{number} = load_pack<{item}, {self.layout.width}>({base}, wide);"
            )
            return [pack, *self.for_lanes(term, [f"const {register(term.dtype)} v{number} = widen(m{number}.at[j]);"])]
        return self.for_lanes(term, [f"const {register(term.dtype)} v{number} = load({base} + j * {step});"])

    def store_row(self, output: Output) -> list[str]:
        base, item, name = self.base(output), storage(output.value.type.dtype), self.name(output.term)
        once = "if (member == 0 && live" + (" && blockIdx.y == 0" if self.layout.splits > 1 else "") + ")"
        if not self.layout.across:
            return [f"{once} store({base}, {name});"]
        width, step = self.layout.width, self.step(output)
        if step != 1 or width == 1:
            return [
                f"{once} {{ {UNROLL_INLINE} for (int j = 0; j < {width}; ++j) store({base} + j * {step}, {name}); }}"
            ]
        return [
            f"{once} {{ Pack<{item}, {width}> y; {UNROLL_INLINE} for (int j = 0; j < {width}; ++j) "
            f"y.at[j] = narrow<{item}>({name}); store_pack<{item}, {width}>({base}, y, wide); }}"
        ]

    def hand_over(self, fold: Term) -> list[str]:
        """Behind a walk: the members' folds as one, kept for the next phase or left for the next kernel."""
        lines = self.fold_members(fold)
        if self.only is None:
            return lines
        number, layout = self.ids[fold], self.layout
        if not layout.across:
            return [
                *lines,
                f"if (member == 0 && live) w{number}[(i64)row * {layout.splits} + blockIdx.y] = fold{number};",
            ]
        place = f"((i64)blockIdx.y * {layout.row_vectors} + row) * {layout.width} + j"
        copy = f"for (int j = 0; j < {layout.width}; ++j) w{number}[{place}] = fold{number}[j];"
        return [*lines, f"if (member == 0 && live) {{ {UNROLL_INLINE} {copy} }}"]

    def read_back(self, fold: Term) -> list[str]:
        """What an earlier kernel left of a fold: one entry a block, folded in order."""
        number, layout, kind = self.ids[fold], self.layout, FOLDS[fold.fold]
        each = f"for (int s = member; s < {layout.splits}; s += {layout.members})"
        if not layout.across:
            entry = f"w{number}[(i64)row * {layout.splits} + s]"
            body = f"{each} fold{number} = {kind}::of(fold{number}, {entry});"
        else:
            entry = f"w{number}[((i64)s * {layout.row_vectors} + row) * {layout.width} + j]"
            body = (
                f"{each} {{ {UNROLL_INLINE} for (int j = 0; j < {layout.width}; ++j) "
                f"fold{number}[j] = {kind}::of(fold{number}[j], {entry}); }}"
            )
        return [self.begin(fold), body, *self.fold_members(fold)]

    def begin(self, fold: Term) -> str:
        """Declares a thread's share of a fold."""
        number, dtype = self.ids[fold], register(accumulator(fold))
        if not self.layout.across:
            return f"{dtype} fold{number} = {neutral(fold)};"
        lanes = f"for (int j = 0; j < {self.layout.width}; ++j) fold{number}[j] = {neutral(fold)};"
        return f"{dtype} fold{number}[{self.layout.width}]; {UNROLL_INLINE} {lanes}"

    def fold_members(self, fold: Term) -> list[str]:
        number, layout, kind = self.ids[fold], self.layout, FOLDS[fold.fold]
        if layout.members == 1:
            return []
        if layout.across:
            return [f"fold_stack<{kind}, {layout.lanes}, {layout.members}>(fold{number});"]
        if layout.members <= WARP:
            return [f"fold{number} = fold_warp<{kind}, {layout.members}>(fold{number});"]
        return [f"fold{number} = fold_block<{number}, {kind}, {layout.members // WARP}>(fold{number});"]

    # --- the walk over a row -------------------------------------------------------------------------------------

    def walk(self, work: Phase) -> list[str]:
        lines = [self.begin(f) for f in work.folds]
        reached = self.phases if self.layout.at_once else (work,)
        loads = [t for t in dict.fromkeys(t for w in reached for t in w.loads) if t not in self.held]
        if self.layout.kept == 0:
            deep = LOADS_IN_FLIGHT if len(loads) < 3 else LOADS_IN_FLIGHT // 2  # of vectors of several loads fewer
            end = self.layout.vectors if self.layout.splits == 1 else "end"
            if self.layout.splits > 1:
                lines += [
                    f"const {self.index} begin = ({self.index})blockIdx.y * {self.layout.share};",
                    f"const {self.index} end = begin + {self.layout.share} < {self.layout.vectors} ? "
                    f"begin + {self.layout.share} : {self.layout.vectors};",
                ]
            start = "begin + member" if self.layout.splits > 1 else "member"
            return [
                *lines,
                f"#pragma unroll {deep}\nfor ({self.index} v = {start}; v < {end}; v += {self.layout.members}) {{",
                *self.columns(),
                *(f"{self.held_type(t)} m{self.ids[t]};" for t in loads),
                *(self.load(t, f"m{self.ids[t]}") for t in loads),
                *self.lanes(work, ""),
                "}",
            ]
        kept = self.layout.kept
        again = {t for w in self.phases for t in w.loads if w is not work}
        # What all rows share lies near by, in a cache: as a rule it need not wait in registers beside the row itself.
        late = [t for t in loads if not self.layout.at_once and t not in again and self.layout.is_shared(t)]
        early = [t for t in loads if t not in late]
        lines += [f"{self.held_type(t)} m{self.ids[t]}[{kept}];" for t in early]
        lines += [f"{register(t.dtype)} e{self.ids[t]}[{kept}][{self.layout.width}];" for t in work.keeps]
        if early:
            lines += [*self.for_kept(), *(self.load(t, f"m{self.ids[t]}[k]") for t in early), "}\n}"]
            self.held.update(early)
        return [
            *lines,
            *self.for_kept(),
            *(f"{self.held_type(t)} m{self.ids[t]};" for t in late),
            *(self.load(t, f"m{self.ids[t]}") for t in late),
            *self.lanes(work, "[k]", late),
            "}\n}",
        ]

    def for_kept(self) -> list[str]:
        """Opens the loop over the vectors that a member keeps."""
        layout = self.layout
        whole = layout.vectors == layout.kept * layout.members
        return [
            f"{UNROLL}\nfor (int k = 0; k < {layout.kept}; ++k) {{",
            f"const {self.index} v = member + k * {layout.members};",
            "{" if whole else f"if (v < {layout.vectors}) {{",
            *self.columns(),
        ]

    def columns(self) -> list[str]:
        """The indices of vector v along the row's dimensions."""
        extents, names = list(self.layout.cols), list(self.col_names)
        if self.layout.across or self.layout.width == 1:
            return split_index("v", extents, names, self.index)
        extents[-1] //= self.layout.width
        last, names[-1] = names[-1], "vector_col"
        return [
            *split_index("v", extents, names, self.index),
            f"const {self.index} {last} = vector_col * {self.layout.width};",
        ]

    def is_pack(self, access: Access) -> bool:
        return self.layout.width > 1 and self.step(access) != 0

    def held_type(self, term: Term) -> str:
        item = storage(term.dtype)
        return f"Pack<{item}, {self.layout.width}>" if self.is_pack(term) else item

    def load(self, term: Term, target: str) -> str:
        item, step, width = storage(term.dtype), self.step(term), self.layout.width
        at = f"{self.base(term)} + ({offset_terms(self.layout.strides[term][1], self.col_names)})"
        if not self.is_pack(term):
            return f"{target} = *({at});"
        if step == 1:
            return f"{target} = load_pack<{item}, {width}>({at}, wide);"
        return f"{UNROLL_INLINE} for (int j = 0; j < {width}; ++j) {target}.at[j] = ({at})[j * {step}];"

    def lanes(self, work: Phase, kept: str, late: Sequence[Term] = ()) -> list[str]:
        """From loaded vectors to folded and stored ones."""
        width, across = self.layout.width, self.layout.across
        stores = [o for o in work.stores if o.varies]
        lines = [f"{register(accumulator(f))} t{self.ids[f]}[{width}];" for f in work.folds]
        lines += [f"Pack<{storage(o.value.type.dtype)}, {width}> y{self.program.outputs.index(o)};" for o in stores]
        lines.append(f"{UNROLL}\nfor (int j = 0; j < {width}; ++j) {{")
        for term in work.loads:
            held = f"m{self.ids[term]}{'' if term in late else kept}{'.at[j]' if self.is_pack(term) else ''}"
            lines.append(f"const {register(term.dtype)} x{self.ids[term]} = widen({held});")
        for term in work.reused:
            lines.append(f"const {register(term.dtype)} v{self.ids[term]} = e{self.ids[term]}[k][j];")
        for term in work.elements:
            lines += self.statement(term)
        lines += [f"e{self.ids[t]}[k][j] = v{self.ids[t]};" for t in work.keeps]
        for fold in work.folds:
            lines.append(f"t{self.ids[fold]}[j] = ({register(accumulator(fold))})({self.name(fold.operands[0])});")
        for output in stores:
            item = storage(output.value.type.dtype)
            lines.append(f"y{self.program.outputs.index(output)}.at[j] = narrow<{item}>({self.name(output.term)});")
        lines.append("}")
        for fold in work.folds:
            number, kind = self.ids[fold], FOLDS[fold.fold]
            if across:
                body = f"fold{number}[j] = {kind}::of(fold{number}[j], t{number}[j]);"
                lines.append(f"{UNROLL}\nfor (int j = 0; j < {width}; ++j) {body}")
            else:
                lines.append(f"fold{number} = {kind}::of(fold{number}, fold_vector<{kind}>(t{number}));")
        return [*lines, *(self.store(o) for o in stores)]

    def store(self, output: Output) -> str:
        item, step, width = storage(output.value.type.dtype), self.step(output), self.layout.width
        at = f"{self.base(output)} + ({offset_terms(self.layout.strides[output][1], self.col_names)})"
        y = f"y{self.program.outputs.index(output)}"
        if step == 1 and width > 1:
            return f"if (live) store_pack<{item}, {width}>({at}, {y}, wide);"
        return f"if (live) {{ {UNROLL_INLINE} for (int j = 0; j < {width}; ++j) ({at})[j * {step}] = {y}.at[j]; }}"
