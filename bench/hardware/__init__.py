"""What this machine is made of, and what of it this process may use.

Readers never raise: what cannot be read is None, or absent from a list. None of them imports torch into
this process.
"""

from bench.hardware.cpu import last_level_cache_bytes, usable_cores
from bench.hardware.cuda import cuda_device_count, cuda_devices
from bench.hardware.memory import available_memory_bytes
from bench.hardware.peaks import peaks_tflops, theoretical_peak_tflops

__all__ = [
    "available_memory_bytes",
    "cuda_device_count",
    "cuda_devices",
    "last_level_cache_bytes",
    "peaks_tflops",
    "theoretical_peak_tflops",
    "usable_cores",
]
