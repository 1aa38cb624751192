"""The GPUs that a process that imports torch can use: CUDA devices, or HIP ones under the same name."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from dataclasses import dataclass

from bench.hardware.gpu import read_gpus
from bench.software import torch_build

QUERY_TIMEOUT_S = 60.0
QUERY = """
import json, torch
found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
print(json.dumps([[device.name, device.L2_cache_size] for device in found]))
"""


@dataclass(frozen=True)
class CudaDevice:
    """A GPU as torch sees it: its model, and the size of its last level cache."""

    model: str
    l2_bytes: int


@functools.cache
def cuda_devices() -> tuple[CudaDevice, ...]:
    """Devices that torch sees, ``CUDA_VISIBLE_DEVICES`` and its like considered; none if it was built without.

    Where a driver shows GPUs, another process is asked, so that this one neither waits for torch's
    import nor holds a context that worker processes would inherit. The answer is kept.
    """
    build = torch_build()
    if not (build["cuda"] or build["hip"]) or not read_gpus():
        return ()
    try:
        done = subprocess.run(
            [sys.executable, "-c", QUERY], capture_output=True, text=True, timeout=QUERY_TIMEOUT_S, check=True
        )
        return tuple(CudaDevice(model, l2_bytes) for model, l2_bytes in json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError):
        return ()


def cuda_device_count() -> int:
    """How many of them there are."""
    return len(cuda_devices())
