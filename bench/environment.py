"""The fingerprint of where a measurement was made: identity, which comparisons demand, and volatile state.

Identity holds no host name, address, serial number or path, so that equal nodes have equal digests. Of the
environment it takes only what ``bench.variables`` lets through.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import socket
from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypedDict

import bench
from bench.hardware.conditions import read_conditions
from bench.hardware.cpu import read_cpu
from bench.hardware.gpu import Gpu, read_gpus
from bench.hardware.kernelfs import ROOT, read_table, read_text
from bench.hardware.memory import GIB, total_memory_gib
from bench.hardware.network import read_nics, read_rdma_devices
from bench.hardware.topology import read_affinities
from bench.software import git_state, nccl_version, torch_build
from bench.variables import recorded_variables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


class Fingerprint(TypedDict):
    """Plain JSON data. What a machine does not tell is None.

    Attributes:
        identity: keys ``cpu memory_gib gpus nics rdma affinity os kernel python torch cuda hip nccl
            harness variables``. Numbers are compared only between equal identities.
        volatile: keys ``at host container git gpus conditions``. Kept to explain a number, never compared.
    """

    identity: dict[str, Any]
    volatile: dict[str, Any]


def fingerprint(root: Path = ROOT, environ: Mapping[str, str] | None = None) -> Fingerprint:
    """The fingerprint of this machine and process; it never raises and does not import torch.

    Args:
        root: directory that holds ``proc``, ``sys`` and ``etc``.
        environ: stands in for the environment of this process.
    """
    gpus = read_gpus(root)
    identity = {
        "cpu": asdict(read_cpu(root)),
        "memory_gib": total_memory_gib(root),
        "gpus": _count_gpus(gpus),
        "nics": [asdict(nic) for nic in read_nics(root)],
        "rdma": [asdict(device) for device in read_rdma_devices(root)],
        "affinity": [asdict(affinity) for affinity in read_affinities(gpus, root)],
        "os": _os_name(root),
        "kernel": read_text(root / "proc/sys/kernel/osrelease") or platform.release(),
        "python": platform.python_version(),
        **torch_build(),
        "nccl": nccl_version(),
        "harness": bench.__version__,
        "variables": recorded_variables(os.environ if environ is None else environ),
    }
    volatile = {
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "host": socket.gethostname(),
        "container": _container(root, os.environ if environ is None else environ),
        "git": git_state(),
        "gpus": [{"temperature_c": gpu.temperature_c, "clock_mhz": gpu.clock_mhz} for gpu in gpus],
        "conditions": asdict(read_conditions(root)),
    }
    # Through JSON, so that a fingerprint equals itself after a visit to the store (tuples become lists).
    plain: Fingerprint = json.loads(json.dumps({"identity": identity, "volatile": volatile}))
    return plain


def identity_digest(fingerprint: Mapping[str, Any]) -> str:
    """Twelve hexadecimal digits that are equal for equal identities, whatever the order of their keys."""
    text = json.dumps(fingerprint["identity"], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def identity_differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Where the identities of two fingerprints differ, one text each: ``cpu.model: 'EPYC' and 'Xeon'``."""
    return list(_differences(one["identity"], other["identity"], ""))


def _differences(one: Any, other: Any, path: str) -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in dict.fromkeys([*one, *other]):
            yield from _differences(one.get(key), other.get(key), f"{path}.{key}" if path else key)
    elif one != other:
        yield f"{path}: {one!r} and {other!r}"


def _count_gpus(gpus: list[Gpu]) -> list[dict[str, Any]]:
    """GPUs that are alike as one entry with their number, in the order of the first of each kind."""
    kinds = Counter(
        (
            ("vendor", gpu.vendor),
            ("model", gpu.model),
            ("memory_gib", None if gpu.memory_bytes is None else round(gpu.memory_bytes / GIB)),
            ("driver", gpu.driver),
            ("fabric_links", gpu.fabric_links),
            ("mig", gpu.mig),
        )
        for gpu in gpus
    )
    return [{"count": count, **dict(kind)} for kind, count in kinds.items()]


def _os_name(root: Path) -> str:
    release = read_table(root / "etc/os-release", "=")
    return (release.get("PRETTY_NAME") or platform.system()).strip('"')


def _container(root: Path, environ: Mapping[str, str]) -> str | None:
    """What kind of container this process runs in, by the marks that each leaves; None outside of one."""
    marks = {
        "kubernetes": "KUBERNETES_SERVICE_HOST" in environ,
        "apptainer": "APPTAINER_CONTAINER" in environ or "SINGULARITY_CONTAINER" in environ,
        "podman": (root / "run/.containerenv").exists(),
        "docker": (root / ".dockerenv").exists(),
    }
    return next((kind for kind, marked in marks.items() if marked), None)
