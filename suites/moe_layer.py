"""One transformer layer with its experts spread over all ranks: throughput of forward and backward passes.

After the paper's figure of single layers in a node. Attention, router and shared experts are copied,
each rank has its own sequences, and the routed experts are divided over all ranks (expert-data
parallelism). A pass with gradients ends when those of the copied weights are summed over the ranks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from bench.definitions import ITEM_RATE, LATENCY, MFU, Definition, Work, define
from bench.suite import Axis, Metric, Suite
from ciera_piper_core.alltoall import ALGORITHMS
from ciera_piper_core.models import catalogue
from ciera_piper_core.models.flops import layer_flops
from ciera_piper_core.models.scaling import SCALES
from ciera_piper_core.training.recipe import ROUTERS
from suites.alltoall import DEDUP, HIERARCHICAL, OVER_FLAT
from suites.communication import RANKS, WORKING_BYTES
from suites.compute import DIRECTION, DTYPE, direction_factor, item_bytes
from suites.spread_layer import layer_of, why_no_layer
from suites.training_peak import DTYPES, peak_flops_per_second, source_of_peak

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.suite import Case, Context, Preset, Site, Value, Workload
    from ciera_piper_core.models.flops import Convention

CONVENTION: Convention = "causal"
"""Of ``models.flops``: scores over the pairs that the mask leaves."""

PAPER_MODELS = (
    "mixtral-8x22b",
    "mixtral-8x7b",
    "llama-4-maverick",
    "llama-4-scout",
    "arctic",
    "deepseek-v3",
    "kimi-k2",
    "deepseek-v2",
)
"""Those of the figure, in its order."""

LAYER_THROUGHPUT = define(
    Definition(
        "throughput/layer-flops-per-rank-v1",
        "TFLOP/s",
        "higher",
        "Floating-point operations that the layer needs for the tokens of one rank, on average over ranks (parameter "
        "convention says which count; a pass with gradients counts three times the forward pass; choices that a router "
        "drops count as if they were served), over the slowest rank's duration.",
        lambda seconds, work: work.flops / seconds / 1e12,
    )
)

MEASURED = (
    Metric("latency", LATENCY),
    Metric("throughput", LAYER_THROUGHPUT),
    Metric("mfu", MFU),
    Metric("tokens_per_second", ITEM_RATE),
)


class MoELayerSuite(Suite):
    """The first layer of a model that has routed experts, by all-to-all algorithm and router."""

    name: ClassVar[str] = "moe_layer"
    summary: ClassVar[str] = "one layer with experts over all ranks: TFLOP/s a rank by model, algorithm and routing"
    method_version: ClassVar[int] = 1
    distributed: ClassVar[bool] = True
    metrics: ClassVar[tuple[Metric, ...]] = (*MEASURED, OVER_FLAT)
    axes: ClassVar[tuple[Axis, ...]] = (
        Axis("model", "str", "architecture whose layer is computed", tuple(catalogue.names())),
        Axis("scale", "str", "its size, by the rule of the training systems", tuple(SCALES)),
        RANKS,
        Axis("sequence", "int", "tokens of a sequence", minimum=1),
        Axis("batch", "int", "sequences of each rank", minimum=1),
        Axis(
            "algorithm",
            "str",
            "of the all-to-all, see the suite alltoall; dedup: a token crosses to each node once",
            (*ALGORITHMS, DEDUP),
        ),
        Axis("router", "str", "how tokens choose experts", tuple(ROUTERS)),
        Axis("skew", "float", "0: as random weights choose; 1: experts are favoured by Zipf's law", minimum=0),
        DIRECTION,
        DTYPE,
    )
    presets: ClassVar[Mapping[Preset, Mapping[str, Sequence[Value]]]] = {
        "quick": {
            "model": ("mixtral-8x7b", "deepseek-v3"),
            "scale": ("tiny",),
            "ranks": (2, 4),
            "sequence": (128,),
            "batch": (2,),
            "algorithm": ("flat", DEDUP),
            "router": ("top_k",),
            "skew": (0.0, 1.0),
            "direction": ("forward_backward",),
            "dtype": ("bfloat16",),
        },
        "standard": {
            "model": PAPER_MODELS,
            "scale": ("small",),
            "ranks": (4, 8),
            "sequence": (1024,),
            "batch": (1,),
            "algorithm": ("flat", DEDUP, "halo_v1", "auto"),
            "router": ("top_k",),
            "skew": (0.0,),
            "direction": ("forward_backward",),
            "dtype": ("bfloat16",),
        },
        "full": {
            "model": PAPER_MODELS,
            "scale": ("full",),
            "ranks": (8, 16, 32),
            "sequence": (4096,),
            "batch": (1, 4),
            "algorithm": ("flat", DEDUP, *(name for name in ALGORITHMS if name != "flat")),
            "router": ("top_k", "capacity", "expert_choice"),
            "skew": (0.0, 1.0),
            "direction": DIRECTION.choices,
            "dtype": ("bfloat16",),
        },
    }

    def metrics_for(self, case: Case) -> tuple[Metric, ...]:
        """Flat is not compared with itself."""
        return MEASURED if case["algorithm"] == "flat" else self.metrics

    def keeps(self, case: Case) -> bool:
        """Expert choice gives each expert as many whatever the skew."""
        return bool(case["router"] != "expert_choice" or case["skew"] == 0)

    def placed_params(self, case: Case, site: Site) -> Mapping[str, Value]:
        """The FLOP convention, where the peak is from, and the cores of a rank on a CPU."""
        threads = site.cores if site.device == "cpu" else 0
        return {
            "convention": CONVENTION,
            "peak": source_of_peak(site.device),
            "threads": threads,
            "seed": site.seed,
        }

    def skip_reason(self, case: Case, site: Site) -> str | None:
        if case["ranks"] < 2:
            return "experts are spread over at least 2 ranks"
        if reason := why_no_layer(case):
            return reason
        if site.nodes == 1 and case["algorithm"] in HIERARCHICAL:
            return f"all ranks share one node, where {case['algorithm']} is the same as flat; see `--lab`"
        return None

    def memory_bytes(self, case: Case, site: Site) -> int:
        layer, hidden = layer_of(case)
        experts = layer.experts
        assert experts is not None
        tokens, item = int(case["batch"]) * int(case["sequence"]), item_bytes(case)
        one = experts.matrices * hidden * experts.ffn
        held = -(-experts.experts // int(case["ranks"]))
        flops_a_token = sum(layer_flops(layer, hidden, int(case["sequence"]), "6n").values())
        copied = flops_a_token / 2 - experts.top_k * one
        # All tokens of all ranks may choose the same experts; otherwise they share them about evenly.
        received = tokens * experts.top_k * (min(case["ranks"], 4) if case["skew"] else 2)
        row = 4 * hidden + experts.matrices * experts.ffn
        # Weights, gradients and their buckets; what autograd keeps, twice with the baseline.
        weights = 4 * (copied + held * one) * item
        # The oracle has one expert in double precision, with its gradient and what makes it.
        return int(weights + 2 * received * row * item + 6 * 8 * one) + WORKING_BYTES

    def setup(self, case: Case, context: Context) -> Workload:
        from suites.moe_layer_pass import LayerPass

        layer, hidden = layer_of(case)
        work = replace(layer_work(case), peak_flops_per_second=peak_of_a_rank(case, context))
        if peak := context.site.peak_tflops.get(case["dtype"]):
            work.ceilings["throughput"] = peak
        return LayerPass(case, context, layer, hidden, work)


def peak_of_a_rank(case: Case, context: Context) -> float | None:
    """FLOP/s of one rank on average (collective at first, then remembered); None where it is not known."""
    key = f"moe_layer/peak/{case['dtype']}"
    if key not in context.scratch:
        precision = next(short for short, dtype in DTYPES.items() if dtype == case["dtype"])
        context.scratch[key] = peak_flops_per_second(context, precision)
    of_all: float | None = context.scratch[key]
    return None if of_all is None else of_all / int(case["ranks"])


def layer_work(case: Case) -> Work:
    """FLOPs of one rank on average, tokens of all ranks."""
    layer, hidden = layer_of(case)
    tokens = int(case["batch"]) * int(case["sequence"])
    forward = tokens * sum(layer_flops(layer, hidden, int(case["sequence"]), CONVENTION).values())
    return Work(flops=forward * direction_factor(case), items=tokens * int(case["ranks"]))
