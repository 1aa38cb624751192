"""Reads the platform profile that ``bench characterize`` writes, and makes a platform of it.

``docs/platform-profile.md`` describes the file; its JSON schema is the contract, so nothing of the
harness is imported. A profile that lacks what a plan needs is refused with the command that measures it.

On accelerators, a device is one of them. On a CPU node, a device is one of as many ranks as were
measured together on one node; they share its cores, bandwidth and memory evenly.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ciera_piper_core.platforms.collective_curves import (
    LIBRARY_ALGORITHMS,
    MESSAGES,
    CollectiveCurve,
    CollectiveCurves,
)
from ciera_piper_core.platforms.measured import MeasuredRates
from ciera_piper_core.platforms.platform import ELEMENT_BYTES, Messages, Platform, Term
from ciera_piper_core.platforms.profile_tables import attention_curves, expert_curves, matmul_curve
from ciera_piper_core.platforms.roofline import REACHED, Roofline
from ciera_piper_core.platforms.tables import SecondsCurve

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

SCHEMA_VERSION = 1
DTYPE_PREFERENCE = ("bfloat16", "float16", "float32")
"""The first of these that has matrix products, attention and experts is what a plan computes in."""

SUITE_PREFERENCE = ("alltoall", "collectives", "allgather_latency")
GIB = 1 << 30
OVERHEAD_BYTES = {"cuda": 2_000_000_000, "cpu": 0}
"""By kind of device, memory that driver contexts and libraries take; no suite measures it."""

SECTIONS = ("identity", "collectives", "matmul_peak", "memory", "attention", "expert_gemm")
CHARACTERIZE = "`bench characterize --preset standard`"


@dataclass(frozen=True)
class _Source:
    """The file, for messages; and what its tables are of.

    Attributes:
        path: of the file. data: its content. device: ``cuda`` or ``cpu``. dtype: of products.
        threads: of the CPU that the tables were measured with; None on an accelerator.
    """

    path: Path
    data: Mapping[str, Any]
    device: str
    dtype: str
    threads: int | None

    def lacks(self, what: str, suite: str) -> ValueError:
        """The error for a table that a plan needs."""
        return ValueError(
            f"profile {self.path} has no {what}; run `bench run {suite}` to see why,"
            f" then {CHARACTERIZE} again to make a whole profile"
        )


def load(path: Path, dtype: str | None = None) -> Platform:
    """The machine that a profile describes, in ``dtype``, or the first of ``DTYPE_PREFERENCE`` that it has.

    Raises:
        ValueError: unreadable, cut off, of another version, or without a table that a plan needs; one
            line that names the file, what is missing, and what to run.
    """
    data = read(path)
    try:
        return _platform(path, data, dtype)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        what = f"lacks {error}" if isinstance(error, KeyError) else f"is not as its schema says ({error})"
        raise ValueError(f"profile {path} {what}; run {CHARACTERIZE} again") from error
    except ValueError as error:
        if str(path) in str(error):
            raise
        raise ValueError(f"profile {path} is not as its schema says ({error}); run {CHARACTERIZE} again") from error


def read(path: Path, sections: Sequence[str] = SECTIONS) -> dict[str, Any]:
    """The file's content, of the version that this module knows, with these sections.

    Raises:
        ValueError: unreadable, cut off, of another version, or without one of the sections.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read profile {path}: {error.strerror or error}") from None
    except RecursionError:
        raise ValueError(f"{path} is no platform profile: it is nested too deeply; run {CHARACTERIZE}") from None
    except ValueError as error:
        raise ValueError(f"profile {path} is cut off or no JSON ({error}); run {CHARACTERIZE} again") from None
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version is None:
        raise ValueError(f"{path} is no platform profile: it has no schema_version; run {CHARACTERIZE}")
    if version != SCHEMA_VERSION:
        raise ValueError(
            f"profile {path} has schema version {version!r}, this program reads {SCHEMA_VERSION};"
            f" run {CHARACTERIZE} again with this version"
        )
    if missing := [section for section in sections if section not in data]:
        raise ValueError(f"profile {path} lacks {missing[0]!r}; run {CHARACTERIZE} again")
    return dict(data)


