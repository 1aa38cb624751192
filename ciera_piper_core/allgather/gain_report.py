"""A selection for people and for programs: a line a shard with its bytes, times, gain and verdict, and sums."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ciera_piper_core.allgather.gain import VERDICTS
from ciera_piper_core.planner.formatting import percent, seconds
from ciera_piper_core.planner.terminal import table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ciera_piper_core.allgather.gain import GainModel, Selection, ShardGain

HEADERS = (
    "gather", "shard", "category", "plain", "changed", "saved", "Comm saved", "encode", "decode", "gain", "cache",
    "verdict",
)  # fmt: skip
RIGHT = tuple(range(3, 11))


def mib(count: float) -> str:
    """Bytes in MiB, or in KiB or B where they are few: ``1.50 MiB``."""
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(count) >= factor:
            return f"{count / factor:,.2f} {unit}"
    return f"{count:.0f} B"


def signed_seconds(value: float) -> str:
    """Seconds with their sign where they are below 0: ``-3.10 us``."""
    return f"-{seconds(-value)}" if value < 0 else seconds(value)


def gain_text(selection: Selection, model: GainModel, source: str, shown: int | None = None) -> str:
    """Everything as text.

    Args:
        source: of the trace, for people.
        shown: lines of the table; the shards with the largest gain. None for all.
    """
    shards = sorted(selection.shards, key=lambda shard: -shard.gain_s)
    listed = shards if shown is None else shards[:shown]
    blocks = ["\n".join(_heading(selection, model, source))]
    blocks.append(table([_row(shard) for shard in listed], HEADERS, right=RIGHT))
    if len(listed) < len(shards):
        blocks[-1] += f"\n({len(shards) - len(listed)} more; --top 0 shows all)"
    blocks.append(_categories(shards))
    blocks.append("\n".join(_verdicts(shards)))
    blocks.append("\n".join(_sums(selection)))
    if selection.notes:
        blocks.append("\n".join(f"note: {note}" for note in selection.notes))
    return "\n\n".join(blocks)


def gain_record(selection: Selection, model: GainModel, source: str) -> dict[str, Any]:
    """Everything as plain values; times in microseconds of one gather."""
    return {
        "trace": source,
        "ranks": model.comm.ranks,
        "nodes": model.comm.nodes,
        "comm_source": model.comm.source,
        "kernel_source": model.kernels.source,
        "pipelined": model.pipelined,
        "margin": model.margin,
        "budget_bytes": selection.budget_bytes,
        "cache_bytes": selection.cache_bytes,
        "gathers": [
            {
                "gather": gather.name,
                "plain_us": gather.plain_s * 1e6,
                "predicted_us": gather.predicted_s * 1e6,
                "gain_us": gather.gain_s * 1e6,
                "plain_bytes": gather.plain_bytes,
                "sent_bytes": round(gather.sent_bytes),
                "selected": sum(shard.verdict == "compress" for shard in gather.shards),
            }
            for gather in selection.gathers
        ],
        "shards": [_shard_record(shard) for shard in selection.shards],
        "notes": list(selection.notes),
    }


def _shard_record(shard: ShardGain) -> dict[str, Any]:
    return {
        "gather": shard.gather,
        "shard": shard.name,
        "category": shard.category,
        "values": shard.values,
        "plain_bytes": shard.plain_bytes,
        "sent_bytes": round(shard.sent_bytes),
        "saved_bytes": round(shard.saved_bytes),
        "changed_blocks": shard.changed,
        "comm_saved_us": shard.comm_saved_s * 1e6,
        "encode_us": shard.encode_s * 1e6,
        "decode_us": shard.decode_s * 1e6,
        "gain_us": shard.gain_s * 1e6,
        "cache_bytes": shard.cache_bytes,
        "verdict": shard.verdict,
        "reason": VERDICTS[shard.verdict],
    }


def _heading(selection: Selection, model: GainModel, source: str) -> list[str]:
    hidden = "hidden behind other work (pipelined)" if model.pipelined else "on the critical path"
    budget = "none" if selection.budget_bytes is None else mib(selection.budget_bytes)
    return [
        f"trace: {source}",
        f"Comm: {model.comm.source}",
        f"kernels: {model.kernels.source}; encoding is {hidden}",
        f"a gather is compressed if it gains more than {percent(model.margin)} of its time; cache budget: {budget}",
    ]


def _row(shard: ShardGain) -> tuple[object, ...]:
    return (
        shard.gather,
        shard.name,
        shard.category,
        mib(shard.plain_bytes),
        percent(shard.changed),
        mib(shard.saved_bytes),
        signed_seconds(shard.comm_saved_s),
        seconds(shard.encode_s),
        seconds(shard.decode_s),
        signed_seconds(shard.gain_s),
        mib(shard.cache_bytes),
        shard.verdict,
    )


def _categories(shards: Sequence[ShardGain]) -> str:
    rows = []
    for category in sorted({shard.category for shard in shards}):
        mine = [shard for shard in shards if shard.category == category]
        chosen = [shard for shard in mine if shard.verdict == "compress"]
        changed = _mean((shard.changed, shard.values) for shard in mine)
        rows.append(
            (
                category,
                len(mine),
                len(chosen),
                mib(sum(shard.plain_bytes for shard in mine)),
                percent(changed),
                mib(sum(shard.saved_bytes for shard in chosen)),
                signed_seconds(sum(shard.gain_s for shard in chosen)),
                mib(sum(shard.cache_bytes for shard in chosen)),
            )
        )
    headers = ("category", "shards", "selected", "plain", "changed", "saved", "gain", "cache")
    return table(rows, headers, right=tuple(range(1, 8)))


def _verdicts(shards: Sequence[ShardGain]) -> list[str]:
    """Each verdict that occurs, and what it means."""
    lines = []
    for verdict, meaning in VERDICTS.items():
        if count := sum(shard.verdict == verdict for shard in shards):
            lines.append(f"{verdict} ({count}): {meaning}")
    return lines


def _sums(selection: Selection) -> list[str]:
    plain = sum(gather.plain_s for gather in selection.gathers)
    predicted = sum(gather.predicted_s for gather in selection.gathers)
    plain_bytes = sum(gather.plain_bytes for gather in selection.gathers)
    sent = sum(gather.sent_bytes for gather in selection.gathers)
    if not selection.selected:
        return [f"Nothing is worth compressing: all gathers stay plain, {seconds(plain)} in all."]
    return [
        f"all gathers once: {seconds(plain)} plain, {seconds(predicted)} with the selection ({plain / predicted:.2f}x);"
        f" {mib(plain_bytes)} become {mib(sent)} a rank",
        f"caches: {mib(selection.cache_bytes)} a rank",
    ]


def _mean(weighted: Iterable[tuple[float, float]]) -> float:
    pairs = list(weighted)
    weight = sum(each for _, each in pairs)
    return sum(value * each for value, each in pairs) / weight if weight else 0.0
