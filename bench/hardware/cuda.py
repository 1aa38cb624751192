"""How many GPUs a process that imports torch can use: CUDA devices, or HIP ones under the same name."""

from __future__ import annotations

import functools
import subprocess
import sys

from bench.hardware.gpu import read_gpus
from bench.software import torch_build

QUERY_TIMEOUT_S = 60.0


@functools.cache
def cuda_device_count() -> int:
    """Devices that torch sees, ``CUDA_VISIBLE_DEVICES`` and its like considered; 0 if it was built without.

    Where a driver shows GPUs, another process is asked, so that this one neither waits for torch's
    import nor holds a context that worker processes would inherit. The answer is kept.
    """
    build = torch_build()
    if not (build["cuda"] or build["hip"]) or not read_gpus():
        return 0
    command = [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=QUERY_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    count = done.stdout.strip()
    return int(count) if done.returncode == 0 and count.isdecimal() else 0
