"""The memory model: static bytes, what layers keep, and what comes and goes, under one name."""

from __future__ import annotations

from ciera_piper_core.planner.activations import CHECKPOINTING, activation_bytes_per_token, kept_tensors
from ciera_piper_core.planner.paper_memory import PaperDimensions, paper_bytes
from ciera_piper_core.planner.static_memory import (
    OPTIMIZERS,
    PRECISIONS,
    Precision,
    StaticBytes,
    layer_static_bytes,
    moment_elements,
    static_bytes_per_parameter,
    weights_static_bytes,
)
from ciera_piper_core.planner.working_memory import (
    logits_bytes_per_token,
    logits_working_bytes,
    logits_working_bytes_per_token,
    working_bytes,
    working_bytes_per_token,
)

__all__ = [
    "CHECKPOINTING",
    "OPTIMIZERS",
    "PRECISIONS",
    "PaperDimensions",
    "Precision",
    "StaticBytes",
    "activation_bytes_per_token",
    "kept_tensors",
    "layer_static_bytes",
    "logits_bytes_per_token",
    "logits_working_bytes",
    "logits_working_bytes_per_token",
    "moment_elements",
    "paper_bytes",
    "static_bytes_per_parameter",
    "weights_static_bytes",
    "working_bytes",
    "working_bytes_per_token",
]
