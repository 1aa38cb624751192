"""What moving experts costs and brings: bytes, seconds, load before and after, and passes of the layer with both."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from bench.definitions import ALGBW, LATENCY, Definition, define
from bench.suite import Axis, Metric, Suite
from ciera_piper_core.models import catalogue
from ciera_piper_core.models.scaling import SCALES
from ciera_piper_core.training.recipe import PRECISIONS
from suites.communication import RANKS, WORKING_BYTES
from suites.spread_layer import layer_of, why_no_layer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.suite import Case, Context, Preset, Site, Value, Workload

SOLVERS = ("paper", "search")

LOAD = define(
    Definition(
        "load/busiest-rank-over-mean-v1",
        "ratio",
        "lower",
        "Token copies that the busiest rank's experts get, over the mean of the ranks; parameter experts says whether "
        "before or after they move. 1 is even.",
    )
)
PASS = define(
    Definition(
        "duration/expert-layer-pass-v1",
        "us",
        "lower",
        "Forward and backward pass of the router and the experts of one layer, with their exchanges, on the slowest "
        "rank; parameter experts says whether before or after they move. The two take turns, after a barrier each.",
    )
)
MOVED_BYTES = define(
    Definition(
        "size/moved-experts-v1",
        "B",
        "lower",
        "Masters and optimizer state that the rank which sends or receives the most moves.",
    )
)
MOVED_EXPERTS = define(
    Definition("count/moved-experts-v1", "count", "lower", "Experts of the layer that change their rank.")
)
SOLVER_TIME = define(
    Definition("duration/placement-solver-v1", "us", "lower", "Time to find where the experts go, on one rank.")
)
PAYBACK = define(
    Definition(
        "count/payback-steps-v1",
        "count",
        "lower",
        "Steps (each one pass of the layer) after which a move has saved what it took; a million where it never does.",
    )
)
AMORTISED = define(
    Definition(
        "share/amortised-migration-v1",
        "ratio",
        "lower",
        "Time of one move over that of the move and of the passes until the next check (parameter interval) together. "
        "Other layers and the dense part of a model are not counted; with them the share is smaller.",
    )
)

ITEM_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}

NEVER = 1e6
"""Steps, where nothing is saved."""


class MigrationSuite(Suite):
    """Experts of one layer under Zipf routing: from neighbours together to where a solver puts them, and back."""

    name: ClassVar[str] = "migration"
    summary: ClassVar[str] = "moving experts under skewed routing: bytes, time, and what the layer gains"
    method_version: ClassVar[int] = 1
    distributed: ClassVar[bool] = True
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("latency", LATENCY),
        Metric("algbw", ALGBW),
        *(Metric("load", LOAD, {"experts": when}) for when in ("before", "after")),
        *(Metric("pass_time", PASS, {"experts": when}) for when in ("before", "after")),
        Metric("moved_bytes", MOVED_BYTES),
        Metric("moved_experts", MOVED_EXPERTS),
        Metric("solver_time", SOLVER_TIME),
        Metric("payback", PAYBACK),
        Metric("amortised_share", AMORTISED),
    )
    axes: ClassVar[tuple[Axis, ...]] = (
        Axis("model", "str", "architecture whose experts move", tuple(catalogue.names())),
        Axis("scale", "str", "its size, by the rule of the training systems", tuple(SCALES)),
        RANKS,
        Axis("skew", "float", "exponent of Zipf's law by which experts are favoured", minimum=0),
        Axis("solver", "str", "paper: swaps of Algorithm 2; search: fewer moves, lower load", SOLVERS),
        Axis("spare", "int", "experts that a rank has room for beyond its even share", minimum=0),
        Axis("sequence", "int", "tokens of a sequence", minimum=1),
        Axis("batch", "int", "sequences of each rank", minimum=1),
        Axis("interval", "int", "steps between two checks", minimum=1),
        Axis("precision", "str", "of the weights; masters and moments are float32", tuple(PRECISIONS)),
    )
    presets: ClassVar[Mapping[Preset, Mapping[str, Sequence[Value]]]] = {
        "quick": {
            "model": ("mixtral-8x7b", "olmoe-1b-7b"),
            "scale": ("tiny",),
            "ranks": (2, 4),
            "skew": (0.5,),
            "solver": SOLVERS,
            "spare": (0,),
            "sequence": (128,),
            "batch": (2,),
            "interval": (100,),
            "precision": ("fp32",),
        },
        "standard": {
            "model": ("mixtral-8x7b", "olmoe-1b-7b", "deepseek-v3"),
            "scale": ("small",),
            "ranks": (4, 8),
            "skew": (0.25, 0.5, 1.0),
            "solver": SOLVERS,
            "spare": (0, 2),
            "sequence": (512,),
            "batch": (2,),
            "interval": (100,),
            "precision": ("bf16",),
        },
        "full": {
            "model": ("qwen3-235b-a22b", "deepseek-v3", "kimi-k2"),
            "scale": ("full",),
            "ranks": (8, 16, 32),
            "skew": (0.25, 0.5, 1.0),
            "solver": SOLVERS,
            "spare": (0, 2),
            "sequence": (4096,),
            "batch": (1,),
            "interval": (100, 1000),
            "precision": ("bf16",),
        },
    }

    def keeps(self, case: Case) -> bool:
        """The paper's swaps use no spare room."""
        return bool(case["solver"] != "paper" or case["spare"] == 0)

    def placed_params(self, case: Case, site: Site) -> Mapping[str, Value]:
        """The seed decides which experts are popular; the cores are a rank's."""
        return {"seed": site.seed, "threads": site.cores if site.device == "cpu" else 0}

    def skip_reason(self, case: Case, site: Site) -> str | None:
        if case["ranks"] < 2:
            return "experts move between at least 2 ranks"
        return why_no_layer(case)

    def memory_bytes(self, case: Case, site: Site) -> int:
        layer, hidden = layer_of(case)
        experts = layer.experts
        assert experts is not None
        one, held = experts.matrices * hidden * experts.ffn, -(-experts.experts // int(case["ranks"])) + case["spare"]
        item = ITEM_BYTES[case["precision"]]
        # Weights and gradients; masters and moments, and as much again packed, arrived, and in a stack made anew.
        state = held * one * (2 * item + 4 * 12)
        received = int(case["batch"]) * int(case["sequence"]) * experts.top_k * min(int(case["ranks"]), 4)
        rows = received * (4 * hidden + experts.matrices * experts.ffn) * item
        return int(state + 2 * rows) + WORKING_BYTES

    def setup(self, case: Case, context: Context) -> Workload:
        from suites.migration_moves import MovingExperts

        return MovingExperts(case, context)
