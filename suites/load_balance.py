"""How evenly experts are used while a model learns real text, by kind of router: at the beginning, and later on."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from bench.definitions import LATENCY, Definition, define
from bench.suite import Axis, Metric, Suite
from ciera_piper_core.models import catalogue
from ciera_piper_core.models.scaling import SCALES, scale
from ciera_piper_core.training.recipe import ROUTERS, Recipe, Routing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.suite import Case, Context, Preset, Site, Value, Workload

LOAD = define(
    Definition(
        "load/busiest-expert-over-mean-v1",
        "ratio",
        "lower",
        "Choices that the busiest expert of a layer serves in a step, over the mean of the layer's experts; the mean "
        "over layers. One sample a step of the phase; 1 is even.",
    )
)
ENTROPY = define(
    Definition(
        "load/entropy-v1",
        "ratio",
        "higher",
        "Entropy of the shares of served choices of a layer's experts in a step, over the logarithm of their number; "
        "the mean over layers. One sample a step of the phase; 1 is even, 0 is one expert for all.",
    )
)
DROPPED = define(
    Definition(
        "dropped/choices-v1",
        "ratio",
        "lower",
        "Choices that tokens made and no expert served, over tokens times the experts a token chooses; the mean over "
        "layers. Under expert_choice tokens choose nothing, and 0 are dropped. One sample a step of the phase.",
    )
)
UNSERVED = define(
    Definition(
        "dropped/tokens-v1",
        "ratio",
        "lower",
        "Tokens that no expert of a layer serves, over all tokens; the mean over layers. One sample a step.",
    )
)
LOSS = define(
    Definition(
        "loss/nats-v1",
        "nats",
        "lower",
        "Mean cross-entropy in nats a token of the phase's steps (phase validation: of validation text, at the end).",
    )
)

PHASES = ("first", "middle", "last")
"""Of a training: the tenth of its steps at the beginning, around the middle and at the end; at least one step."""

BY_PHASE = (("load", LOAD), ("entropy", ENTROPY), ("dropped", DROPPED), ("unserved", UNSERVED), ("loss", LOSS))

STATE_BYTES = 32
"""Of a parameter in training, with room for what the optimizer makes meanwhile."""


class LoadBalanceSuite(Suite):
    """A training of so many steps in one process, and where its tokens went.

    The system is ``plain``: all systems route alike. What is timed is one more step after the training.
    """

    name: ClassVar[str] = "load_balance"
    summary: ClassVar[str] = "expert load over training on real text, by kind of router"
    method_version: ClassVar[int] = 1
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("latency", LATENCY),
        *(Metric(name, definition, {"phase": phase}) for name, definition in BY_PHASE for phase in PHASES),
        Metric("loss", LOSS, {"phase": "validation"}),
    )
    axes: ClassVar[tuple[Axis, ...]] = (
        Axis("model", "str", "architecture that is trained", tuple(catalogue.names())),
        Axis("scale", "str", "its size, by the rule of the training systems", tuple(SCALES)),
        Axis("router", "str", "how tokens choose experts", tuple(ROUTERS)),
        Axis("balance_weight", "float", "of the auxiliary loss (top_k and capacity); 0 for none", minimum=0),
        Axis("skew", "float", "experts are favoured by Zipf's law with this exponent; 0 for none", minimum=0),
        Axis("steps", "int", "of the training", minimum=3),
        Axis("sequence", "int", "tokens of a sequence", minimum=1),
        Axis("batch", "int", "sequences of a step", minimum=1),
        Axis("learning_rate", "float", "constant", minimum=0),
        Axis("corpus", "str", "file or folder of text; empty for Python's standard library"),
    )
    presets: ClassVar[Mapping[Preset, Mapping[str, Sequence[Value]]]] = {
        "quick": {
            "model": ("mixtral-8x7b",),
            "scale": ("tiny",),
            "router": ROUTERS,
            "balance_weight": (0.0, 0.01),
            "skew": (0.0,),
            "steps": (60,),
            "sequence": (64,),
            "batch": (8,),
            "learning_rate": (3e-3,),
            "corpus": ("",),
        },
        "standard": {
            "model": ("mixtral-8x7b", "olmoe-1b-7b"),
            "scale": ("tiny",),
            "router": ROUTERS,
            "balance_weight": (0.0, 0.01),
            "skew": (0.0, 0.5),
            "steps": (400,),
            "sequence": (128,),
            "batch": (16,),
            "learning_rate": (3e-3,),
            "corpus": ("",),
        },
        "full": {
            "model": ("mixtral-8x7b", "olmoe-1b-7b", "deepseek-v3"),
            "scale": ("small",),
            "router": ROUTERS,
            "balance_weight": (0.0, 0.001, 0.01),
            "skew": (0.0, 0.5),
            "steps": (2000,),
            "sequence": (256,),
            "batch": (32,),
            "learning_rate": (1e-3,),
            "corpus": ("",),
        },
    }

    def keeps(self, case: Case) -> bool:
        """Two kinds of router have no auxiliary loss; expert choice gives each expert as many whatever the skew."""
        if case["router"] in ("loss_free", "expert_choice") and case["balance_weight"] != 0:
            return False
        return bool(case["router"] != "expert_choice" or case["skew"] == 0)

    def placed_params(self, case: Case, site: Site) -> Mapping[str, Value]:
        """The seed decides weights and batches; the cores are a rank's."""
        return {"seed": site.seed, "threads": site.cores if site.device == "cpu" else 0}

    def skip_reason(self, case: Case, site: Site) -> str | None:
        from suites.training_case import read_corpus

        try:
            architecture = scale(catalogue.load(case["model"]), case["scale"])
            read_corpus(case["corpus"])
            recipe_of(case, site.seed, architecture.vocab)
        except (ValueError, OSError) as error:
            return str(error)
        return None if architecture.has_experts else f"{case['model']} has no routed experts"

    def memory_bytes(self, case: Case, site: Site) -> int:
        from ciera_piper_core.models.parameters import model_parameters

        recipe = recipe_of(case, site.seed, None)
        architecture, tokens = recipe.architecture, recipe.tokens_per_step
        experts = architecture.experts
        widths = 24 * architecture.hidden + 4 * experts.top_k * (experts.ffn + architecture.hidden)
        activations = 4 * tokens * (len(architecture.layers) * widths + 4 * architecture.vocab)
        return int(model_parameters(architecture, mtp=False).total) * STATE_BYTES + activations

    def setup(self, case: Case, context: Context) -> Workload:
        from suites.load_balance_training import WatchedTraining

        return WatchedTraining(case, context)


def recipe_of(case: Case, seed: int, vocab: int | None) -> Recipe:
    """What is trained.

    Args:
        vocab: of the corpus; None for bytes.

    Raises:
        ValueError: the model cannot be scaled or built, or a number is out of range.
    """
    return Recipe(
        architecture=scale(catalogue.load(case["model"]), case["scale"], vocab=vocab),
        sequence=int(case["sequence"]),
        global_batch=int(case["batch"]),
        learning_rate=float(case["learning_rate"]),
        routing=Routing(kind=case["router"], balance_weight=float(case["balance_weight"]), skew=float(case["skew"])),
        seed=seed,
    )


def steps_of(phase: str, steps: int) -> range:
    """The steps of a phase, from 0."""
    length = max(1, steps // 10)
    first = {"first": 0, "middle": (steps - length) // 2, "last": steps - length}[phase]
    return range(first, first + length)
