"""Which of the cases that were asked for a row is of: some metrics give their rows parameters of their own.

A case that splits its time by region, say, has rows of as many case texts as there are regions. Who asked
for four cases counts four.
"""

from __future__ import annotations

import functools
import re

from bench.errors import UsageError
from bench.registry import load_suite

OF_THE_HARNESS = ("range", "reference", "bound", "part", "profile")
"""Parameters that ranges and comparisons give their rows, of whatever suite."""


def asked_case(suite: str, case: str) -> str:
    """The text of a row's case (``Row.case``) without its metric's own parameters."""
    own = _own_parameters(suite)
    return own.sub("", case).removeprefix(",") if own else case


@functools.cache
def _own_parameters(suite: str) -> re.Pattern[str] | None:
    """Finds them in the text of a case; None for a suite that is not installed here, whose rows say no more."""
    try:
        loaded = load_suite(suite)
    except UsageError:
        return None
    axes = {axis.name for axis in loaded.axes}
    names = {*OF_THE_HARNESS, *(name for metric in loaded.metrics for name in metric.params)} - axes
    return re.compile(rf"(?:^|,)(?:{'|'.join(map(re.escape, sorted(names)))})=.*?(?=,\w+=|$)")
