"""A case of training: from its parameters to recipe, corpus, system and ranks, and how close two cases must come."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from bench.errors import UsageError, unknown_name
from bench.suite import Agreement, Axis, Parting
from ciera_piper_core.models.scaling import SCALES
from ciera_piper_core.systems import load_system, system_names
from ciera_piper_core.training.recipe import CHECKPOINTING, OPTIMIZERS, PRECISIONS, ROUTERS, Recipe, Routing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bench.suite import Case, Context, Site, Value
    from ciera_piper_core.systems.system import Ranks, TrainingSystem
    from ciera_piper_core.training.corpus import Corpus

AXES = (
    Axis("system", "str", "training system, with its options: fsdp, piper:pp=2:ep=2"),
    Axis("model", "str", "architecture of the catalogue, or path of a config.json"),
    Axis("scale", "str", "how much smaller it is made", tuple(SCALES)),
    Axis("ranks", "int", "number of ranks", minimum=1),
    Axis("precision", "str", "of weights and activations in computing; masters are fp32", tuple(PRECISIONS)),
    Axis("gradient_precision", "str", "in which gradients travel between ranks", tuple(PRECISIONS)),
    Axis("sequence", "int", "tokens of a sequence", minimum=1),
    Axis("batch", "int", "sequences of a step over all ranks; 0: one a rank and microbatch", minimum=0),
    Axis("microbatches", "int", "parts that each rank's share of a step is cut into", minimum=1),
    Axis("checkpointing", "str", "what the backward pass computes again", tuple(CHECKPOINTING)),
    Axis("optimizer", "str", "adam or adafactor", tuple(OPTIMIZERS)),
    Axis("learning_rate", "float", "constant", minimum=0),
    Axis("router", "str", "how tokens choose experts", tuple(ROUTERS)),
    Axis("skew", "float", "Zipf exponent added to the router's scores; 0 for none", minimum=0),
    Axis("corpus", "str", "file or folder of text; empty for Python's standard library"),
    Axis("tokenizer", "str", "tokenizer.json, or its folder; empty for bytes"),
)

DEFAULTS: Mapping[str, Value] = {
    "system": "fsdp",
    "model": "mixtral-8x7b",
    "scale": "tiny",
    "ranks": 2,
    "precision": "fp32",
    "gradient_precision": "fp32",
    "sequence": 64,
    "batch": 0,
    "microbatches": 1,
    "checkpointing": "none",
    "optimizer": "adam",
    "learning_rate": 1e-3,
    "router": "top_k",
    "skew": 0.0,
    "corpus": "",
    "tokenizer": "",
}

FIRST_ROUNDED_STEPS = 5
"""In so many steps losses must agree in half precision, whose rounding parts trainings soon.

The plain model itself, 8 layers of width 256 at a learning rate of 1e-3, is off its float32 self by 3.0 % in the
eighth step in bf16, and plain, xmoe and piper are off each other by up to 2.6 % in the ninth: as much with
gradients in float32. In the first five steps they are within 0.6 %.
"""
FIRST_STEPS = 20
"""In so many steps losses must agree: later one flipped route may part two trainings that are both right."""
ROUTES_PART = Parting("routes", after=FIRST_ROUNDED_STEPS, share=0.01, tolerance=0.01)
"""What may be before that, in float32: of many experts, two that are as good as each other come sooner.

olmoe-1b-7b at scale tiny on 4 ranks: fsdp, piper and xmoe made the same 32,768 choices a step 15 times, and their
losses were within 5.4e-8. In the 16th step 8 choices of fsdp fell the other way (3.1e-5), in the 21st 52 (3.3e-5).
"""
ORDER_OF_SUMS = 1e-4
"""Systems that allow themselves more than this round more than the order of sums does: their routes part at once."""
VALIDATION_TOLERANCE = 0.01
"""Between validation losses at the end, relative."""
ROUNDING: Mapping[str, float] = {"fp32": 0.0, "bf16": 2**-6, "fp16": 2**-8}
"""Least relative tolerance of losses where the order of sums may differ.

Half precision rounds what routers read so much that routes part from the first step on. Systems in bf16 were seen
to be off each other by 0.6 % within ``FIRST_ROUNDED_STEPS``: the bound is more than twice that.
"""


EXPERT_CHOICE_ROUNDING = 1e-3
"""Least relative tolerance of losses where experts choose their tokens, in the first ``FIRST_ROUNDED_STEPS``.

