"""Benefit-driven selection: which shards are worth compressing, given what their gathers carry and what was measured.

For a gather of which shard i alone is compressed, the gain is the paper's::

    g_i = Comm(S) - ( Comm(S_sm + S_bm + q_i r S_e) + T_hash + T_cmp + T_decmp )

Several parameters often share one gather. What the whole gather saves is then shared out among its
compressed shards by the bytes that each saves, and each pays for its own kernels. A gather in which
something is compressed also pays for its header, and for copying the shards that are not; where
that leaves less than a margin, nothing of it is compressed, and the plain gather runs.

Shards with a gain are taken in the order of gain over cache bytes, until the budget is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np

from ciera_piper_core.allgather.capacity import CapacityPredictor
from ciera_piper_core.exponents.payload import HEADER_BYTES, RECORD_BYTES, aligned

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from numpy.typing import NDArray

    from ciera_piper_core.allgather.comm import Comm
    from ciera_piper_core.allgather.kernel_times import KernelTimes
    from ciera_piper_core.allgather.traffic import GatherTraffic, ShardTraffic

    Array = NDArray[np.float64]
    Mask = NDArray[np.bool_]

DEFAULT_MARGIN = 0.10
"""Share of the plain gather's time that a gather must gain to be compressed: predictions are not better than that."""

WARM_GATHERS = 640
"""After so many gathers, what the predictor of room remembers of its first ones has faded."""

Verdict = Literal["compress", "empty", "no bytes saved", "slower", "gather too slow", "over budget"]
VERDICTS: dict[Verdict, str] = {
    "compress": "its gather is faster with it compressed",
    "empty": "it has no values on this rank",
    "no bytes saved": "what it would send is not smaller than it is",
    "slower": "its kernels take longer than its bytes save",
    "gather too slow": "its gather as a whole gains less than the margin",
    "over budget": "other shards gain more for each byte of cache",
}


@dataclass(frozen=True)
class GainModel:
    """What a prediction rests on.

    Attributes:
        comm: seconds of the plain gather. kernels: seconds of a rank's kernels.
        pipelined: encoding is hidden behind earlier gathers or computing, on cores that are free for it.
        margin: share of the plain gather's time that must be gained.

    Raises:
        ValueError: a margin below 0 or not below 1.
    """

    comm: Comm
    kernels: KernelTimes
    pipelined: bool = False
    margin: float = DEFAULT_MARGIN

    def __post_init__(self) -> None:
        if not 0 <= self.margin < 1:
            raise ValueError(f"the margin is a share from 0 to below 1, not {self.margin}")

    @property
    def world(self) -> int:
        """Ranks of the gather."""
        return self.comm.ranks


@dataclass(frozen=True)
class ShardGain:
    """One shard's part in a prediction, means over the gathers seen; all times in seconds of one gather.

    Attributes:
        gather, name, category, values: which shard.
        plain_bytes: S. sent_bytes: that it puts into a compressed payload.
        changed: share of its blocks that changed.
        comm_saved_s: its part of what the gather's smaller payload saves.
        encode_s: on the critical path (0 if pipelined). decode_s: of all remote shards, and of copying its own.
        cache_bytes: that a rank keeps for it.
        verdict: see ``VERDICTS``.
    """

    gather: str
    name: str
    category: str
    values: int
    plain_bytes: int
    sent_bytes: float
    changed: float
    comm_saved_s: float
    encode_s: float
    decode_s: float
    cache_bytes: int
    verdict: Verdict

    @property
    def gain_s(self) -> float:
        """Saved less spent, if it is compressed."""
        return self.comm_saved_s - self.encode_s - self.decode_s

    @property
    def saved_bytes(self) -> float:
        """Of its part of the payload, if it is compressed."""
        return self.plain_bytes - self.sent_bytes


@dataclass(frozen=True)
class GatherGain:
    """One gather's prediction, means over the gathers seen, in seconds and bytes of one rank.

    Attributes:
        name: of the gather. shards: as many as it carries, in their order.
        plain_s: of the plain gather. predicted_s: with the selection; the plain time if nothing is selected.
        plain_bytes: of its payload. sent_bytes: with the selection.
    """

    name: str
    shards: tuple[ShardGain, ...]
    plain_s: float
    predicted_s: float
    plain_bytes: int
    sent_bytes: float

    @property
    def gain_s(self) -> float:
        """By which the selection makes it faster."""
        return self.plain_s - self.predicted_s


