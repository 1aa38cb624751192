"""``bench doctor``: what this machine can run, what is missing, and the command that would add it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.doctor import installed, launching, machine, software, storage
from bench.doctor.check import Check, exit_code
from bench.doctor.table import render
from bench.doctor.torch_probe import probe_torch

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Check", "exit_code", "render", "run_checks"]


def run_checks(store: Path) -> list[Check]:
    """Every check, in the order in which it is shown; takes a few seconds, most of them torch's import.

    Args:
        store: folder where results would be written; it need not exist.
    """
    torch = probe_torch()
    return [
        software.check_python(),
        software.check_torch(torch),
        software.check_gloo(torch),
        software.check_nccl(torch),
        software.check_required_packages(),
        software.check_compiler(),
        *installed.installed_checks(),
        *software.check_extras(),
        software.check_browser(),
        launching.check_py_spy(),
        launching.check_lab(),
        launching.check_torchrun(),
        launching.check_mpirun(),
        launching.check_slurm(),
        machine.check_cores(),
        machine.check_memory(),
        machine.check_gpus(torch),
        machine.check_rdma(),
        machine.check_governor(),
        machine.check_load(),
        machine.check_clock_source(),
        machine.check_hugepages(),
        machine.check_open_files(),
        storage.check_store(store),
        storage.check_shared_memory(),
    ]
