"""The change-rate trace: what a model's gathers carried, gather after gather, as a versioned JSON file.

One rank's trace stands for all: that of the rank with the fullest payload, since every rank sends
as much as that one. Sizes are bytes, ``changed_blocks`` counts blocks, both one number a gather::

    {"format": "ciera_change_trace", "schema_version": 1, "world": 4, "source": "...",
     "gathers": [{"name": "layers.0", "dtype": "bfloat16", "block": 512, "mode": "auto",
                  "shards": [{"name": "layers.0.wq", "category": "attention", "values": 1048576,
                              "changed_blocks": [1960, 0], "coded_bytes": [8120, 0]}]}]}
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ciera_piper_core.allgather.traffic import MODES, GatherTraffic, ShardTraffic
from ciera_piper_core.exponents.kernels import BLOCKS
from ciera_piper_core.exponents.layout import LAYOUTS
from ciera_piper_core.models.wording import shorten

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import torch.distributed as dist

    from ciera_piper_core.allgather.plan import GatherPlan
    from ciera_piper_core.allgather.statistics import GatherSample

FORMAT = "ciera_change_trace"
SCHEMA_VERSION = 1
MOST_VALUES = 1 << 48
"""Of a shard; more is no shard, but a broken file."""

_LAYOUTS = {str(layout.dtype).removeprefix("torch."): layout for layout in LAYOUTS}


@dataclass(frozen=True)
class ShardChanges:
    """One shard in one gather after the other.

    Attributes:
        name: of the parameter. category: as reports group it. values: in the shard.
        changed_blocks: blocks with a changed exponent, one a gather.
        coded_bytes: that the changes took, one a gather.
    """

    name: str
    category: str
    values: int
    changed_blocks: tuple[int, ...]
    coded_bytes: tuple[int, ...]


@dataclass(frozen=True)
class GatherChanges:
    """One collective's shards.

    Attributes:
        name: of the gather. dtype: ``bfloat16``, ``float16`` or ``float32``.
        block: values of a block. mode: ``block``, ``delta`` or ``auto``.
        shards: at least one, each with as many gathers.

    Raises:
        ValueError: an unknown name, no shard, or numbers that cannot be; the message says where.
    """

    name: str
    dtype: str
    block: int
    mode: str
    shards: tuple[ShardChanges, ...]

    def __post_init__(self) -> None:
        where = f"gather {shorten(self.name)!r}"
        for what, value, known in (
            ("dtype", self.dtype, tuple(_LAYOUTS)),
            ("block", self.block, BLOCKS),
            ("mode", self.mode, MODES),
        ):
            if value not in known:
                raise ValueError(f"{where}: {what} is one of {', '.join(map(str, known))}, not {shorten(str(value))!r}")
        if not self.shards:
            raise ValueError(f"{where} has no shard")
        lengths = {len(series) for shard in self.shards for series in (shard.changed_blocks, shard.coded_bytes)}
        if len(lengths) != 1 or not max(lengths):
            raise ValueError(f"{where}: all shards need as many numbers, one or more a gather; they have {lengths}")
        for shard in self.shards:
            self._check(f"{where}, shard {shorten(shard.name)!r}", shard)

    def _check(self, where: str, shard: ShardChanges) -> None:
        if not 0 <= shard.values <= MOST_VALUES:
            raise ValueError(f"{where} cannot have {shard.values} values")
        blocks = -(-shard.values // self.block)
        if not all(0 <= changed <= blocks for changed in shard.changed_blocks):
            raise ValueError(f"{where}: it has {blocks} blocks, so from 0 to {blocks} can have changed")
        # Raw symbols and a few bytes of framing are the most that a coder writes.
        most = 2 * shard.values + 4096
        if not all(0 <= coded <= most for coded in shard.coded_bytes):
            raise ValueError(f"{where}: its changes take from 0 to {most} bytes")

    def traffic(self) -> GatherTraffic:
        """What the gain model needs of it."""
        shards = []
        for shard in self.shards:
            blocks = max(-(-shard.values // self.block), 1)
            changed = np.array(shard.changed_blocks, dtype=np.float64) / blocks
            coded = np.array(shard.coded_bytes, dtype=np.float64)
            shards.append(ShardTraffic(shard.name, shard.category, shard.values, changed, coded))
        return GatherTraffic(self.name, _LAYOUTS[self.dtype], self.block, self.mode, tuple(shards))  # type: ignore[arg-type]  # checked

    @property
    def payload_bytes(self) -> int:
        """Of all gathers together, about: to tell which rank's payload is fullest."""
        gathers = len(self.shards[0].coded_bytes)
        layout = _LAYOUTS[self.dtype]
        return sum(gathers * layout.rest_bytes(shard.values) + sum(shard.coded_bytes) for shard in self.shards)