@dataclass(frozen=True)
class Selection:
    """What to compress.

    Attributes:
        gathers: in the order asked for.
        budget_bytes: that caches may take; None for no limit.
        notes: what of the prediction is extrapolated or unsure, for people.
    """

    gathers: tuple[GatherGain, ...]
    budget_bytes: int | None
    notes: tuple[str, ...]

    @property
    def shards(self) -> tuple[ShardGain, ...]:
        """Of all gathers."""
        return tuple(shard for gather in self.gathers for shard in gather.shards)

    @property
    def selected(self) -> frozenset[tuple[str, str]]:
        """(gather, shard) names of what to compress."""
        return frozenset((shard.gather, shard.name) for shard in self.shards if shard.verdict == "compress")

    @property
    def cache_bytes(self) -> int:
        """That a rank keeps for the selection."""
        return sum(shard.cache_bytes for shard in self.shards if shard.verdict == "compress")


def select_shards(gathers: Sequence[GatherTraffic], model: GainModel, budget_bytes: int | None = None) -> Selection:
    """Decide for every shard whether to compress it, and say why.

    Args:
        gathers: what they carry; names of gathers must differ, and of shards within one.
        budget_bytes: most cache bytes of a rank; None for no limit.

    Raises:
        ValueError: a budget below 0, or a name twice.
    """
    if budget_bytes is not None and budget_bytes < 0:
        raise ValueError(f"the cache budget must be 0 or more bytes, not {budget_bytes}")
    _require_distinct([gather.name for gather in gathers], "gather")
    costs = [_Costs(gather, model) for gather in gathers]
    judged = [_judge_gather(each) for each in costs]
    if budget_bytes is not None:
        _fit_budget(costs, judged, budget_bytes)
    results = tuple(each.result(mask, verdicts) for each, (mask, verdicts) in zip(costs, judged, strict=True))
    return Selection(results, budget_bytes, _notes(gathers, costs, judged, model))


def predict(gather: GatherTraffic, model: GainModel, selected: Container[str]) -> GatherGain:
    """What a gather takes with exactly these shards compressed, worth it or not."""
    costs = _Costs(gather, model)
    mask = np.array([shard.name in selected and shard.values > 0 for shard in gather.shards])
    verdicts: list[Verdict] = ["compress" if chosen else "slower" for chosen in mask]
    _mark(verdicts, ~costs.some, "empty")
    return costs.result(mask, verdicts)


def _require_distinct(names: Sequence[str], what: str) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if repeated:
        raise ValueError(f"there are two of {what} {repeated[0]!r}; give each its own name")


