"""Where there is a C++ compiler, some generated kernels run on the host; elsewhere only the device runs them."""

from tests.engines.nvrtc.host_kernels import COMPILER

collect_ignore = [] if COMPILER else ["test_on_host.py"]
