"""The device that GPU tests run on, and a table of the largest errors at the end."""

from collections.abc import Callable

import pytest

from graphdnn.runtime.cache import DiskStore
from graphdnn.runtime.device import CudaDevice


@pytest.fixture(scope="session")
def device(tmp_path_factory: pytest.TempPathFactory) -> CudaDevice:
    """The CUDA device, with an empty cache of its own."""
    return CudaDevice.current().with_store(DiskStore(tmp_path_factory.mktemp("cache")))


FOUND = "error of a family"


@pytest.fixture
def record_error(record_property: Callable[[str, object], None]) -> Callable[[str, str, float, float], None]:
    """Notes an op family's error, computed in some type and relative to the peak, beside its limit."""

    def note(family: str, computed_in: str, error: float, limit: float) -> None:
        record_property(FOUND, (family, computed_in, error, limit))

    return note


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    worst: dict[tuple[str, str], tuple[float, float]] = {}
    for kind in ("passed", "failed"):
        for report in terminalreporter.getreports(kind):
            for name, value in getattr(report, "user_properties", ()):
                if name == FOUND:
                    family, computed_in, error, limit = value
                    worst[family, computed_in] = max(worst.get((family, computed_in), (0.0, limit)), (error, limit))
    if worst:
        terminalreporter.section("largest error relative to the peak, by op family")
        for (family, computed_in), (error, limit) in sorted(worst.items()):
            terminalreporter.write_line(f"{family:12} {computed_in:9} {error:.1e}  (limit {limit:.1e})")
