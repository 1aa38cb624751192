"""Finds the run that a job's log names; a batch script calls it to go on with that run."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.store.reader import RunSummary

_RUN = re.compile(r"^run ([A-Za-z0-9][A-Za-z0-9_-]{0,100}): \d+ case\(s\)", re.MULTILINE)
"""How a run announces itself (``bench.console``)."""


def run_of_log(log: Path, store: Path) -> RunSummary | None:
    """The last run of the store that the log names, or None.

    Raises:
        StoreError: a file of the store is damaged.
    """
    from bench.store.reader import Store

    try:
        text = log.read_text(errors="replace")
    except OSError:
        return None
    named = _RUN.findall(text)
    if not named:
        return None
    runs = {run.run_id: run for run in Store(store).runs()}
    return next((runs[run_id] for run_id in reversed(named) if run_id in runs), None)


def main() -> int:
    """``LOG STORE [--unfinished]``: print the id; exit 1 if there is no run, or none with cases left."""
    log, store, *more = sys.argv[1:]
    run = run_of_log(Path(log), Path(store))
    if run is None or ("--unfinished" in more and run.cases_with_rows >= run.record.cases):
        return 1
    print(run.run_id)
    return 0


if __name__ == "__main__":
    sys.exit(main())
