"""What ``bench plan --paper`` shows: published figures beside ours, with the deviation of each and its reason."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ciera_piper_core.models.architecture import Architecture, Attention, Experts, Layer
from ciera_piper_core.models.parameters import model_parameters
from ciera_piper_core.planner.formatting import GB, GIB, percent
from ciera_piper_core.planner.migration import Migration
from ciera_piper_core.planner.paper_dense import DenseRow, dense_rows
from ciera_piper_core.planner.terminal import table

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class MigrationRow:
    """A row of Table IV.

    Attributes:
        model: of the row. bytes_per_gpu: exact. gb, gib: the same in either unit.
        printed: the paper's figure, which it calls GB.
        unit: the unit in which the printed figure is right to its last digit; else the nearer one, and ``exact``
            is False.
        deviation: of the printed figure from ours in that unit.
        milliseconds, printed_milliseconds: ours from the exact bytes, and the paper's.
    """

    model: str
    bytes_per_gpu: float
    gb: float
    gib: float
    printed: float
    unit: str
    exact: bool
    deviation: float
    milliseconds: float
    printed_milliseconds: float


@dataclass(frozen=True)
class ScalingRow:
    """A point of Fig 14: ``billion`` parameters of embedding-free layers, cut off to a whole number as printed."""

    gpus: int
    experts: int
    billion: float
    printed_billion: int

    @property
    def agrees(self) -> bool:
        """The printed label is our size, cut off after the point."""
        return int(self.billion) == self.printed_billion


@dataclass(frozen=True)
class FittingCase:
    """The conclusion of Fig 10 under one reading of what it leaves open.

    Attributes:
        matrices: of an expert. unit: of the limit of 64, GB or GiB.
        billion: parameters of the model's layers.
        least_bytes: by number of nodes, memory a GPU of the best EP; best_ep: which that is.
        smallest_nodes: on which it fits; None for none of them. agrees: with the paper's.
    """

    matrices: int
    unit: str
    billion: float
    least_bytes: dict[int, float]
    best_ep: dict[int, int]
    smallest_nodes: int | None
    agrees: bool


@cache
def published() -> dict[str, Any]:
    """The published figures, from ``published.toml``."""
    return tomllib.loads((files("ciera_piper_core.planner") / "published.toml").read_text(encoding="utf-8"))


def migration_rows() -> list[MigrationRow]:
    """Table IV: exact bytes, and the unit that each printed figure is really in."""
    data = published()["table4"]
    found = []
    for row in data["rows"]:
        cost = Migration(
            row["model"],
            row["experts"],
            row["hidden"],
            row["ffn"],
            data["matrices"],
            data["gpus"],
            data["bandwidth_bytes_s"],
        )
        in_units = {"GB": cost.bytes_per_gpu / GB, "GiB": cost.bytes_per_gpu / GIB}
        printed = row["printed_gb"]
        unit = min(in_units, key=lambda name: abs(in_units[name] - printed))
        found.append(
            MigrationRow(
                model=row["model"],
                bytes_per_gpu=cost.bytes_per_gpu,
                gb=in_units["GB"],
                gib=in_units["GiB"],
                printed=printed,
                unit=unit,
                # Two decimals are printed; a half may be rounded either way.
                exact=abs(in_units[unit] - printed) <= 0.005 + 1e-9,
                deviation=printed / in_units[unit] - 1,
                milliseconds=cost.seconds * 1e3,
                printed_milliseconds=row["printed_ms"],
            )
        )
    return found


def scaling_rows() -> list[ScalingRow]:
    """Fig 14: the sizes of the scaled model, counted from its architecture."""
    data = published()["figure14"]
    found = []
    for row in data["rows"]:
        architecture = _uniform(
            "m10b",
            data["hidden"],
            data["layers"],
            data["heads"],
            row["experts"],
            data["top_k"],
            data["ffn"],
            data["matrices"],
        )
        counts = model_parameters(architecture)
        in_layers = counts.attention + counts.routed_experts
        found.append(ScalingRow(row["gpus"], row["experts"], in_layers / 1e9, row["printed_billion"]))
    return found


def figure10_bytes(matrices: int, gpus: int, expert_parallel: int) -> float:
    """Memory a GPU by the paper's rule for Fig 10: all GPUs that EP leaves form the pipeline.

    ``16 (attention / PP + experts / (PP EP)) + ceil(L / PP) PP 2 b s d * 2``: 16 bytes a parameter,
    and of activations two inputs a layer, those of all stages' layers on the first one.
    """
    data = published()["figure10"]
    hidden, layers, experts = data["hidden"], data["layers"], data["experts"]
    pp = gpus // expert_parallel
    attention = layers * 4 * hidden**2
    routed = layers * experts * matrices * hidden * data["ffn"]
    boundaries = -(-layers // pp) * pp * 2 * data["sequences"] * data["sequence"] * hidden * 2
    return float(16 * (attention / pp + routed / (pp * expert_parallel)) + boundaries)


def fitting_cases() -> list[FittingCase]:
    """Fig 10's conclusion, "at least 64 nodes", for two and three matrices and a limit in GB and in GiB."""
    data = published()["figure10"]
    found = []
    for matrices in (2, 3):
        counts = data["layers"] * (4 * data["hidden"] ** 2 + data["experts"] * matrices * data["hidden"] * data["ffn"])
        best: dict[int, int] = {}
        least: dict[int, float] = {}
        for nodes in data["nodes"]:
            gpus = nodes * data["gpus_per_node"]
            allowed = [ep for ep in data["expert_parallel"] if ep <= gpus and gpus // ep <= data["layers"]]
            best[nodes] = min(allowed, key=lambda ep: figure10_bytes(matrices, gpus, ep))
            least[nodes] = figure10_bytes(matrices, gpus, best[nodes])
        for unit, size in (("GB", GB), ("GiB", GIB)):
            fitting = [nodes for nodes in data["nodes"] if least[nodes] <= data["limit"] * size]
            smallest = min(fitting, default=None)
            found.append(
                FittingCase(matrices, unit, counts / 1e9, least, best, smallest, smallest == data["claimed_nodes"])
            )
    return found


def paper_record() -> dict[str, Any]:
    """All tables as plain values."""
    return {
        "table4": [asdict(row) for row in migration_rows()],
        "figure14": [{**asdict(row), "agrees": row.agrees} for row in scaling_rows()],
        "figure10": [asdict(case) for case in fitting_cases()],
        "dense": [asdict(row) for row in dense_rows(published()["dense"])],
    }


def paper_text() -> str:
    """All tables for people."""
    return "\n\n".join(
        [
            _migration_text(migration_rows()),
            _scaling_text(scaling_rows()),
            _fitting_text(fitting_cases()),
            _dense_text(dense_rows(published()["dense"])),
        ]
    )


def _uniform(
    name: str, hidden: int, layers: int, heads: int, experts: int, top_k: int, ffn: int, matrices: int
) -> Architecture:
    """A model of equal layers with full multi-head attention."""
    attention = Attention(heads, heads, hidden // heads, hidden // heads)
    layer = Layer(attention, Experts(experts, top_k, ffn, matrices))
    return Architecture(name, hidden, 1, (layer,) * layers)


def _migration_text(rows: Sequence[MigrationRow]) -> str:
    shown = [
        (
            row.model,
            f"{row.gb:.3f}",
            f"{row.gib:.3f}",
            f"{row.printed:.2f}",
            row.unit if row.exact else f"neither; {row.unit} within {abs(row.deviation):.1%}",
            f"{row.milliseconds:.1f}",
            f"{row.printed_milliseconds:.1f}",
        )
        for row in rows
    ]
    headers = ("model", "GB", "GiB", "printed 'GB'", "its true unit", "ms", "printed ms")
    slow = sum(row.milliseconds >= 100 for row in rows)
    return (
        "Piper, Table IV: worst-case migration of a layer's experts, bytes a GPU of 8, at 50 GB/s\n"
        + table(shown, headers, right=(1, 2, 3, 5, 6))
        + f"\n{slow} of {len(rows)} take 100 ms or more. The published Switch-Base has experts of width 3072 with two"
        " matrices, which gives the same bytes."
    )


def _scaling_text(rows: Sequence[ScalingRow]) -> str:
    shown = [
        (row.gpus, row.experts, f"{row.billion:.1f}", row.printed_billion, "agrees" if row.agrees else "misprint")
        for row in rows
    ]
    headers = ("GPUs", "experts", "1e9 parameters", "printed", "")
    return "Piper, Fig 14: sizes with two matrices an expert (the paper cuts off after the point)\n" + table(
        shown, headers, right=(0, 1, 2, 3)
    )


def _fitting_text(cases: Sequence[FittingCase]) -> str:
    shown = [
        (
            case.matrices,
            f"{case.billion:.1f}",
            f"64 {case.unit}",
            *(
                f"{size / GB:.1f} ({size / GIB:.1f}), EP {case.best_ep[nodes]}"
                for nodes, size in case.least_bytes.items()
            ),
            case.smallest_nodes or "none",
            "agrees" if case.agrees else "differs",
        )
        for case in cases
    ]
    nodes = [f"{count} nodes, GB (GiB)" for count in cases[0].least_bytes]
    headers = ("matrices", "1e9 parameters", "limit", *nodes, "fewest nodes", "'at least 64'")
    holding = [f"{case.matrices} matrices and 64 {case.unit}" for case in cases if case.agrees]
    return (
        "Piper, Fig 10: least memory a GPU of X-MoE's largest model by the paper's rule, one sequence a GPU\n"
        + table(shown, headers, right=(0, 1, 6))
        + f"\nThe paper's conclusion holds with {', '.join(holding) or 'none of these'}; its measured models have two"
        " matrices an expert."
    )


def _dense_text(rows: Sequence[DenseRow]) -> str:
    shown = [
        (row.model, row.quantity, f"{row.published:.2f}", f"{row.ours:.2f}", f"{row.deviation:+.1%}", row.reason)
        for row in rows
    ]
    mean = sum(abs(row.deviation) for row in rows) / len(rows)
    return (
        "Dense models on A100-80GB (Korthikanti et al. 2022, Fig 1 and Table 5; Calculon's validation)\n"
        + table(shown, ("model", "quantity", "published", "ours", "deviation", "why"), right=(2, 3, 4))
        + f"\nmean of the deviations' sizes: {percent(mean)}"
    )
