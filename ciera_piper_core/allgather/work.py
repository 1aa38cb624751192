"""A gather that was started: waits for what happens elsewhere, then ends it on the thread that waits."""

from __future__ import annotations

from concurrent.futures import wait as wait_for
from typing import TYPE_CHECKING

import torch.distributed as dist

from ciera_piper_core.allgather.errors import GatherError

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from datetime import timedelta

    import torch


class GatherWork(dist.Work):
    """What ``torch.distributed`` calls work; FSDP2 waits for anything that is one."""

    def __init__(self, name: str, out: torch.Tensor, underway: Future[None] | None, end: Callable[[], None]) -> None:
        """
        Args:
            name: of the gather, for errors.
            out: what it fills.
            underway: done when the gather can end without waiting; None if only ``end`` knows.
            end: called once, by the first thread that waits; waits for what is left, and what it raises is the
                gather's error.
        """
        super().__init__()
        self._name = name
        self._out = out
        self._underway = underway
        self._end: Callable[[], None] | None = end
        self._error: Exception | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Until the output is filled: waits for the collectives, then decodes on this thread.

        Args:
            timeout: for the collectives; None, or none at all, for the group's.

        Raises:
            TimeoutError: they are not done; wait again. Other errors as for
                :meth:`~ciera_piper_core.allgather.communicator.CompressedGather.gather`, at every call again.
        """
        self.settle(timeout)
        if self._error is not None:
            raise self._error
        return True

    def wait_for_output(self) -> torch.Tensor:
        """:meth:`wait`, and the output."""
        self.wait()
        return self._out

    def is_completed(self) -> bool:
        """Whether ``wait`` would return, or raise, at once."""
        return self._end is None

    def settle(self, timeout: timedelta | None = None) -> None:
        """Bring the gather to its end; its error is kept for :meth:`wait`.

        Raises:
            TimeoutError: as for :meth:`wait`.
        """
        if self._end is None:
            return
        if self._underway is not None and timeout is not None and timeout.total_seconds() > 0:
            seconds = timeout.total_seconds()
            if not wait_for([self._underway], seconds).done:
                raise TimeoutError(f"gather {self._name!r}: not done after {seconds} s; wait again")
        end, self._end = self._end, None
        try:
            end()
        except Exception as error:
            self._error = error
        except BaseException as error:
            self._error = GatherError(f"gather {self._name!r} was interrupted while it ended ({type(error).__name__})")
            raise
        finally:
            self._underway = None
