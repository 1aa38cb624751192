"""The browser of the report's tests, for the page of a simulated sweep."""

from __future__ import annotations

from tests.bench.report.conftest import browser

__all__ = ["browser"]