class _Costs:
    """A gather's bytes and seconds as arrays over its shards, and what any subset of them would give."""

    def __init__(self, gather: GatherTraffic, model: GainModel) -> None:
        _require_distinct([shard.name for shard in gather.shards], f"gather {gather.name!r}'s shard")
        self.gather, self.model = gather, model
        shards = gather.shards
        self.plain = np.array([gather.plain_bytes(shard) for shard in shards], dtype=np.float64)
        self.fixed = np.array([gather.fixed_bytes(shard) for shard in shards], dtype=np.float64)
        # [shards, gathers]
        self.coded = np.stack([shard.coded_bytes for shard in shards])
        self.some = self.plain > 0
        # The room that all shards together get, and what overflows it; a subset has its share of both.
        self.variable = self.coded.sum(axis=0)
        sizes = tuple(int(size) for size in np.ceil(self.variable))
        # Raw symbols are the most that a coder writes, but for some framing.
        most = sum(aligned(gather.layout.exponent_bytes(shard.values)) for shard in shards)
        self.room = np.array(_rooms(sizes, most), dtype=np.float64)
        self.room_share = self.coded.sum(axis=1) / max(float(self.coded.sum()), 1.0)
        self.sent = self.fixed + RECORD_BYTES + self.room.mean() * self.room_share
        self.saved = np.where(self.some, self.plain - self.sent, 0.0)
        seconds = [_kernel_seconds(gather, shard, model) for shard in shards]
        self.encode = np.array([each[0] for each in seconds])
        self.decode = np.array([each[1] for each in seconds])
        self.cache = [gather.cache_bytes(shard, model.world) for shard in shards]
        self.plain_s = float(model.comm.seconds_at(self.plain.sum())) if self.some.any() else 0.0

    def payload(self, mask: Mask) -> Array:
        """Bytes of a rank's payload in each gather, if the shards of ``mask`` are compressed."""
        if not mask.any():
            return np.full(self.gather.gathers, self.plain.sum())
        beside = sum(aligned(int(size)) for size in self.plain[~mask])
        fixed = HEADER_BYTES + RECORD_BYTES * int(mask.sum()) + float(self.fixed[mask].sum()) + beside
        return np.asarray(fixed + self.room * self.room_share[mask].sum())

    def remainder(self, mask: Mask) -> Array:
        """Bytes that overflow, of the gathers in which any do."""
        over = (self.variable - self.room) * self.room_share[mask].sum()
        return np.asarray(over[over > 0])

    def comm_saved_s(self, mask: Mask) -> float:
        """What the smaller payload saves, mean over the gathers."""
        if not mask.any():
            return 0.0
        comm = self.model.comm
        seconds = comm.seconds_at(self.payload(mask)).sum() + comm.seconds_at(self.remainder(mask)).sum()
        return self.plain_s - float(seconds) / self.gather.gathers

    def gains(self, mask: Mask) -> tuple[Array, Array]:
        """Each shard's part of the saved seconds, and its gain, if ``mask`` is compressed; zeros for the others."""
        saved = np.where(mask, np.maximum(self.saved, 0.0), 0.0)
        parts = self.comm_saved_s(mask) * saved / saved.sum() if saved.sum() > 0 else saved
        return parts, np.where(mask, parts - self.encode - self.decode, 0.0)

    def overhead_s(self, mask: Mask) -> float:
        """What a compressed gather costs beside its compressed shards: framing, copies of the others in and out."""
        if not mask.any():
            return 0.0
        kernels = self.model.kernels
        beside = self.plain[~mask & self.some]
        copied = float(kernels.copy.seconds_at(beside).sum()) if beside.size else 0.0
        return kernels.beyond_seconds(float(self.plain.sum())) + copied * (1 + self.model.world)

    def gain_s(self, mask: Mask) -> float:
        """By which the whole gather is faster."""
        return float(self.gains(mask)[1].sum()) - self.overhead_s(mask)

    def is_enough(self, mask: Mask) -> bool:
        """Whether the whole gather gains the margin."""
        return self.gain_s(mask) > self.model.margin * self.plain_s

    def result(self, mask: Mask, verdicts: list[Verdict]) -> GatherGain:
        """The prediction for ``mask``; shards that are not selected show what they would do in the gather's best."""
        hypothetical = mask if mask.any() else self.saved > 0
        parts, _ = self.gains(hypothetical)
        alone = ~hypothetical & (self.saved > 0)
        for place in np.flatnonzero(alone):
            parts[place] = self.gains(hypothetical | (np.arange(len(parts)) == place))[0][place]
        shards = tuple(
            ShardGain(
                gather=self.gather.name,
                name=shard.name,
                category=shard.category,
                values=shard.values,
                plain_bytes=int(self.plain[place]),
                sent_bytes=float(self.sent[place]) if self.some[place] else 0.0,
                changed=float(shard.changed.mean()),
                comm_saved_s=float(parts[place]),
                encode_s=float(self.encode[place]),
                decode_s=float(self.decode[place]),
                cache_bytes=self.cache[place],
                verdict=verdicts[place],
            )
            for place, shard in enumerate(self.gather.shards)
        )
        gain = self.gain_s(mask) if mask.any() else 0.0
        return GatherGain(
            name=self.gather.name,
            shards=shards,
            plain_s=self.plain_s,
            predicted_s=self.plain_s - gain,
            plain_bytes=int(self.plain.sum()),
            sent_bytes=float(self.payload(mask).mean()),
        )


