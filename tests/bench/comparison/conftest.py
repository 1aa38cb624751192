"""The browser of the report's tests, for the page of a comparison."""

from tests.bench.report.conftest import browser

__all__ = ["browser"]
