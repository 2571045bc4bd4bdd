"""graphdnn compiles typed graphs of deep-learning operations into fused GPU kernels and says why it chose each.

Importing it loads numpy only; what needs more (compile, options, reports) is loaded when first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from graphdnn.answer import Code, Decline, Fix
from graphdnn.errors import CompileError, ExecutionError, GraphDnnError, GraphError, SavedFileError, SetupError
from graphdnn.ir.builder import GraphBuilder
from graphdnn.ir.evaluate import evaluate
from graphdnn.ir.graph import Graph, Node, Value
from graphdnn.ir.types import DType, TensorType, bfloat16, float16, float32, float64, int8, int32, int64, uint8
from graphdnn.ir.types import bool_ as bool
from graphdnn.target import Target

if TYPE_CHECKING:
    from graphdnn.compiler import compile
    from graphdnn.config import CompileOptions
    from graphdnn.executable import Executable
    from graphdnn.ir.text import parse
    from graphdnn.report.model import CompileReport
    from graphdnn.runtime.arrays import DeviceArray
    from graphdnn.serialization.load import load
    from graphdnn.specialize.jitted import jit

__version__ = "0.1.0"

LAZY = {
    "compile": "graphdnn.compiler",
    "CompileOptions": "graphdnn.config",
    "CompileReport": "graphdnn.report.model",
    "DeviceArray": "graphdnn.runtime.arrays",
    "Executable": "graphdnn.executable",
    "jit": "graphdnn.specialize.jitted",
    "load": "graphdnn.serialization.load",
    "parse": "graphdnn.ir.text",
}
"""Public names that are imported when first used, and where they live."""

__all__ = [
    "Code",
    "CompileError",
    "CompileOptions",
    "CompileReport",
    "DType",
    "Decline",
    "DeviceArray",
    "Executable",
    "ExecutionError",
    "Fix",
    "Graph",
    "GraphBuilder",
    "GraphDnnError",
    "GraphError",
    "Node",
    "SavedFileError",
    "SetupError",
    "Target",
    "TensorType",
    "Value",
    "bfloat16",
    "bool",
    "compile",
    "evaluate",
    "float16",
    "float32",
    "float64",
    "int8",
    "int32",
    "int64",
    "jit",
    "load",
    "parse",
    "uint8",
]


def __getattr__(name: str) -> object:
    if name in LAZY:
        value = getattr(import_module(LAZY[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module graphdnn has no attribute {name}")


def __dir__() -> list[str]:
    """The public names, those that are loaded later among them."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