Each expert takes as many tokens as fit, whichever these are, so that no count shows where routes part: they do
almost at once, since the last tokens that fit are seldom clearly better than the first ones that do not. In float32
fsdp, xmoe, piper and ted were off each other and plain by up to 1.2e-4 within five steps.
"""


@dataclass(frozen=True)
class Training:
    """A case, read.

    Attributes:
        recipe: what is trained. corpus: on what.
        system: the class of it. options: of it, every one.
    """

    recipe: Recipe
    corpus: Corpus
    system: type[TrainingSystem]
    options: Mapping[str, Any]


def batch_of(case: Case) -> int:
    """Sequences of a step."""
    return int(case["batch"]) or int(case["ranks"]) * int(case["microbatches"])


def require_system(text: str) -> str:
    """The name in ``name:option=value``; the system is loaded only if there are options to be checked.

    Raises:
        UsageError: no such system, options that are not written so, that it has not, or of another type.
    """
    from ciera_piper_core.systems.system import parse_options, parse_system

    try:
        name, texts = parse_system(text)
        if name not in system_names():
            raise unknown_name("system", name, list(system_names()))
        # What cannot be loaded here, for want of an extra, tells so in its row.
        with suppress(ImportError):
            if texts:
                parse_options(load_system(name), texts)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return name


def read_training(case: Case, seed: int) -> Training:
    """What the case's parameters mean.

    Raises:
        ValueError: a value that no training can have. ImportError: an extra that the system needs is missing.
    """
    from ciera_piper_core.models import catalogue
    from ciera_piper_core.models.scaling import scale
    from ciera_piper_core.systems.system import parse_options, parse_system

    corpus = read_corpus(str(case["corpus"]), str(case["tokenizer"]))
    name, texts = parse_system(str(case["system"]))
    system = load_system(name)
    recipe = Recipe(
        architecture=scale(catalogue.model(str(case["model"])), case["scale"], vocab=corpus.vocab),
        sequence=int(case["sequence"]),
        global_batch=batch_of(case),
        microbatches=int(case["microbatches"]),
        precision=case["precision"],
        gradient_precision=case["gradient_precision"],
        optimizer=case["optimizer"],
        learning_rate=float(case["learning_rate"]),
        checkpointing=case["checkpointing"],
        routing=Routing(kind=case["router"], skew=float(case["skew"])),
        seed=seed,
    )
    return Training(recipe, corpus, system, parse_options(system, texts))


def read_corpus(named: str, tokenizer: str = "") -> Corpus:
    """The text of a file or folder, or the default one.

    Raises:
        ValueError: there is no text, or a tokenizer without text of one's own.
        ImportError: the package that reads tokenizers is missing.
    """
    from pathlib import Path

    from ciera_piper_core.training.corpus import from_files, standard_library

    if not named:
        if tokenizer:
            raise ValueError("the standard library is read byte by byte; with a tokenizer, name a corpus too")
        return standard_library()
    if not tokenizer:
        return from_files([Path(named)])
    from ciera_piper_core.training.tokenizer import Tokenizer

    reader = Tokenizer(Path(tokenizer))
    return from_files([Path(named)], encode=reader.encode, vocab=reader.vocab)


def ranks_of(context: Context) -> Ranks:
    """The context's ranks, as systems know them (collective)."""
    import torch.distributed as dist

    from ciera_piper_core.alltoall.placement import placement_from_nodes
    from ciera_piper_core.systems.system import Ranks

    nodes = [int(node) for node in context.group.gather_objects(context.site.node)]
    group = context.group.data
    if group is None:
        group = group_of_one()
    assert isinstance(group, dist.ProcessGroup)
    return Ranks(group, placement_from_nodes(nodes, "the launcher"), device_of(context.site))


def refused(case: Case, site: Site) -> str | None:
    """Why the case cannot be trained here, in a line; None if it can."""
    from ciera_piper_core.alltoall.placement import placement_from_nodes
    from ciera_piper_core.systems.system import Ranks
    from ciera_piper_core.training.batches import Batches

    try:
        training = read_training(case, site.seed)
        # Text that makes no sequence is refused when batches are made of it.
        Batches(training.corpus, training.recipe)
        # Refusals come before there are groups: they look at sizes alone.
        nodes = [rank // site.ranks_per_node for rank in range(site.world)]
        ranks = Ranks(cast("Any", None), placement_from_nodes(nodes, "the launcher"), device_of(site))
        return training.system.refusal(training.recipe, ranks, training.options)
    except (ValueError, ImportError) as error:
        return str(error)


def agreements(case: Case, reference: Case) -> tuple[Agreement, ...]:
    """How close the losses of ``case`` must come to those of ``reference``.

    Systems that claim the same numbers to the bit must have them in every step. Others say by how much
    they may be off the plain model, so two of them may be off each other by both.
    """
    names = [require_system(str(one["system"])) for one in (case, reference)]
    systems = [load_system(name) for name in names]
    roots = [system.exact_as or name for name, system in zip(names, systems, strict=True)]
    if roots[0] == roots[1]:
        return (Agreement("loss", 0.0), Agreement("validation_loss", 0.0))
    tolerance = sum(load_system(root).loss_tolerance for root in roots)
    rounding = max(ROUNDING[str(case["precision"])], ROUNDING[str(case["gradient_precision"])])
    if case["router"] == "expert_choice":
        rounding = max(rounding, EXPERT_CHOICE_ROUNDING)
    tolerance = max(tolerance, rounding)
    first = FIRST_ROUNDED_STEPS if rounding else FIRST_STEPS
    return (
        Agreement("loss", tolerance, first, ROUTES_PART if tolerance <= ORDER_OF_SUMS else None),
        Agreement("validation_loss", max(VALIDATION_TOLERANCE, tolerance)),
    )


def device_of(site: Site) -> Any:
    """The rank's ``torch.device``."""
    import torch

    return torch.device("cuda", site.local_rank) if site.device == "cuda" else torch.device("cpu")


def group_of_one() -> Any:
    """A process group of this process alone, where nobody has made one."""
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return dist.group.WORLD