@dataclass(frozen=True)
class ChangeTrace:
    """What a run's gathers carried.

    Attributes:
        world: ranks of the run. source: of what model and data it is, for people.
        gathers: each collective of the model, by distinct names.

    Raises:
        ValueError: a world below 2, no gather, or a name twice.
    """

    world: int
    source: str
    gathers: tuple[GatherChanges, ...]

    def __post_init__(self) -> None:
        if self.world < 2:
            raise ValueError(f"a gather has 2 ranks or more, not {self.world}")
        if not self.gathers:
            raise ValueError("a trace needs at least one gather")
        names = [gather.name for gather in self.gathers]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two gathers are named {shorten(repeated[0])!r}")
        for gather in self.gathers:
            shards = [shard.name for shard in gather.shards]
            if len(set(shards)) < len(shards):
                raise ValueError(f"gather {shorten(gather.name)!r} has two shards of one name")

    def traffic(self) -> tuple[GatherTraffic, ...]:
        """What the gain model needs of it."""
        return tuple(gather.traffic() for gather in self.gathers)

    def save(self, path: Path) -> None:
        """Write the file.

        Raises:
            OSError: it cannot be written.
        """
        record = {
            "format": FORMAT,
            "schema_version": SCHEMA_VERSION,
            "world": self.world,
            "source": self.source,
            "gathers": [
                {
                    "name": gather.name,
                    "dtype": gather.dtype,
                    "block": gather.block,
                    "mode": gather.mode,
                    "shards": [vars(shard) for shard in gather.shards],
                }
                for gather in self.gathers
            ],
        }
        path.write_text(json.dumps(record, allow_nan=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> ChangeTrace:
        """Read a file.

        Raises:
            ValueError: unreadable, not JSON, of another version, or not as this module writes it; one
                line that names the file and what is wrong.
        """
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ValueError(f"cannot read the trace {path}: {error.strerror or error}") from None
        except RecursionError:
            raise ValueError(f"{path} is no change-rate trace: it is nested too deeply") from None
        except ValueError as error:
            raise ValueError(f"the trace {path} is cut off or no JSON ({error}); record it again") from None
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise ValueError(f"{path} is no change-rate trace: it does not say format {FORMAT!r}")
        if record.get("schema_version") != SCHEMA_VERSION:
            raise ValueError(
                f"the trace {path} has schema version {shorten(repr(record.get('schema_version')))}, this program reads"
                f" {SCHEMA_VERSION}; update the older of the two, or record it again"
            )
        try:
            return _trace_of(record)
        except ValueError as error:
            raise ValueError(f"the trace {path} is not valid: {error}") from None


def _trace_of(record: Mapping[str, Any]) -> ChangeTrace:
    _require_keys(record, ("format", "schema_version", "world", "source", "gathers"), "the trace")
    gathers = []
    for place, gather in enumerate(_list(record["gathers"], "gathers")):
        where = f"gathers[{place}]"
        _require_keys(gather, ("name", "dtype", "block", "mode", "shards"), where)
        shards = tuple(
            _shard_of(shard, f"{where}.shards[{number}]")
            for number, shard in enumerate(_list(gather["shards"], f"{where}.shards"))
        )
        name, dtype, mode = (_text(gather[key], f"{where}.{key}") for key in ("name", "dtype", "mode"))
        gathers.append(GatherChanges(name, dtype, _whole(gather["block"], f"{where}.block"), mode, shards))
    return ChangeTrace(_whole(record["world"], "world"), _text(record["source"], "source"), tuple(gathers))


def _shard_of(shard: Any, where: str) -> ShardChanges:
    _require_keys(shard, ("name", "category", "values", "changed_blocks", "coded_bytes"), where)
    return ShardChanges(
        name=_text(shard["name"], f"{where}.name"),
        category=_text(shard["category"], f"{where}.category"),
        values=_whole(shard["values"], f"{where}.values"),
        changed_blocks=_wholes(shard["changed_blocks"], f"{where}.changed_blocks"),
        coded_bytes=_wholes(shard["coded_bytes"], f"{where}.coded_bytes"),
    )


def _require_keys(record: Any, keys: Sequence[str], where: str) -> None:
    if not isinstance(record, dict):
        raise ValueError(f"{where} is no object")
    if missing := [key for key in keys if key not in record]:
        raise ValueError(f"{where} lacks {missing[0]!r}")
    if unknown := sorted(set(record) - set(keys)):
        raise ValueError(f"{where} has an unknown key {shorten(unknown[0])!r}")


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{where} is no list")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where} is no text")
    return value


def _whole(value: Any, where: str) -> int:
    # JSON's true is an int in Python.
    if type(value) is not int:
        raise ValueError(f"{where} is no whole number")
    return value


def _wholes(value: Any, where: str) -> tuple[int, ...]:
    return tuple(_whole(each, where) for each in _list(value, where))


class TraceRecorder:
    """Collects the gathers of one plan, to become a part of a trace.

    Only what is coded is seen: record with every segment of the plan selected. Refreshes are left
    out, since they are not the steady state.
    """

    def __init__(self, plan: GatherPlan) -> None:
        """
        Args:
            plan: of the gathers; its unselected segments leave nothing to record.

        Raises:
            ValueError: it selects nothing.
        """
        if not plan.selected:
            raise ValueError(f"plan {plan.name!r} compresses nothing, so there is nothing to record")
        self._plan = plan
        self._changed: dict[str, list[int]] = {segment.name: [] for segment in plan.selected}
        self._coded: dict[str, list[int]] = {segment.name: [] for segment in plan.selected}
        self._gathers = 0

    @property
    def gathers(self) -> int:
        """Recorded so far."""
        return self._gathers

    def add(self, sample: GatherSample) -> None:
        """Record a gather (``GatherStatistics.last``); a refresh is passed over."""
        if sample.kind == "coded":
            self.add_counts({one.name: (one.changed_blocks, one.coded_bytes) for one in sample.segments})

    def add_counts(self, counts: Mapping[str, tuple[int, int]]) -> None:
        """Record (changed blocks, coded bytes) by segment; of one that is missing, nothing changed.

        Raises:
            ValueError: a segment that the plan does not compress.
        """
        if unknown := sorted(set(counts) - set(self._changed)):
            raise ValueError(f"plan {self._plan.name!r} does not compress {unknown[0]!r}")
        self._gathers += 1
        for name in self._changed:
            changed, coded = counts.get(name, (0, 0))
            self._changed[name].append(changed)
            self._coded[name].append(coded)

    def changes(self) -> GatherChanges:
        """What was recorded.

        Raises:
            ValueError: nothing was.
        """
        if not self._gathers:
            raise ValueError(f"no coded gather of plan {self._plan.name!r} was recorded; run two gathers or more")
        plan = self._plan
        shards = tuple(
            ShardChanges(
                segment.name,
                segment.category,
                segment.values,
                tuple(self._changed[segment.name]),
                tuple(self._coded[segment.name]),
            )
            for segment in plan.selected
        )
        dtype = str(plan.dtype).removeprefix("torch.")
        return GatherChanges(plan.name or "gather", dtype, plan.settings.block, plan.settings.mode, shards)


def trace_of(recorders: Sequence[TraceRecorder], group: dist.ProcessGroup | None, source: str) -> ChangeTrace:
    """The trace of all ranks' recorders (collective): of each gather, the rank's with the fullest payload.

    Raises:
        ValueError: a rank's recorder has no gather; raised on all of them.
    """
    import torch.distributed as dist

    try:
        mine: Any = [recorder.changes() for recorder in recorders]
    except ValueError as error:
        # The others wait for this rank; they are told.
        mine = error
    world = dist.get_world_size(group)
    everyone: list[Any] = [None] * world
    dist.all_gather_object(everyone, mine, group=group)
    for rank, theirs in enumerate(everyone):
        if isinstance(theirs, ValueError):
            raise ValueError(f"rank {rank}: {theirs}")
    gathers = tuple(max(ranks, key=lambda changes: changes.payload_bytes) for ranks in zip(*everyone, strict=True))
    return ChangeTrace(world, source, gathers)
