"""The structure that the design promises: import direction, who may import which library, sizes, names."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from graphdnn.engines.manifest import MANIFEST

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "graphdnn"
FILES = sorted(PACKAGE.rglob("*.py"))
PYTHON_FILES = sorted(
    p for part in ("graphdnn", "tests", "examples", "benchmarks") for p in (ROOT / part).rglob("*.py")
)

LOWEST = {"errors", "answer", "files", "forking", "relaxed", "once", "lazy", "spelling", "strict_json"}
LOWER = LOWEST | {"ir", "target", "passes", "engines", "runtime"}

MAY_IMPORT = {
    "errors": set(),
    "answer": set(),
    "files": {"errors", "spelling"},
    "forking": set(),
    "relaxed": set(),
    "once": {"errors", "forking"},
    "lazy": set(),
    "spelling": set(),
    "strict_json": set(),
    "ir": {"errors", "answer", "files", "lazy", "spelling", "strict_json", "ir"},
    "target": {"errors", "spelling"},
    "passes": {"errors", "answer", "ir", "lazy", "target", "passes"},
    "engines": {"errors", "answer", "forking", "relaxed", "once", "ir", "lazy", "spelling", "target", "engines"},
    "runtime": {
        "errors",
        "answer",
        "files",
        "forking",
        "relaxed",
        "once",
        "ir",
        "lazy",
        "spelling",
        "target",
        "engines",
        "runtime",
    },
    "config": LOWER,
    "planning": LOWER | {"config", "planning"},
    "report": LOWER | {"__version__", "config", "planning", "report"},
}
"""What each part may import of graphdnn; the public edge above them may import all of these."""

TOP = {"executable", "compiler", "serialization", "specialize", "commands", "__main__", "__init__"}

ONLY_OF = {("runtime", "engines"): "graphdnn.engines.contract"}
"""The one module of another part that a part may import, where it is not all of it."""

ONLY_IN = {
    "cudnn": ("graphdnn/engines/cudnn/",),
    "nvmath": ("graphdnn/engines/cublaslt/",),
    "scipy": ("graphdnn/ir/ops/pointwise.py",),
    "ml_dtypes": ("graphdnn/ir/types.py",),
    "networkx": ("graphdnn/ir/algorithms.py",),
    "pydantic": (
        "graphdnn/config.py",
        "graphdnn/strict_json.py",
        "graphdnn/report/",
        "graphdnn/ir/document",
        "graphdnn/serialization/",
    ),
    "rich": ("graphdnn/report/explain.py", "graphdnn/planning/progress.py"),
}
"""Libraries that a few files only may import."""

NAMELESS = {"utils", "util", "common", "helpers", "helper", "misc", "base", "manager"}
SLOW_TO_LOAD = {
    "asyncio",
    "importlib.resources",
    "json",
    "pathlib",
    "subprocess",
    "tempfile",
    "unittest",
    "urllib.parse",
}
"""Of the standard library: what importing graphdnn would be noticeably slower with."""
STANDARD_MODULES, OWN_MODULES = 20, 45
"""Most modules that importing graphdnn loads after numpy.  An import takes under 0.3 s with numpy, of which half is
numpy's and most of the rest makes dataclasses of the ops."""


def imports(path: Path) -> set[str]:
    """Full names of all modules a file imports, at any level."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


@cache
def used() -> frozenset[str]:
    """Full names of all that some module of graphdnn imports, from anywhere but itself, or that the manifest names."""
    found = {target.partition(":")[0] for target in MANIFEST.values()}
    for path in FILES:
        found.update(imports(path) - {module_of(path)})
    return frozenset(found)


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def part_of(module: str) -> str:
    """The part of graphdnn that a module name lies in."""
    return module.split(".")[1] if "." in module else "__init__"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_never_go_upward(path: Path) -> None:
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if part in TOP or part == "devices":
        return
    for module in imports(path):
        if module.startswith("graphdnn."):
            assert part_of(module) in MAY_IMPORT[part], f"{part} may not import {module}"
            only = ONLY_OF.get((part, part_of(module)), "graphdnn")
            assert module.startswith(only), f"{part} may not import {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_libraries_stay_in_their_files(path: Path) -> None:
    where = str(path.relative_to(ROOT))
    for module in imports(path):
        allowed = ONLY_IN.get(module.split(".")[0])
        assert allowed is None or where.startswith(allowed), f"{where} may not import {module}; only {allowed} may"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_is_left_out_of_its_list(path: Path) -> None:
    """A file of ops, rules or fusions, or an engine, that no list, manifest or other module names does nothing."""
    name = module_of(path)
    is_entry = name in ("graphdnn", "graphdnn.__main__")
    assert is_entry or any(u == name or u.startswith(f"{name}.") for u in used()), f"nothing imports {name}"


def test_every_part_has_a_place_in_the_order() -> None:
    parts = {p.relative_to(PACKAGE).parts[0].removesuffix(".py") for p in FILES}
    assert parts <= MAY_IMPORT.keys() | TOP


def test_importing_graphdnn_loads_numpy_only() -> None:
    """Beside it a few modules of the standard library: what takes longer waits until it is needed.

    The seconds are printed and not judged, since they are those of a machine that does other things too.
    """
    code = (
        "import sys, time; bare = set(sys.modules); began = time.perf_counter(); import numpy; "
        "theirs = set(sys.modules); import graphdnn; print(time.perf_counter() - began);"
        "print(*theirs - bare); print(*set(sys.modules) - theirs)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    seconds, theirs, ours = (line.split() for line in done.stdout.splitlines())
    print(f"import graphdnn took {float(seconds[0]):.3f} s of wall time, numpy's {len(theirs)} modules with it")
    libraries = {module.partition(".")[0] for module in (*theirs, *ours)} - sys.stdlib_module_names
    assert libraries == {"numpy", "graphdnn"}
    beside = {m for m in ours if m.partition(".")[0] not in ("numpy", "graphdnn")}
    assert not beside & SLOW_TO_LOAD
    assert len(beside) <= STANDARD_MODULES, beside
    assert len(ours) - len(beside) <= OWN_MODULES, sorted(ours)


def test_completion_finds_the_public_names() -> None:
    """Before any of them is used, and nothing that the package imports for itself."""
    code = "import graphdnn; print(*dir(graphdnn)); print(*graphdnn.__all__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    shown, public = (line.split() for line in done.stdout.splitlines())
    assert [name for name in shown if not name.startswith("__")] == sorted(public)


def test_planning_for_a_described_device_loads_no_gpu_library() -> None:
    code = (
        "import sys, graphdnn as gd; g = gd.GraphBuilder(); x = g.input('x', (8, 16), gd.float16);"
        "gd.compile(g.build({'y': g.relu(x)}), target=gd.Target.named('h200')).explain();"
        "print(' '.join(sorted({m.split('.')[0] for m in sys.modules})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not set(done.stdout.split()) & {"cudnn", "cuda", "nvmath", "torch", "cupy"}


@pytest.mark.parametrize("path", PYTHON_FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 500


def test_names_say_something() -> None:
    assert not [p for p in FILES if p.stem in NAMELESS]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_module_says_what_it_decides(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))
