"""Checks what a file of rows says, field by field, before anything counts on it: files come from anywhere."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from bench.errors import StoreError
from bench.shown_value import shown_value
from bench.store.row import FLOAT_FIELDS, INT_FIELDS, ROW_FIELDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MOST_INT = 2**63
OTHER_FIELDS = ("params", "samples", "rounds")
MAY_BE_NULL = (*FLOAT_FIELDS, "slowest_rank", "wrong")
COUNTS = ("row_id", "n", "warmup")
TEXT_FIELDS = tuple(name for name in ROW_FIELDS if name not in (*INT_FIELDS, *FLOAT_FIELDS, *OTHER_FIELDS))


def check_row(record: Mapping[str, Any]) -> None:
    """Refuse a row whose fields are of another kind, or contradict each other.

    Which fields there must be, and that there are no others, ``Row.from_dict`` says.

    Args:
        record: a parsed line.

    Raises:
        StoreError: the first field that is wrong, and what it needs.
    """
    for names, fits, need in _KINDS:
        for name in names:
            value = record.get(name)
            if name in record and not fits(value) and not (value is None and name in MAY_BE_NULL):
                raise _wrong(name, need, value)
    for name in COUNTS:
        if record.get(name, 0) < 0:
            raise _wrong(name, "a whole number from 0 on", record[name])
    for name, value in record.get("params", {}).items():
        if not (isinstance(value, (str, bool)) or _is_int(value) or _is_number(value)):
            raise _wrong(f"params.{name}", "a text, a finite number, true or false", value)
    _check_samples(record)


def _check_samples(record: Mapping[str, Any]) -> None:
    samples, rounds, n = record.get("samples", []), record.get("rounds", []), record.get("n", 0)
    for place, sample in enumerate(samples):
        if not _is_number(sample):
            raise _wrong(f"samples[{place}]", "a finite number", sample)
    for place, count in enumerate(rounds):
        if not _is_int(count) or count < 0:
            raise _wrong(f"rounds[{place}]", "a whole number from 0 on", count)
    if samples and n != len(samples):
        raise StoreError(f"n is {n}, but there are {len(samples)} samples")
    if rounds and sum(rounds) != n:
        raise StoreError(f"rounds add up to {sum(rounds)}, but n is {n}")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -MOST_INT <= value < MOST_INT


def _is_number(value: object) -> bool:
    """Whether it is a number that a float holds; whole ones of hundreds of digits are none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def _is_text(value: object) -> bool:
    return isinstance(value, str)


_KINDS: tuple[tuple[tuple[str, ...], Callable[[object], bool], str], ...] = (
    (TEXT_FIELDS, _is_text, "a text"),
    (INT_FIELDS, _is_int, "a whole number of at most 64 bits"),
    (FLOAT_FIELDS, _is_number, "a finite number"),
    (("params",), lambda value: isinstance(value, dict), "an object"),
    (("samples", "rounds"), lambda value: isinstance(value, list), "a list"),
)


def _wrong(name: str, need: str, value: object) -> StoreError:
    return StoreError(f"{name} needs {need}, not {shown_value(value)}")
