"""Generated CUDA C++ kernels, compiled by NVRTC: pointwise islands, row-wise work, movement, and last resorts."""