def _platform(path: Path, data: Mapping[str, Any], dtype: str | None) -> Platform:
    source = _source(path, data, dtype)
    identity = data["identity"]
    curves = _collectives(source)
    on_node = max((curve.ranks for curve in curves if curve.nodes == 1), default=1)
    gpus = identity.get("gpus") or []
    accelerated = source.device == "cuda"
    per_node = sum(int(gpu["count"]) for gpu in gpus) if accelerated and gpus else on_node
    sharing = 1 if accelerated else per_node
    nodes = max((curve.nodes for curve in curves), default=1)
    if per_node > 1 or nodes > 1 or not accelerated:
        _require_exchanges(source, curves)
    peaks = {peak["dtype"]: float(peak["best_tflop_s"]) * 1e12 / sharing for peak in _peaks(source)}
    bandwidth = max(float(memory["best_gb_s"]) for memory in _memories(source)) * 1e9 / sharing
    memory_bytes, memory_text = _memory_bytes(source, sharing)
    roofline = Roofline(peaks[source.dtype], bandwidth, REACHED, ELEMENT_BYTES[source.dtype])
    attention = attention_curves(_rows(source, data["attention"]), source.lacks)
    experts = expert_curves(_rows(source, data["expert_gemm"]["rows"]), source.lacks)
    rates = MeasuredRates(roofline, matmul_curve(_best_peak(source)), attention, experts, float(sharing))
    terms = _terms(source, rates, curves, sharing, memory_text)
    links = CollectiveCurves(curves)
    intra = links.link("all_to_all", crosses=False)
    inter = links.link("all_to_all", crosses=True)
    return Platform(
        name=str(data.get("name") or path.name),
        device=_device_name(source, sharing),
        gpus_per_node=per_node,
        # A network that was measured is taken to go on likewise; without one, a plan stays inside the node.
        max_gpus=per_node * (_MOST_NODES if inter else 1),
        memory_bytes=memory_bytes,
        overhead_bytes=OVERHEAD_BYTES[source.device],
        memory_bandwidth_bytes_s=bandwidth,
        peak_flops=peaks,
        peak_source=str(terms["peak"]),
        intra_node_bytes_s=intra.bytes_s if intra else bandwidth,
        nics_per_node=1,
        nic_bytes_s=inter.bytes_s if inter else 0.0,
        topology="as measured" if inter else "single node",
        single_hop_nodes=nodes,
        group_nodes=_MOST_NODES if inter else 1,
        message_seconds=Messages(intra.message_seconds if intra else 0.0, inter.message_seconds if inter else 0.0),
        rates=rates,
        terms=terms,
        dtype=source.dtype,
        collectives=links,
    )


_MOST_NODES = 1 << 16
"""A profile does not know how many nodes there are."""


def _source(path: Path, data: Mapping[str, Any], wanted: str | None) -> _Source:
    """What device, dtype and threads the tables are of: accelerators before CPUs, bfloat16 before others."""
    peaks = data["matmul_peak"]
    unknown = _Source(path, data, "", "", None)
    if not peaks:
        raise unknown.lacks("rows of matmul_peak", "matmul_peak")
    device = "cuda" if any(peak["device"] == "cuda" for peak in peaks) else "cpu"
    if not data["attention"]:
        raise unknown.lacks("rows of attention", "attention")
    if not data["expert_gemm"]["rows"]:
        raise unknown.lacks("rows of expert_gemm", "expert_gemm")
    if not data["memory"]:
        raise unknown.lacks("rows of memory", "memory")
    tables = [
        {peak["dtype"] for peak in peaks if peak["device"] == device},
        *({row["params"]["dtype"] for row in rows} for rows in (data["attention"], data["expert_gemm"]["rows"])),
    ]
    choice = (wanted,) if wanted else DTYPE_PREFERENCE
    for dtype in choice:
        if all(dtype in table for table in tables):
            threads = max((peak["threads"] or 0 for peak in peaks if peak["device"] == device), default=0)
            return _Source(path, data, device, dtype, threads or None)
    raise ValueError(
        f"profile {path} has no {' or '.join(choice)} in all of matmul_peak, attention and expert_gemm;"
        f" run `bench characterize --preset standard --set dtype={choice[0]}`"
    )


