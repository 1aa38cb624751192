"""Kernels in Triton: for GPUs, and for tests, through Triton's interpreter, on the CPU."""

from ciera_piper_core.exponents.triton.kernels import TritonKernels

__all__ = ["TritonKernels"]
