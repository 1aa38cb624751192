"""Which collective an event of a trace is, from the many names that libraries give to each."""

from __future__ import annotations

import re

COLLECTIVES = (
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "p2p",
    "barrier",
    "other",
)
"""What a communication can be, in the order in which reports list them."""

UNTOLD = ("p2p", "other")
"""What a kernel's name says where it may still be something else: NCCL runs an all-to-all as sends and receives."""

_WORDS = (
    ("reducescatter", "reduce_scatter"),
    ("allgather", "all_gather"),
    ("allreduce", "all_reduce"),
    ("alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("barrier", "barrier"),
    ("sendrecv", "p2p"),
    ("send", "p2p"),
    ("recv", "p2p"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("reduce", "reduce"),
)
_COMMUNICATION_KERNEL = re.compile(
    r"(?:void )?(?:nccl\w*kernel|rccl\w*kernel|ncclsym|nvshmem|.*\bdeep_ep::|.*cross_device_reduce|"
    r"(?:one|two)_shot_all_reduce|multimem_\w*(?:reduce|gather))",
    re.IGNORECASE,
)
_HOST_COMMUNICATION = re.compile(r"(?:gloo|nccl|mpi|ucc|xccl|hccl):(.+)|c10d::(.+)")


def collective_of(text: str) -> str:
    """One of ``COLLECTIVES``, from a kernel's, an op's or an annotation's name: ``_allgather_base_``."""
    plain = re.sub(r"[^a-z]", "", text.partition("(")[0].lower())
    return next((name for word, name in _WORDS if word in plain), "other")


def is_communication_kernel(name: str) -> bool:
    """Whether a kernel of that name moves data between ranks."""
    return _COMMUNICATION_KERNEL.match(name) is not None


def host_collective(name: str) -> str | None:
    """The collective of an op or annotation on the host (``gloo:all_gather``, ``c10d::allgather_``), or None."""
    match = _HOST_COMMUNICATION.fullmatch(name)
    return collective_of(match[1] or match[2]) if match else None
