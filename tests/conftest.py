"""What every test may rely on: the one reason to skip a `gpu` test, and random numbers fresh yet repeatable."""

import ctypes
import functools
import secrets
import sys
import zlib
from typing import Any

import hypothesis
import numpy as np
import pytest

CUDA_ERROR_STUB_LIBRARY = 34
CUDA_ERROR_NO_DEVICE = 100

# No deadline: the first example pays for imports, and a shared machine has slow seconds. The blob repeats a failure.
hypothesis.settings.register_profile("graphdnn", deadline=None, print_blob=True)
hypothesis.settings.load_profile("graphdnn")


@functools.cache
def has_cuda_device() -> bool:
    """Whether the CUDA driver is there and counts a device.

    It asks the driver itself and no Python package, so that on a machine with a device a missing package fails the GPU
    tests. For the same reason a driver that reports any other error counts as a device.
    """
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    status = driver.cuInit(0)
    if status in (CUDA_ERROR_NO_DEVICE, CUDA_ERROR_STUB_LIBRARY):
        return False
    count = ctypes.c_int(0)
    return status != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value > 0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="repeat a run's random draws; a fresh seed by default")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.seed is None:
        config.option.seed = getattr(config, "workerinput", {}).get("seed", secrets.randbelow(2**32))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hands the seed to each process of pytest-xdist, so that all of them draw from one."""
    node.workerinput["seed"] = node.config.option.seed


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.option.seed} (repeat with --seed={config.option.seed})"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.write_line(pytest_report_header(terminalreporter.config))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked or has_cuda_device():
        return
    for item in marked:
        item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(scope="session")
def seed(pytestconfig: pytest.Config) -> int:
    """The run's seed: the same for every worker, printed in the header, set by --seed."""
    return pytestconfig.option.seed


@pytest.fixture
def rng(seed: int, request: pytest.FixtureRequest) -> np.random.Generator:
    """A generator seeded by the run and the test's name, so that its draws do not depend on what else runs."""
    return np.random.default_rng([seed, zlib.crc32(request.node.nodeid.encode())])
