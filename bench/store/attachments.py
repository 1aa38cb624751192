"""Files that belong to a run and are too long for a row: the stacks of a failed case's ranks."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from bench.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def save_stacks(store: Path, run_id: str, stacks: Mapping[int, str]) -> str:
    """Write all ranks' stacks into the store; returns the file's path within the store.

    Raises:
        StoreError: the store cannot be written.
    """
    folder = store / "stacks"
    text = "\n\n".join(f"== rank {rank} ==\n{stack}" for rank, stack in sorted(stacks.items())) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            path = folder / f"{run_id}-{number}.txt"
            try:
                with path.open("x", encoding="utf-8", errors="backslashreplace") as file:
                    file.write(text)
            except FileExistsError:
                continue
            break
    except OSError as error:
        raise StoreError(f"cannot write stacks to {folder}: {error}") from error
    return str(path.relative_to(store))
