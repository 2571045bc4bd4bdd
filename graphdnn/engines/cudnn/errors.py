"""What cuDNN says no with, caught and turned into declines.  The raw text stays in the reason."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from graphdnn.answer import Code, Decline, Fix, missing
from graphdnn.errors import ExecutionError, MomentaryError, OutOfMemoryError

T = TypeVar("T")

PACKAGE = "nvidia-cudnn-cu13"
FRONTEND = "nvidia-cudnn-frontend"

CAPTURES = ("when stream is capturing", "STREAM_CAPTURE")
"""What stands in the text where somebody's capture is in the way: as the runtime words it, and its status."""

CODES: tuple[tuple[str, Code], ...] = (
    ("HOST_ALLOCATION_FAILED", Code.TRANSIENT),  # one engine that had no memory makes a no of them all one of today
    ("DEVICE_ALLOCATION_FAILED", Code.TRANSIENT),
    ("STATUS_ALLOC_FAILED", Code.TRANSIENT),
    ("CUDA_ERROR_OUT_OF_MEMORY", Code.TRANSIENT),
    ("memory allocation failed", Code.TRANSIENT),  # of a handle's buffer: for lack of it, or a capture in the way
    *((mark, Code.TRANSIENT) for mark in CAPTURES),
    ("workspace violation", Code.OPTION),
    ("Deselecting execution plan", Code.OPTION),
    ("RUNTIME_PREREQUISITE_MISSING", Code.SETUP),
    ("SUBLIBRARY_LOADING_FAILED", Code.SETUP),
    ("SUBLIBRARY_VERSION_MISMATCH", Code.SETUP),
    ("NOT_SUPPORTED_ARCH_MISMATCH", Code.ARCHITECTURE),
    ("NOT_SUPPORTED_INCOMPATIBLE_CUDART", Code.VERSION),
    ("NOT_SUPPORTED_INCOMPATIBLE_CUDNN", Code.VERSION),
    ("NOT_SUPPORTED_LAYOUT", Code.LAYOUT),
    ("NOT_SUPPORTED_DATA_TYPE", Code.DTYPE),
    ("NOT_SUPPORTED_SHAPE", Code.SHAPE),
    ("NOT_SUPPORTED_PADDING", Code.ATTRIBUTE),
    ("NOT_SUPPORTED_BAD_LAUNCH_PARAM", Code.SIZE),
    ("NOT_SUPPORTED_GRAPH_PATTERN", Code.PATTERN),
    ("NOT_SUPPORTED", Code.PATTERN),
)
"""Code by what stands in the text, the most telling first: one text names several engines and several reasons."""

RAW_LENGTH = 400
"""Characters of cuDNN's own text that a reason repeats: enough for the first of the engines that it names."""


def decline(error: Exception, who: str) -> Decline:
    """The decline that an exception of the frontend stands for; `BUILD` where its text is none of the known ones."""
    text = " ".join((str(error) or type(error).__name__).split())
    known = next((code for mark, code in CODES if mark in text), Code.BUILD)
    code = Code.TRANSIENT if isinstance(error, MemoryError) else known
    reason = f"cuDNN on {who}: {text[:RAW_LENGTH]}"
    return Decline(code, reason, FIXES[code](text) if code in FIXES else None)


def failure(error: Exception, who: str) -> ExecutionError:
    """The error that an exception of the frontend becomes where a plan runs: OutOfMemoryError for a lack of memory,
    MomentaryError for a capture in the way."""
    found = decline(error, who)
    if found.code is not Code.TRANSIENT:
        return ExecutionError(found.reason)
    return (MomentaryError if any(mark in str(error) for mark in CAPTURES) else OutOfMemoryError)(found.reason)


def needed_workspace(text: str) -> int | None:
    """Bytes of scratch that a refused plan says it requires."""
    found = re.search(r"workspace violation\. Requires (\d+)", text)
    return int(found.group(1)) if found else None


def _option(text: str) -> Fix:
    need = needed_workspace(text)
    if need is None:
        return Fix("options", "deterministic", "True", "False")
    return Fix("options", "workspace_limit", "less", str(need))


FIXES: dict[Code, Callable[[str], Fix]] = {
    Code.OPTION: _option,
    Code.SETUP: lambda text: Fix("environment", "package", "missing or incomplete", PACKAGE),
    Code.DTYPE: lambda text: Fix("graph", "dtype", "as given", "float16"),
}


def frontend_errors() -> tuple[type[Exception], ...]:
    """What the frontend raises: its own error, which is none of Python's, and those that C++ exceptions become."""
    import cudnn

    return RuntimeError, ValueError, TypeError, MemoryError, cudnn.cudnnGraphNotSupportedError


def attempt(action: Callable[[], T], who: str) -> T | Decline:
    """What `action` returns, or the decline that the frontend's exception stands for."""
    try:
        return action()
    except frontend_errors() as error:
        return decline(error, who)


def library() -> Decline | None:
    """Why cuDNN cannot be used here, or None where it can: the package and the library behind it are looked for."""
    try:
        import cudnn
    except ImportError as error:
        return unimportable(error)
    try:
        cudnn.backend_version()
    except RuntimeError as error:
        return missing(PACKAGE, f"the cuDNN library cannot be loaded ({error})")
    return None


def unimportable(error: ImportError) -> Decline:
    return missing(FRONTEND, f"the cuDNN frontend cannot be imported ({error})")
