"""Keeps tests from disturbing each other: those marked ``alone`` run beside no others, and no process group is left.

Under pytest-xdist, which runs several at once, every test holds a lock while it runs: a shared one, or the exclusive
one if it is marked ``alone``. Those come last, so that no worker waits for the lock while there is other work to do.
"""

from __future__ import annotations

import fcntl
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

LOCK_FILE = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    """Workers take the path of the lock file from the controller, which makes and removes it."""
    worker_input: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker_input is not None:
        config.stash[LOCK_FILE] = Path(worker_input["alone_lock_file"])
    else:
        file = tempfile.NamedTemporaryFile(prefix="pytest-alone-")  # noqa: SIM115
        config.add_cleanup(file.close)
        config.stash[LOCK_FILE] = Path(file.name)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Called by pytest-xdist's controller for each worker."""
    node.workerinput["alone_lock_file"] = str(node.config.stash[LOCK_FILE])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_is_alone)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """The lock is taken outside of all else, so that waiting for it counts towards no timeout."""
    with item.config.stash[LOCK_FILE].open() as file:
        fcntl.flock(file, fcntl.LOCK_EX if _is_alone(item) else fcntl.LOCK_SH)
        try:
            return (yield)
        finally:
            # Closing is not enough: a child that a test forked may hold the same open file.
            fcntl.flock(file, fcntl.LOCK_UN)


@pytest.fixture(autouse=True)
def _no_process_group_is_left() -> Iterator[None]:
    """A world of one that a test made in its own process would be inherited by the ranks that later tests fork."""
    yield
    if "torch.distributed" in sys.modules:
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()


def _is_alone(item: pytest.Item) -> bool:
    return item.get_closest_marker("alone") is not None
