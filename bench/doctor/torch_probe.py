"""What torch says of itself, asked in another process: a broken build may crash the one that imports it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass

PROBE_TIMEOUT_S = 120.0

_PROBE = """
import json, sys
answer = {}
try:
    import torch
    import torch.distributed as dist
    answer["version"] = torch.__version__
    answer["built_for"] = f"CUDA {torch.version.cuda}" if torch.version.cuda else (
        f"HIP {torch.version.hip}" if torch.version.hip else "CPU")
    answer["has_nccl"] = dist.is_available() and dist.is_nccl_available()
    answer["has_gloo"] = dist.is_available() and dist.is_gloo_available()
except Exception as error:
    answer["error"] = f"{type(error).__name__}: {error}"
else:
    try:
        if answer["has_gloo"]:
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
            dist.all_reduce(torch.ones(1))
            dist.destroy_process_group()
    except Exception as error:
        answer["gloo_error"] = f"{type(error).__name__}: {error}"
    try:
        answer["devices"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        if answer["has_nccl"]:
            answer["nccl_version"] = ".".join(map(str, torch.cuda.nccl.version()))
    except Exception as error:
        answer["device_error"] = f"{type(error).__name__}: {error}"
print("\\n" + json.dumps(answer))
"""


@dataclass(frozen=True)
class TorchProbe:
    """What importing torch and trying its parts gave.

    Attributes:
        version, built_for: ``2.13.0+cu130``, ``CUDA 13.0``; empty if it cannot be imported.
        error: why it cannot be imported; empty if it can.
        has_gloo, has_nccl: whether the build contains the backend (NCCL stands for RCCL too).
        gloo_error: why a gloo group of one does not work; empty if it does.
        nccl_version: empty if there is none.
        devices: names of the CUDA or HIP devices that it can use.
        device_error: why it cannot use those that are there.
    """

    version: str = ""
    built_for: str = ""
    error: str = ""
    has_gloo: bool = False
    has_nccl: bool = False
    gloo_error: str = ""
    nccl_version: str = ""
    devices: tuple[str, ...] = ()
    device_error: str = ""


def probe_torch(timeout_s: float = PROBE_TIMEOUT_S) -> TorchProbe:
    """Import torch in a new process with this Python and try what it offers."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return TorchProbe(error=f"its import did not end within {timeout_s:g} s")
    if done.returncode != 0:
        last_line = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return TorchProbe(error=f"its import ended Python with status {done.returncode}: {last_line}")
    # What torch or a plugin prints on import comes before the answer.
    answer = json.loads(done.stdout.splitlines()[-1])
    one_line = {name: " ".join(value.split()) for name, value in answer.items() if isinstance(value, str)}
    return TorchProbe(**{**answer, **one_line, "devices": tuple(answer.get("devices", ()))})
