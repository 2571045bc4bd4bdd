"""The device that GPU tests run on."""

import pytest

from graphdnn.runtime.cache import DiskStore
from graphdnn.runtime.device import CudaDevice


@pytest.fixture(scope="session")
def device(tmp_path_factory: pytest.TempPathFactory) -> CudaDevice:
    """The CUDA device, with an empty cache of its own."""
    return CudaDevice.current().with_store(DiskStore(tmp_path_factory.mktemp("cache")))
