"""Whole training steps of any system: time, utilisation, bytes, memory, and where the time goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from bench.definitions import HFU, ITEM_RATE, ITERATION_SECONDS, MFU, Definition, define
from bench.suite import ComparableSuite, Metric
from ciera_piper_core.training.regions import REGIONS, SHARES
from ciera_piper_core.training.wire_bytes import COLLECTIVES
from suites.training_case import AXES, DEFAULTS, agreements, batch_of, refused, require_system
from suites.training_peak import source_of_peak
from suites.training_workload import CONVENTION

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from bench.suite import Agreement, Case, Context, Preset, Site, Value, Workload

LOSS = define(
    Definition(
        "loss/cross-entropy-v1",
        "nats",
        "lower",
        "Mean cross-entropy of a step's tokens over the whole batch, in nats, without auxiliary losses; samples are "
        "those of all steps in order, untimed ones too.",
    )
)
VALIDATION_LOSS = define(
    Definition(
        "loss/validation-cross-entropy-v1",
        "nats",
        "lower",
        "Mean cross-entropy of two batches of the corpus's validation part after all timed steps, in nats.",
    )
)
PEAK_RATE = define(
    Definition(
        "rate/peak-of-all-ranks-v1",
        "TFLOP/s",
        "higher",
        "What all ranks' devices together can do in the precision that is trained in: by the data sheet, or (parameter "
        "peak is measured) square matrix products of all ranks at the same time, the better of two sizes.",
    )
)
WIRE_BYTES = define(
    Definition(
        "bytes/sent-by-all-ranks-in-a-step-v1",
        "B",
        "lower",
        "Bytes that all ranks together send to others in a step by one kind of message (parameter collective), counted "
        "as nccl-tests counts the bytes on the wire of each operation.",
    )
)
PEAK_MEMORY = define(
    Definition(
        "bytes/peak-of-training-v1",
        "B",
        "lower",
        "The most memory that the fullest rank held while the system was built and trained, above what it held before: "
        "torch's on a GPU, the resident set on a CPU.",
    )
)
EXPOSED = define(
    Definition(
        "duration/exposed-communication-v1",
        "s",
        "lower",
        "Time of a step that the slowest rank's training thread spends in parts that move data between ranks or wait "
        "for it, packing and casts for them included, in steps with instruments.",
    )
)
REGION_TIME = define(
    Definition(
        "duration/exclusive-region-v1",
        "s",
        "lower",
        "Time of a step that a rank's training thread spends in a part of it (parameter region) and in no part within "
        "that, forward and backward, the mean over ranks, in steps with instruments. All parts together are the step.",
    )
)
COMMUNICATION_SHARE = define(
    Definition(
        "share/of-communication-v1",
        "ratio",
        "lower",
        "Of the time that a step's communication takes the training thread, what is spent on one kind of it (parameter "
        "part): gathering parameters, reducing gradients, all others; the mean over ranks, in steps with instruments.",
    )
)
RESIDUAL = define(
    Definition(
        "share/residual-of-a-step-v1",
        "ratio",
        "lower",
        "Share of a step that lies in none of its named parts, in steps with instruments; the mean over ranks.",
    )
)


class EndToEndSuite(ComparableSuite):
    """One training step an iteration; the optimizer's part is in it, fetching the batch is not."""

    name: ClassVar[str] = "end_to_end"
    summary: ClassVar[str] = "training steps by system, model and scale: MFU, tokens/s, bytes, memory, breakdown"
    method_version: ClassVar[int] = 1
    distributed: ClassVar[bool] = True
    valid_alone: ClassVar[bool] = True
    side_axis: ClassVar[str] = "system"
    parts: ClassVar[tuple[str, str] | None] = ("region_time", "region")
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("iteration_time", ITERATION_SECONDS),
        Metric("mfu", MFU),
        Metric("hfu", HFU),
        Metric("tokens_per_second", ITEM_RATE),
        Metric("peak_rate", PEAK_RATE),
        Metric("peak_memory", PEAK_MEMORY),
        Metric("exposed_communication", EXPOSED),
        Metric("residual_share", RESIDUAL),
        Metric("loss", LOSS),
        Metric("validation_loss", VALIDATION_LOSS),
        *(Metric("wire_bytes", WIRE_BYTES, {"collective": name}) for name in COLLECTIVES),
        *(Metric("region_time", REGION_TIME, {"region": name}) for name in REGIONS),
        *(Metric("communication_share", COMMUNICATION_SHARE, {"part": name}) for name in SHARES),
    )
    axes: ClassVar = AXES
    presets: ClassVar[Mapping[Preset, Mapping[str, Sequence[Value]]]] = {
        "quick": {name: (value,) for name, value in DEFAULTS.items()},
        "standard": {
            **{name: (value,) for name, value in DEFAULTS.items()},
            "system": ("fsdp", "ciera", "xmoe", "tutel"),
            "ranks": (4,),
        },
        "full": {
            **{name: (value,) for name, value in DEFAULTS.items()},
            "system": ("fsdp", "ciera", "xmoe", "tutel", "ted", "piper"),
            "model": ("mixtral-8x7b", "deepseek-v2", "qwen3-235b-a22b"),
            "scale": ("tiny", "small"),
            "ranks": (4,),
        },
    }

    def cases(self, preset: Preset, overrides: Mapping[str, Sequence[Value]]) -> Iterable[Case]:
        for text in overrides.get("system", ()):
            require_system(str(text))
        yield from super().cases(preset, overrides)

    def placed_params(self, case: Case, site: Site) -> Mapping[str, Value]:
        """The true number of sequences, and what MFU is held against."""
        return {"batch": batch_of(case), "convention": CONVENTION, "peak": source_of_peak(site.device)}

    def skip_reason(self, case: Case, site: Site) -> str | None:
        return refused(case, site)

    def agreements(self, case: Case, reference: Case) -> Sequence[Agreement]:
        return agreements(case, reference)

    def memory_bytes(self, case: Case, site: Site) -> int:
        """The training state if it is spread evenly: no system needs less."""
        from suites.training_case import read_training
        from suites.training_workload import STATE_BYTES, parameters_of

        try:
            training = read_training(case, site.seed)
        except (ValueError, ImportError):
            return 0
        return STATE_BYTES * parameters_of(training.recipe.architecture) // int(case["ranks"])

    def setup(self, case: Case, context: Context) -> Workload:
        from suites.training_workload import TrainingWorkload

        return TrainingWorkload(case, context)
