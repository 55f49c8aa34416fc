"""Steps by Triton kernels, for CUDA and ROCm. Nothing here imports Triton before a step needs it."""
