"""Which environment variables may be recorded, and what of their values.

Only names of this list are looked at. A name that sounds like a secret is left out all the same; a value
that could be a secret, a path or an address is recorded as withheld, since that it is set may matter.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIXES = (
    "BLIS_",
    "DNNL_",
    "FI_",
    "GLOO_",
    "GOMP_",
    "KMP_",
    "MALLOC_",
    "MKL_",
    "NCCL_",
    "OMP_",
    "ONEDNN_",
    "OPENBLAS_",
    "PYTORCH_",
    "RCCL_",
    "TORCH_NCCL_",
    "UCX_",
)
NAMES = frozenset(
    {
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "CUDA_DEVICE_ORDER",
        "CUDA_LAUNCH_BLOCKING",
        "CUDA_MODULE_LOADING",
        "CUDA_VISIBLE_DEVICES",
        "GPU_MAX_HW_QUEUES",
        "HIP_VISIBLE_DEVICES",
        "HSA_ENABLE_SDMA",
        "HSA_FORCE_FINE_GRAIN_PCIE",
        "NVIDIA_TF32_OVERRIDE",
        "ROCR_VISIBLE_DEVICES",
        "SLURM_CPUS_PER_TASK",
        "SLURM_CPU_BIND_TYPE",
        "SLURM_CPU_FREQ_REQ",
        "SLURM_DISTRIBUTION",
        "SLURM_GPUS_ON_NODE",
        "SLURM_GPUS_PER_NODE",
        "SLURM_GPUS_PER_TASK",
        "SLURM_MEM_BIND_TYPE",
        "SLURM_THREADS_PER_CORE",
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    }
)
RUN_SPECIFIC = frozenset({"NCCL_COMM_ID", "NCCL_HOSTID", "NCCL_RAS_ADDR"})
"""Of the names above, those that name a host or a run and so tell nothing about speed."""

WITHHELD = "<withheld>"

_NAME = re.compile(r"[A-Z0-9_]{1,64}")
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|PWD|CRED|AUTH|COOKIE|PRIVATE|CERT")
_PLAIN_VALUE = re.compile(r"[A-Za-z0-9_.,:;=+^|*()\[\]{}<> -]{0,200}")
_TOKEN_LIKE = re.compile(r"[A-Za-z0-9]{20}")
"""No setting has twenty letters and digits in a row; tokens, hashes and encoded keys do."""
_ADDRESS = re.compile(r"\d+\.\d+\.\d+\.\d+|[0-9a-fA-F]*:[0-9a-fA-F]*:[0-9a-fA-F:]*[0-9a-fA-F]{3}")


def recorded_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that may be recorded, by name in order, with values fit to be seen by anybody."""
    return {name: _value(name, value) for name, value in sorted(environ.items()) if _is_allowed(name)}


def _is_allowed(name: str) -> bool:
    listed = name in NAMES or name.startswith(PREFIXES)
    return listed and name not in RUN_SPECIFIC and bool(_NAME.fullmatch(name)) and not _SECRET.search(name)


def _value(name: str, value: str) -> str:
    # Which devices a job was given differs from job to job; how many is what tells about speed.
    if name.endswith("_VISIBLE_DEVICES"):
        return f"{len([device for device in value.split(',') if device.strip()])} device(s)"
    return _safe_value(value)


def _safe_value(value: str) -> str:
    if not _PLAIN_VALUE.fullmatch(value) or _TOKEN_LIKE.search(value) or _ADDRESS.search(value):
        return WITHHELD
    return value
