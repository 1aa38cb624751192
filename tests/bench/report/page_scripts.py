"""Scripts that open and read a report in a browser, and a report to open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.report.html import write_html

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.store.row import Row, RunRecord

DRAW_ALL = "dispatchEvent(new Event('beforeprint')); dispatchEvent(new Event('afterprint'));"
OPEN_ALL = "document.querySelectorAll('details').forEach((each) => { each.open = true; });"
OVERFLOW = "document.scrollingElement.scrollWidth - innerWidth"
POINTS = """
return [...document.querySelectorAll('.plot')].map((plot) => (plot.data ?? []).map((trace) =>
  (trace.type === 'heatmap' ? trace.z.flat() : trace.y).filter((value) => Number.isFinite(value)).length
).reduce((sum, count) => sum + count, 0));
"""


def write(folder: Path, rows: Sequence[Row], runs: Sequence[RunRecord] = ()) -> Path:
    return write_html(folder / "report.html", rows, runs)
