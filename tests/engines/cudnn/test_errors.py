import pytest

from graphdnn.answer import FIXABLE, Code, Decline
from graphdnn.engines.cudnn.errors import attempt, decline, failure, needed_workspace
from graphdnn.errors import ExecutionError, MomentaryError, OutOfMemoryError

TEXTS = {
    "[cudnn_frontend] Error: Skipping plan since workspace violation. Requires 1048771": Code.OPTION,
    "[cudnn_frontend] Error: Deselecting execution plan": Code.OPTION,
    "Warning: CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING; Reason: this->libcuda == nullptr": Code.SETUP,
    "x and code: CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH": Code.ARCHITECTURE,
    "cudnnFinalize Failed cudnn_status: CUDNN_STATUS_NOT_SUPPORTED_LAYOUT": Code.LAYOUT,
    "cudnnFinalize Failed cudnn_status: CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE": Code.DTYPE,
    "cudnnFinalize Failed cudnn_status: CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN": Code.PATTERN,
    "and code: CUDNN_STATUS_NOT_SUPPORTED": Code.PATTERN,
    "NOT_SUPPORTED_SHAPE; and code: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED": Code.TRANSIENT,
    "and code: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED": Code.TRANSIENT,
    "EXECUTION_FAILED_CUDA_DRIVER; Reason: cuModuleLoadData -> CUDA_ERROR_OUT_OF_MEMORY": Code.TRANSIENT,
    "!xDesc.hasSameShape(&yDesc), and code: CUDNN_STATUS_BAD_PARAM": Code.BUILD,
}


@pytest.mark.parametrize("text", TEXTS)
def test_texts_become_codes_and_are_kept(text: str) -> None:
    answer = decline(RuntimeError(text), "conv+relu")
    assert answer.code is TEXTS[text]
    assert text in answer.reason
    assert (answer.fix is not None) is (answer.code in FIXABLE)


def test_the_needed_workspace_is_the_fix() -> None:
    answer = decline(RuntimeError("workspace violation. Requires 1048771"), "eng41")
    assert answer.fix is not None
    assert answer.fix.after == "1048771"
    assert needed_workspace(answer.reason) == 1048771
    assert needed_workspace("something else") is None


def test_other_errors_are_not_swallowed() -> None:
    def broken() -> None:
        raise KeyError("a fault of ours")

    with pytest.raises(KeyError):
        attempt(broken, "conv")


def test_a_lack_of_memory_is_of_the_moment() -> None:
    def hungry() -> None:
        raise MemoryError  # what std::bad_alloc becomes

    answer = attempt(hungry, "conv")
    assert isinstance(answer, Decline)
    assert (answer.code, answer.reason) == (Code.TRANSIENT, "cuDNN on conv: MemoryError")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("ALLOC_FAILED", OutOfMemoryError),
        ("BAD_PARAM", ExecutionError),
        ("INTERNAL_ERROR: operation not permitted when stream is capturing", MomentaryError),
    ],
)
def test_where_a_plan_runs_the_error_is_one_of_ours(text: str, kind: type) -> None:
    error = failure(RuntimeError(f"CUDNN_STATUS_{text}"), "eng4_k24=2")
    assert type(error) is kind
    assert str(error) == f"cuDNN on eng4_k24=2: CUDNN_STATUS_{text}"


def test_what_works_is_passed_through() -> None:
    assert attempt(lambda: 3, "conv") == 3
    assert isinstance(attempt(lambda: int("x"), "conv"), Decline)