def _rows(source: _Source, rows: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Rows of the source's device and dtype, with the most threads."""
    fits = [
        row
        for row in rows
        if row["params"]["dtype"] == source.dtype
        and row["params"].get("device", source.device) == source.device
        and _positive(row["values"].get("throughput"))
    ]
    most = max((int(row["params"].get("threads", 0)) for row in fits), default=0)
    return [row for row in fits if int(row["params"].get("threads", 0)) == most]


def _peaks(source: _Source) -> list[Mapping[str, Any]]:
    """The peaks of the source's device with its threads, by dtype."""
    return [
        peak
        for peak in source.data["matmul_peak"]
        if peak["device"] == source.device and (peak["threads"] or None) == source.threads
    ]


def _best_peak(source: _Source) -> Mapping[str, Any]:
    peaks = [peak for peak in _peaks(source) if peak["dtype"] == source.dtype]
    if not peaks:
        raise source.lacks(f"rows of matmul_peak in {source.dtype} with {source.threads} threads", "matmul_peak")
    return peaks[0]


def _memories(source: _Source) -> list[Mapping[str, Any]]:
    fits = [memory for memory in source.data["memory"] if memory["device"] == source.device]
    if not fits:
        raise source.lacks(f"rows of memory on {source.device}", "memory")
    return fits


def _memory_bytes(source: _Source, sharing: int) -> tuple[int, str]:
    """Bytes of a device, and where they are from."""
    identity = source.data["identity"]
    if source.device == "cuda":
        sizes = [gpu.get("memory_gib") for gpu in identity.get("gpus") or []]
        if not sizes or not all(_positive(size) for size in sizes):
            raise ValueError(
                f"profile {source.path} does not say how much memory its accelerators have;"
                f" see `bench doctor`, then run {CHARACTERIZE} again"
            )
        return int(min(sizes) * GIB), f"{min(sizes)} GiB of the accelerator"
    gib = identity.get("memory_gib")
    if not _positive(gib):
        raise ValueError(f"profile {source.path} does not say how much memory the node has; run {CHARACTERIZE} again")
    return int(gib * GIB) // sharing, f"{gib} GiB of the node, over {sharing} rank(s)"


def _collectives(source: _Source) -> tuple[CollectiveCurve, ...]:
    """Curves of even traffic on the source's device, the preferred suites and dtypes first, labs last."""
    groups: defaultdict[tuple[Any, ...], list[tuple[float, float]]] = defaultdict(list)
    settled: defaultdict[tuple[Any, ...], list[bool]] = defaultdict(list)
    for curve in source.data["collectives"]:
        op, device = curve["op"], curve["device"] or source.device
        even = curve["traffic"] in ("", "uniform")
        if op not in (*MESSAGES, "send_recv") or device != source.device or not even or curve["ranks"] < 2:
            continue
        algorithm = curve["algorithm"] or LIBRARY_ALGORITHMS[0]
        key = (op, algorithm, curve["ranks"], curve["nodes"], curve["suite"], curve["dtype"], curve["scope"])
        groups[key] += [(float(point["bytes"]), float(point["latency_us"]) * 1e-6) for point in curve["points"]]
        settled[key] += [bool(point["settled"]) for point in curve["points"]]

    def preference(key: tuple[Any, ...]) -> tuple[Any, ...]:
        *_, suite, dtype, scope = key
        order = SUITE_PREFERENCE.index(suite) if suite in SUITE_PREFERENCE else len(SUITE_PREFERENCE)
        return scope == "lab", order, dtype != source.dtype, key

    return tuple(
        CollectiveCurve(
            op=key[0],
            algorithm=key[1],
            ranks=int(key[2]),
            nodes=int(key[3]),
            seconds=SecondsCurve.from_points(groups[key]),
            source=f"{key[4]}, {key[5]}, {key[2]} ranks on {key[3]} node(s), scope {key[6]}{_settling(settled[key])}",
            emulated=key[6] == "lab",
            figures=len(settled[key]),
            unsettled=settled[key].count(False),
        )
        for key in sorted(groups, key=preference)
    )


def _settling(settled: list[bool]) -> str:
    return "" if all(settled) else f", {settled.count(False)} of {len(settled)} points not settled"


def _require_exchanges(source: _Source, curves: tuple[CollectiveCurve, ...]) -> None:
    if not any(curve.op == "all_to_all" and curve.algorithm in LIBRARY_ALGORITHMS for curve in curves):
        raise source.lacks("all_to_all among its collectives", "alltoall")


def _device_name(source: _Source, sharing: int) -> str:
    identity = source.data["identity"]
    if source.device == "cuda":
        models = sorted({str(gpu["model"]) for gpu in identity.get("gpus") or []})
        return ", ".join(models) or "an accelerator"
    model = (identity.get("cpu") or {}).get("model") or "a CPU node"
    return f"1/{sharing} of {model} with {source.threads} thread(s)"


def _terms(
    source: _Source, rates: MeasuredRates, curves: tuple[CollectiveCurve, ...], sharing: int, memory_text: str
) -> dict[str, Term]:
    """How each quantity is known."""
    share = f"; each of {sharing} ranks of a node gets 1/{sharing} (assumed)" if sharing > 1 else ""
    peak, links = _best_peak(source), CollectiveCurves(curves)
    shape = " x ".join(str(peak["best_params"].get(edge, "?")) for edge in ("m", "n", "k"))
    terms = {
        "peak": Term("measured", f"largest {source.dtype} product, {shape}: {peak['best_tflop_s']:.4g} TFLOP/s{share}"),
        "memory_bandwidth": Term("measured", f"fastest pass over memory{share}"),
        "memory": Term("measured", f"{memory_text} (fingerprint of the machine)"),
        "overhead": Term("assumed", f"{OVERHEAD_BYTES[source.device] / 1e9:g} GB for contexts and libraries"),
        "matmul": Term("measured", f"matmul_peak by operations, median over shapes{share}"),
        "experts": Term(
            "measured", f"expert_gemm, even tokens, the faster method: {_named(rates.expert_curves)}{share}"
        ),
        "attention": Term("measured", f"whole blocks: {_named(rates.attention_curves)}{share}"),
        "congestion": Term("assumed", "none beyond what the measured exchanges have"),
        "topology": Term("assumed", "more nodes reach each other as those measured do"),
        "messages": Term("measured", "least latency of the largest group over its messages"),
    }
    terms["experts_backward"] = _backward(all(curve.backward for curve in rates.expert_curves), share)
    terms["attention_backward"] = _backward(all(curve.backward for curve in rates.attention_curves), share)
    for name, settled in _settled_figures(source).items():
        if terms[name].status == "measured":
            terms[name] = replace(terms[name], figures=len(settled), unsettled=settled.count(False))
    for name, crosses in (("intra_node", False), ("inter_node", True)):
        curve = links.representative("all_to_all", crosses=crosses)
        if curve is not None:
            where = " in an emulated network" if curve.emulated else ""
            on = [each for each in curves if (each.nodes > 1) == crosses]
            terms[name] = Term(
                "measured",
                f"{curve.source}{where}; other ranks by message cost and rate of it",
                figures=sum(each.figures for each in on),
                unsettled=sum(each.unsettled for each in on),
            )
        elif crosses:
            text = "nothing was measured between nodes; run `bench characterize` over two nodes or more"
            terms[name] = Term("assumed", text)
        else:
            terms[name] = Term("assumed", "no exchange inside a node was measured; the memory bandwidth stands for it")
    return terms


def _settled_figures(source: _Source) -> dict[str, list[bool]]:
    """By term, of each figure that it rests on, whether it settled; the links' are with their curves."""
    attention = _rows(source, source.data["attention"])
    experts = [
        row
        for row in _rows(source, source.data["expert_gemm"]["rows"])
        if row["params"].get("distribution") == "uniform"
    ]
    peak = _best_peak(source)
    fastest = max(_memories(source), key=lambda memory: float(memory["best_gb_s"]))
    tables = {
        "peak": [peak],
        "memory_bandwidth": [fastest],
        "matmul": peak["points"],
        "attention": [row for row in attention if row["params"]["direction"] == "forward"],
        "attention_backward": [row for row in attention if row["params"]["direction"] == "forward_backward"],
        "experts": [row for row in experts if row["params"]["direction"] == "forward"],
        "experts_backward": [row for row in experts if row["params"]["direction"] == "forward_backward"],
    }
    return {name: [bool(row["settled"]) for row in rows] for name, rows in tables.items()}


def _backward(measured: bool, share: str) -> Term:
    if measured:
        return Term("measured", f"forward_backward less forward{share}")
    return Term("assumed", "twice the forward's time, where forward_backward was not measured")


def _named(curves: tuple[Any, ...]) -> str:
    return ", ".join(dict.fromkeys(curve.name for curve in curves))


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
