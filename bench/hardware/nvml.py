"""NVIDIA's management library, which comes with the driver, called directly.

The Python binding of the same functions is an optional extra; a fingerprint must not depend on whether it
is installed. Nothing here makes a CUDA context. An answer that the driver does not have is None.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

LIBRARY = "libnvidia-ml.so.1"
_SUCCESS = 0
_TEXT_BYTES = 96
"""Of the longest text asked for, nvmlDeviceGetName's; the driver's version needs 80."""
_CLOCK_SM = 1
_TEMPERATURE_GPU = 0
_MAX_NVLINKS = 36


class _Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _PciInfo(ctypes.Structure):
    """nvmlPciInfo_t, as nvmlDeviceGetPciInfo_v3 fills it."""

    _fields_ = (
        ("bus_id_legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pci_device_id", ctypes.c_uint),
        ("pci_subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    )


class Nvml:
    """An open session with the library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def call(self, function: str, *arguments: object) -> bool:
        """Call a function that returns nvmlReturn_t; False if it fails or this driver does not have it."""
        try:
            return bool(getattr(self._library, function)(*arguments) == _SUCCESS)
        except AttributeError:
            return False

    def driver(self) -> str | None:
        """Version of the kernel driver."""
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        return _decode(text) if self.call("nvmlSystemGetDriverVersion", text, _TEXT_BYTES) else None

    def devices(self) -> list[NvmlDevice]:
        """Every GPU that the driver lets this process see."""
        count = ctypes.c_uint()
        self.call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        handles = [ctypes.c_void_p() for _ in range(count.value)]
        return [
            NvmlDevice(self, handle)
            for index, handle in enumerate(handles)
            if self.call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle))
        ]


class NvmlDevice:
    """One GPU of an open session."""

    def __init__(self, nvml: Nvml, handle: ctypes.c_void_p) -> None:
        self._nvml = nvml
        self._handle = handle

    def name(self) -> str | None:
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        return _decode(text) if self._nvml.call("nvmlDeviceGetName", self._handle, text, _TEXT_BYTES) else None

    def memory_bytes(self) -> int | None:
        memory = _Memory()
        done = self._nvml.call("nvmlDeviceGetMemoryInfo", self._handle, ctypes.byref(memory))
        return int(memory.total) if done else None

    def pci_address(self) -> str | None:
        """As sysfs writes it, ``0000:18:00.0``."""
        pci = _PciInfo()
        done = self._nvml.call("nvmlDeviceGetPciInfo_v3", self._handle, ctypes.byref(pci))
        return f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0" if done else None

    def mig(self) -> bool | None:
        """Whether the GPU is divided; None where it cannot be."""
        current, pending = ctypes.c_uint(), ctypes.c_uint()
        done = self._nvml.call("nvmlDeviceGetMigMode", self._handle, ctypes.byref(current), ctypes.byref(pending))
        return current.value == 1 if done else None

    def active_nvlinks(self) -> int | None:
        """None if the GPU has no NVLink at all."""
        states = [self._number("nvmlDeviceGetNvLinkState", link) for link in range(_MAX_NVLINKS)]
        known = [state for state in states if state is not None]
        return known.count(1) if known else None

    def temperature_c(self) -> int | None:
        return self._number("nvmlDeviceGetTemperature", _TEMPERATURE_GPU)

    def sm_clock_mhz(self) -> int | None:
        return self._number("nvmlDeviceGetClockInfo", _CLOCK_SM)

    def _number(self, function: str, selector: int) -> int | None:
        number = ctypes.c_uint()
        return number.value if self._nvml.call(function, self._handle, selector, ctypes.byref(number)) else None


@contextlib.contextmanager
def nvml_session() -> Iterator[Nvml | None]:
    """A session with the library; None where there is no NVIDIA driver, or none that works."""
    try:
        nvml = Nvml(ctypes.CDLL(LIBRARY))
    except OSError:
        yield None
        return
    if not nvml.call("nvmlInit_v2"):
        yield None
        return
    try:
        yield nvml
    finally:
        nvml.call("nvmlShutdown")


def _decode(text: ctypes.Array[ctypes.c_char]) -> str | None:
    return text.raw.partition(b"\0")[0].decode("utf-8", "replace") or None
