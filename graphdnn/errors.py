"""The exceptions a user may see: one sentence each, saying who, what was found and what was needed."""


class GraphDnnError(Exception):
    """Anything that graphdnn refuses or fails to do."""


class GraphError(GraphDnnError):
    """The graph, or a document that describes one, is wrong."""


class CompileError(GraphDnnError):
    """A valid graph could not be compiled with these options for this target."""


class ExecutionError(GraphDnnError):
    """A compiled graph could not run: wrong arrays, a lost context, a plan that failed."""


class ContextLostError(ExecutionError):
    """The CUDA context of this process faulted and will not work again.

    `plan` is what it was lost in, where that is known to be the trial of a plan: engine, plan, pattern of the region.
    """

    plan: tuple[str, str, str] | None = None


class MomentaryError(ExecutionError):
    """What else was going on kept it from working, such as a capture that lasted; another time the same may work."""


class OutOfMemoryError(MomentaryError):
    """There was not enough memory at that moment."""


class TuningMemoryError(ExecutionError):
    """Timing a plan, or a whole graph, takes more memory than `tuning_memory` allows; nothing is wrong with it."""


OUT_OF_MEMORY = 2
CAPTURE_ERRORS = range(900, 909)
"""Statuses of the CUDA driver: for a lack of memory, and where a stream that is being captured is in the way."""


def in_words(error: Exception) -> str:
    """What an error of anybody's code says, on one line; the name of its type where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


def error_of(status: int) -> type[ExecutionError]:
    """The error that a failed call of the CUDA driver is."""
    if status == OUT_OF_MEMORY:
        return OutOfMemoryError
    return MomentaryError if status in CAPTURE_ERRORS else ExecutionError


class SetupError(CompileError):
    """A driver, a library or a version is missing, and nothing else can take its work."""


class SavedFileError(GraphDnnError):
    """A file that graphdnn wrote (a saved executable, a lock file, a report) is damaged, of another format, or none."""
