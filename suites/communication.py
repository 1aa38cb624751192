"""What the communication suites have in common: dtypes, sizes, and what can be shared out among ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.suite import Axis, Case, Suite

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from bench.suite import Preset, Site, Value

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "int32": 4, "int64": 8}
"""The dtypes that gloo and NCCL both reduce, with the size of an element."""

WORKING_BYTES = 64 * MIB
"""Memory that a case needs beside its buffers: the library's, and the oracle's stretch of data."""

BUFFERS = {
    "all_reduce": 2.0,
    "all_gather": 2.5,
    "reduce_scatter": 2.5,
    "all_to_all": 2.0,
    "broadcast": 2.0,
    "send_recv": 2.0,
}
"""Most memory that a rank needs for buffers, its own and the library's, in units of S (measured with gloo)."""

RANKS = Axis("ranks", "int", "number of ranks", minimum=1)
DTYPE = Axis("dtype", "str", "type of the elements", tuple(DTYPE_BYTES))
LIBRARY = Axis("algorithm", "str", "whose algorithm: library leaves it to gloo or NCCL", ("library",))
EVEN_TRAFFIC = Axis("traffic", "str", "how evenly the data is spread", ("uniform",))


def sizes(first: int, last: int, step: int = 4) -> list[int]:
    """``first``, ``first * step``, ... up to and including ``last``."""
    values = []
    while first <= last:
        values.append(first)
        first *= step
    return values


def size_unit(op: str, ranks: int, dtype: str) -> int:
    """S must be a multiple of so many bytes: an element, or an element for each rank where S is shared out."""
    shared_out = op in ("all_gather", "reduce_scatter", "all_to_all")
    return DTYPE_BYTES[dtype] * (ranks if shared_out else 1)


def fitted(cases: Iterable[Case]) -> Iterator[Case]:
    """The cases with sizes rounded down to what can be shared out (up to the least), each once."""
    seen = set()
    for case in cases:
        unit = size_unit(case["op"], case["ranks"], case["dtype"])
        whole = Case({**case.params, "bytes": max(unit, case["bytes"] // unit * unit)})
        if whole.id not in seen:
            seen.add(whole.id)
            yield whole


class CollectiveSuite(Suite):
    """A suite of the library's collectives: a case has ``op``, ``ranks``, ``dtype`` and ``bytes`` (S of nccl-tests).

    Preset sizes are fitted to the ranks when the cases are made (rounded down, with 3 ranks for
    example); a size asked for by ``--set bytes`` that cannot be shared out is skipped instead.
    """

    distributed = True
    characterizes = True

    def cases(self, preset: Preset, overrides: Mapping[str, Sequence[Value]]) -> Iterable[Case]:
        cases = super().cases(preset, overrides)
        return cases if "bytes" in overrides else fitted(cases)

    def placed_params(self, case: Case, site: Site) -> Mapping[str, Value]:
        """For operations whose S is the total over ranks, a rank's part: what it contributes or is left with."""
        if case["op"] in ("all_gather", "reduce_scatter"):
            return {"bytes_per_rank": int(case["bytes"] // case["ranks"])}
        return {}

    def skip_reason(self, case: Case, site: Site) -> str | None:
        if case["ranks"] < 2:
            return "a collective operation needs at least 2 ranks"
        unit = size_unit(case["op"], case["ranks"], case["dtype"])
        if case["bytes"] % unit:
            below = case["bytes"] // unit * unit
            nearest = f"{below} or {below + unit}" if below else f"{unit}"
            return (
                f"{case['bytes']} bytes do not divide into units of {unit} (elements of {case['dtype']}, "
                f"{unit // DTYPE_BYTES[case['dtype']]} at a time); use {nearest}"
            )
        return None

    def memory_bytes(self, case: Case, site: Site) -> int:
        return int(BUFFERS[case["op"]] * case["bytes"]) + WORKING_BYTES