@lru_cache(maxsize=1024)
def _rooms(sizes: tuple[int, ...], most_bytes: int) -> tuple[int, ...]:
    """The room that each gather's variable part gets, once its history is that of the same gathers over and over."""
    predictor = CapacityPredictor(most_bytes)
    count = len(sizes)
    warm = -(-WARM_GATHERS // count) * count
    rooms = []
    for step in range(warm + count):
        rooms.append(predictor.capacity())
        # A rank that lost a gather must foretell the next one too, so nobody uses the latest.
        if step:
            predictor.record(sizes[(step - 1) % count])
    return tuple(rooms[warm:])


def _kernel_seconds(gather: GatherTraffic, shard: ShardTraffic, model: GainModel) -> tuple[float, float]:
    """Seconds of encoding on the critical path, and of decoding with the copy of one's own shard."""
    size = gather.plain_bytes(shard)
    if not size:
        return 0.0, 0.0
    exponents = gather.layout.exponent_bytes(shard.values)
    ratio = shard.coded_bytes / np.maximum(shard.changed * exponents, 1.0)
    encode = float(model.kernels.encode.seconds(size, shard.changed, ratio).mean())
    decode = float(model.kernels.decode.seconds(size, shard.changed, ratio).mean())
    copy = float(model.kernels.copy.seconds_at(size))
    return 0.0 if model.pipelined else encode, (model.world - 1) * decode + copy


def _judge_gather(costs: _Costs) -> tuple[Mask, list[Verdict]]:
    """The subset of a gather's shards to compress without a budget, and every shard's verdict."""
    verdicts: list[Verdict] = ["compress" if some else "empty" for some in costs.some]
    mask = costs.saved > 0
    _mark(verdicts, costs.some & ~mask, "no bytes saved")
    everything = mask.copy()
    # Each removal shrinks what is shared out, so it is looked at again until all that are left gain.
    while mask.any():
        losing = mask & (costs.gains(mask)[1] <= 0)
        if not losing.any():
            break
        mask &= ~losing
    # Shards that are left out are copied; all together may then be the better choice.
    if costs.gain_s(everything) > max(costs.gain_s(mask), 0.0):
        mask = everything
    _mark(verdicts, everything & ~mask, "slower")
    if mask.any() and not costs.is_enough(mask):
        _mark(verdicts, mask, "gather too slow")
        mask = np.zeros_like(mask)
    return mask, verdicts


def _fit_budget(costs: list[_Costs], judged: list[tuple[Mask, list[Verdict]]], budget_bytes: int) -> None:
    """Keep the selected shards with the largest gain a byte of cache; gathers that no longer gain enough end plain."""
    ranked = []
    for which, (each, (mask, _)) in enumerate(zip(costs, judged, strict=True)):
        gains = each.gains(mask)[1]
        ranked += [(-gains[place] / each.cache[place], which, int(place)) for place in np.flatnonzero(mask)]
    kept = [np.zeros_like(mask) for mask, _ in judged]
    left = budget_bytes
    for _, which, place in sorted(ranked):
        if costs[which].cache[place] <= left:
            left -= costs[which].cache[place]
            kept[which][place] = True
    for which, (each, (mask, verdicts)) in enumerate(zip(costs, judged, strict=True)):
        _mark(verdicts, mask & ~kept[which], "over budget")
        if kept[which].any() and (mask != kept[which]).any() and not each.is_enough(kept[which]):
            _mark(verdicts, kept[which], "gather too slow")
            kept[which] = np.zeros_like(mask)
        judged[which] = kept[which], verdicts


def _mark(verdicts: list[Verdict], mask: Mask, verdict: Verdict) -> None:
    for place in np.flatnonzero(mask):
        verdicts[place] = verdict


def _notes(
    gathers: Sequence[GatherTraffic],
    costs: Sequence[_Costs],
    judged: Sequence[tuple[Mask, list[Verdict]]],
    model: GainModel,
) -> tuple[str, ...]:
    """What a reader must know before trusting the numbers."""
    payloads = [size for each in costs if each.some.any() for size in (each.plain.sum(), *each.payload(each.saved > 0))]
    segments = [size for each in costs for size in each.plain[each.some]]
    notes = []
    if payloads:
        notes += [model.comm.note(np.array(payloads)), model.kernels.note(np.array(segments))]
    if payloads and model.kernels.beyond is None:
        notes.append("what a compressed gather takes beyond kernels and collective was not measured, and counts as 0")
    if model.comm.unsettled:
        notes.append(f"{model.comm.unsettled} of {len(model.comm.curve.sizes)} points of Comm had not settled")
    return tuple(note for note in notes if note)
