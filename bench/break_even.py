"""Finds the token count where the grouped expert GEMM overtakes the looped one."""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from typing import TYPE_CHECKING, Literal

from bench.platform_profile import BreakEven, Crossing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bench.platform_profile import BreakEvenOutcome, Params, TableRow

IMPLEMENTATIONS = ("grouped", "looped")
TOKENS = "tokens"
METRIC = "throughput"


def break_even_points(rows: Iterable[TableRow]) -> tuple[BreakEven, ...]:
    """One break-even for every set of other parameters where both were measured at one token count or more."""
    groups: defaultdict[str, defaultdict[int, dict[str, TableRow]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        axis = next((name for name, value in row.params.items() if value in IMPLEMENTATIONS), None)
        tokens = row.params.get(TOKENS)
        if axis is None or type(tokens) is not int or row.values.get(METRIC, 0) <= 0:
            continue
        common = {name: value for name, value in row.params.items() if name not in (axis, TOKENS)}
        groups[json.dumps(common, sort_keys=True)][tokens][str(row.params[axis])] = row
    found = []
    for key, by_tokens in sorted(groups.items()):
        pairs = {tokens: pair for tokens, pair in sorted(by_tokens.items()) if len(pair) == len(IMPLEMENTATIONS)}
        if pairs:
            found.append(_break_even(json.loads(key), pairs))
    return tuple(found)


def _break_even(params: Params, pairs: dict[int, dict[str, TableRow]]) -> BreakEven:
    """From the pairs of rows by token count, ascending."""
    # Log of the speed-up of grouped over looped; its zeros are the crossings. Equal counts as grouped.
    gains = {
        tokens: math.log(pair["grouped"].values[METRIC] / pair["looped"].values[METRIC])
        for tokens, pair in pairs.items()
    }
    crossings = tuple(
        Crossing(tokens=_zero(low, gains[low], high, gains[high]), faster_above=_faster(gains[high]))
        for low, high in itertools.pairwise(gains)
        if _faster(gains[low]) != _faster(gains[high])
    )
    outcome = _outcome(crossings, _faster(gains[min(gains)]))
    return BreakEven(
        params=params,
        outcome=outcome,
        tokens=crossings[0].tokens if outcome == "crossing" else None,
        crossings=crossings,
        min_tokens=min(pairs),
        max_tokens=max(pairs),
        compared_points=len(pairs),
        settled=all(row.settled for pair in pairs.values() for row in pair.values()),
    )


def _outcome(crossings: tuple[Crossing, ...], faster_at_fewest: Literal["grouped", "looped"]) -> BreakEvenOutcome:
    if len(crossings) > 1:
        return "several crossings"
    if crossings:
        return "crossing" if crossings[0].faster_above == "grouped" else "reverse crossing"
    return "grouped always" if faster_at_fewest == "grouped" else "looped always"


def _faster(gain: float) -> Literal["grouped", "looped"]:
    return "grouped" if gain >= 0 else "looped"


def _zero(low: int, low_gain: float, high: int, high_gain: float) -> float:
    """Where the gain is zero between two token counts, linear in the logarithm of tokens."""
    return low * math.pow(high / low, low_gain / (low_gain - high_gain))
