"""The calls of NVIDIA's management library, against one compiled here that answers for a node of eight GPUs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

# Signatures as in nvml.h. GPU 7 is divided, is warmer, and lost two of its eighteen links.
LIBRARY = r"""
#include <stdio.h>
#include <string.h>
typedef struct { int index; } *device_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;
static struct { int index; } gpus[8];
static int open_sessions;
int nvmlInit_v2(void) { if (getenv("NVML_BROKEN")) return 9; open_sessions++; return 0; }
int nvmlShutdown(void) { if (--open_sessions != 0) puts("a session was left open"); return 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned length) { snprintf(text, length, "580.65.06"); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 8; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *device) {
    if (index == 3) return 15; /* NVML_ERROR_GPU_IS_LOST */
    gpus[index].index = index; *device = (device_t)&gpus[index]; return 0;
}
int nvmlDeviceGetName(device_t device, char *text, unsigned length) { snprintf(text, length, "NVIDIA H200"); return 0; }
int nvmlDeviceGetMemoryInfo(device_t device, memory_t *memory) {
    memory->total = 150754820096ULL; memory->free = memory->total; memory->used = 0; return 0;
}
int nvmlDeviceGetPciInfo_v3(device_t device, pci_t *pci) {
    memset(pci, 0, sizeof *pci);
    pci->bus = 0x18 + device->index;
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus); return 0;
}
int nvmlDeviceGetMigMode(device_t device, unsigned *now, unsigned *later) {
    *now = device->index == 7; *later = *now; return 0;
}
int nvmlDeviceGetNvLinkState(device_t device, unsigned link, unsigned *active) {
    if (link >= 18) return 2; /* NVML_ERROR_INVALID_ARGUMENT */
    *active = !(device->index == 7 && link < 2); return 0;
}
int nvmlDeviceGetTemperature(device_t device, unsigned sensor, unsigned *celsius) {
    if (sensor != 0) return 2;
    *celsius = 30 + device->index; return 0;
}
#ifndef OLD_DRIVER
int nvmlDeviceGetClockInfo(device_t device, unsigned domain, unsigned *mhz) {
    if (domain != 1) return 2;
    *mhz = 1980; return 0;
}
#endif
"""

SHOW = """
from dataclasses import astuple
from bench.hardware.gpu import read_gpus
for gpu in read_gpus():
    print(*astuple(gpu)[1:], sep="|")
"""


def gpus_seen(folder: Path, *compiler_options: str, **variables: str) -> list[str]:
    """What a process reads that finds the library compiled from LIBRARY: a line a GPU."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    source = folder / "nvml.c"
    source.write_text("#include <stdlib.h>\n" + LIBRARY)
    command = [compiler, "-shared", "-fPIC", *compiler_options, str(source), "-o", str(folder / "libnvidia-ml.so.1")]
    subprocess.run(command, check=True, timeout=60)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), **variables}
    done = subprocess.run([sys.executable, "-c", SHOW], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_every_gpu_that_answers_is_described(tmp_path: Path) -> None:
    gpus = gpus_seen(tmp_path)
    assert len(gpus) == 7, "the one that is lost is left out"
    assert gpus[0] == "NVIDIA H200|150754820096|580.65.06|0000:18:00.0|18|False|30|1980"
    assert gpus[-1] == "NVIDIA H200|150754820096|580.65.06|0000:1f:00.0|16|True|37|1980"


def test_a_driver_without_a_function_leaves_one_field_out(tmp_path: Path) -> None:
    gpus = gpus_seen(tmp_path, "-DOLD_DRIVER")
    assert gpus[0] == "NVIDIA H200|150754820096|580.65.06|0000:18:00.0|18|False|30|None"


@pytest.mark.skipif(os.path.exists("/proc/driver/nvidia/gpus"), reason="the kernel module lists this machine's GPUs")
def test_a_driver_that_does_not_start_shows_no_gpu(tmp_path: Path) -> None:
    assert gpus_seen(tmp_path, NVML_BROKEN="1") == []
