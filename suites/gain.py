"""The gain model against the clock: what compressing a gather is predicted to save, and what it saves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from bench.definitions import LATENCY, Definition, Work, define
from bench.suite import Axis, Metric, Suite, Workload
from suites.communication import KIB, MIB, RANKS, WORKING_BYTES
from suites.tensors import ITEM_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.suite import Case, Context, Preset, Site, Value
    from ciera_piper_core.allgather.calibration import Calibration
    from ciera_piper_core.allgather.lane import GatherLane

MARGIN = 0.10
"""Share of the plain gather's time that the prediction must save before ``auto`` compresses."""

CALIBRATION_S = 3.0
WARM_GATHERS = 8
"""Before anything is recorded: the first gather is plain, and later ones learn how much room is needed."""

RECORDED_GATHERS = 8
POISON = 0xA5
"""Outputs hold it before the check's gathers."""

CALIBRATIONS, LANE = "gain/calibrations", "gain/lane"
"""In ``Context.scratch``."""

BUFFERS = 15
"""Most memory that a rank needs, in units of all shards together: values, payloads, caches, calibration."""


def _choice_cost(seconds: float, baseline: float, work: Work) -> float:
    """Time of what the prediction chooses over that of the better of the two."""
    predicted, plain = work.predicted_seconds or 0.0, work.predicted_baseline_seconds or 0.0
    chosen = seconds if plain - predicted > MARGIN * plain else baseline
    return chosen / min(seconds, baseline)


def _gain_error(seconds: float, baseline: float, work: Work) -> float:
    """Distance of the predicted from the measured gain, over the plain gather's time."""
    predicted = (work.predicted_baseline_seconds or 0.0) - (work.predicted_seconds or 0.0)
    return abs(predicted - (baseline - seconds)) / baseline


MEASURED_GAIN = define(
    Definition(
        "gain/measured-v1",
        "us",
        "higher",
        "Duration of the library's all-gather of the same shards less that of the compressed gather, each the slowest "
        "rank's; below 0 where compressing is slower. The two take turns in the same ranks.",
        against_baseline=lambda seconds, baseline, work: (baseline - seconds) * 1e6,
    )
)
PREDICTED_GAIN = define(
    Definition(
        "gain/predicted-v1",
        "us",
        "higher",
        "What the gain model says of the same: Comm(S) less Comm of the compressed payload, hashing, coding and "
        "decoding, from a calibration on the same ranks and a recorded trace of changes.",
    )
)
GAIN_ERROR = define(
    Definition(
        "gain_error/over-plain-v1",
        "ratio",
        "lower",
        "Distance between the predicted and the measured gain, over the measured duration of the plain gather.",
        against_baseline=_gain_error,
    )
)
CHOICE_COST = define(
    Definition(
        "choice_cost/over-best-v1",
        "ratio",
        "lower",
        "Measured duration of what the prediction chooses (the compressed gather if it is to gain more than 10 % of "
        "the plain one's time, else the plain one) over that of the faster of the two: 1 for a right choice.",
        against_baseline=_choice_cost,
    )
)


class GainSuite(Suite):
    """Predicted and measured gain of one gather whose shards change at a known rate."""

    name: ClassVar[str] = "gain"
    summary: ClassVar[str] = "gain of compressing an all-gather: predicted against measured"
    method_version: ClassVar[int] = 2
    distributed: ClassVar[bool] = True
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("latency", LATENCY),
        Metric("measured_gain", MEASURED_GAIN),
        Metric("predicted_gain", PREDICTED_GAIN),
        Metric("gain_error", GAIN_ERROR),
        Metric("choice_cost", CHOICE_COST),
    )
    axes: ClassVar[tuple[Axis, ...]] = (
        RANKS,
        Axis("mode", "str", "how changed exponents are coded", ("block", "delta", "auto")),
        Axis("dtype", "str", "type of the values", ("bfloat16", "float16", "float32")),
        Axis("bytes_per_rank", "bytes", "size of a rank's shard", minimum=4),
        Axis("change_rate", "float", "share of exponents that differ from the last gather's, 0 to 1", minimum=0),
    )
    presets: ClassVar[Mapping[Preset, Mapping[str, Sequence[Value]]]] = {
        "quick": {
            "ranks": (2,),
            "mode": ("auto",),
            "dtype": ("bfloat16",),
            "bytes_per_rank": (64 * KIB, MIB, 16 * MIB),
            "change_rate": (0.0, 0.01, 1.0),
        },
        "standard": {
            "ranks": (2, 4),
            "mode": ("block", "delta", "auto"),
            "dtype": ("bfloat16",),
            "bytes_per_rank": (16 * KIB, 256 * KIB, 4 * MIB, 16 * MIB),
            "change_rate": (0.0, 0.001, 0.01, 0.1, 1.0),
        },
        "full": {
            "ranks": (2, 4, 8),
            "mode": ("block", "delta", "auto"),
            "dtype": ("bfloat16", "float16", "float32"),
            "bytes_per_rank": (4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB),
            "change_rate": (0.0, 0.001, 0.01, 0.1, 1.0),
        },
    }

    def skip_reason(self, case: Case, site: Site) -> str | None:
        if case["ranks"] < 2:
            return "a gather needs at least 2 ranks"
        if case["change_rate"] > 1:
            return f"a change rate is at most 1, not {case['change_rate']:g}"
        if case["bytes_per_rank"] % ITEM_BYTES[case["dtype"]]:
            return f"{case['bytes_per_rank']} bytes are no whole number of {case['dtype']} values"
        return None

    def placed_params(self, case: Case, site: Site) -> Mapping[str, Value]:
        """What codes, since what is measured depends on it."""
        from ciera_piper_core.exponents.backend import default_backend

        backend = default_backend(site.device, threads=site.cores)
        return {"codec": f"{backend.name} {backend.isa}".strip(), "threads": backend.threads}

    def memory_bytes(self, case: Case, site: Site) -> int:
        return BUFFERS * int(case["bytes_per_rank"]) * int(case["ranks"]) + WORKING_BYTES

    def setup(self, case: Case, context: Context) -> Workload:
        return _Gathers(case, context)


class _Gathers(Workload):
    """The compressed gather; its baseline is the library's, of the same shards."""

    def __init__(self, case: Case, context: Context) -> None:
        import torch

        from ciera_piper_core.allgather.communicator import CompressedGather
        from ciera_piper_core.allgather.plan import CodingSettings, GatherPlan
        from ciera_piper_core.exponents.backend import default_backend
        from ciera_piper_core.exponents.layout import layout_of
        from suites.changing_shards import ChangingShards
        from suites.tensors import torch_dtype

        site, group = context.site, context.group
        layout = layout_of(torch_dtype(case["dtype"]))
        values = int(case["bytes_per_rank"]) // layout.value_bytes
        self._backend = default_backend(site.device, threads=site.cores)
        self._plan = GatherPlan.single(values, layout.dtype, CodingSettings(mode=case["mode"]))
        self._world, self._rank, self._group = group.world, group.rank, group.data
        self._shards = ChangingShards(values, layout, float(case["change_rate"]), False, site.seed)
        # The baseline turns between states of its own: it would find those that ``run`` has just read in the cache.
        self._states, self._plain_states = (
            [self._shards.of(group.rank, 0, state).view(layout.dtype).to(site.device) for state in (0, 1)]
            for _ in range(2)
        )
        self._state = self._plain_state = 0
        self._out = torch.empty(values * group.world, dtype=layout.dtype, device=site.device)
        self._plain_out = torch.empty_like(self._out)
        context.alive()
        calibration = self._calibration(case, context)
        context.alive()
        self._gather = CompressedGather(self._plan, backend=self._backend, lane=_lane(context))
        predicted, plain = self._prediction(calibration, context)
        self._predicted_gain_us = (plain - predicted) * 1e6
        self.work = Work(
            bytes=self._out.nbytes,
            # Below 0 it would be no time; a model that says so is wrong, and the error shows it.
            predicted_seconds=max(predicted, 0.0),
            predicted_baseline_seconds=plain,
        )

    def run(self) -> None:
        self._state ^= 1
        self._gather.gather(self._states[self._state], self._out)

    def baseline(self) -> None:
        import torch.distributed as dist

        self._plain_state ^= 1
        dist.all_gather_single(self._plain_out, self._plain_states[self._plain_state], group=self._group)

    def check(self) -> int:
        """Values of any rank that are not its own, bit for bit; both states, compressed and plain."""
        import torch

        wrong = 0
        for _ in range(2):
            for out in (self._out, self._plain_out):
                out.view(torch.uint8).fill_(POISON)
            self.run()
            self.baseline()
            for out, state in ((self._out, self._state), (self._plain_out, self._plain_state)):
                for rank, part in enumerate(out.view(self._world, -1)):
                    expected = self._shards.of(rank, 0, state)
                    wrong += int((part.cpu().view(expected.dtype) != expected).sum())
        return wrong

    def observations(self) -> Mapping[str, Sequence[float]]:
        return {"predicted_gain": [self._predicted_gain_us]}

    def close(self) -> None:
        self._gather.close()

    def _calibration(self, case: Case, context: Context) -> Calibration:
        """Measured once for a size, a mode and a type, whatever the rate (collective)."""
        from ciera_piper_core.allgather.calibration import calibrate

        known: dict[Any, Calibration] = context.scratch.setdefault(CALIBRATIONS, {})
        key = self._world, case["mode"], case["dtype"], int(case["bytes_per_rank"])
        # Ranks must agree whether to measure: one that was started again has forgotten.
        if not all(context.group.gather_objects(key in known)):
            known[key] = calibrate(
                [self._plan.shard_bytes],
                self._plan.layout,
                self._backend,
                self._group,
                self._plan.settings,
                nodes=context.site.nodes,
                lane=_lane(context),
                device=context.site.device,
                budget_s=CALIBRATION_S,
            )
        return known[key]

    def _prediction(self, calibration: Calibration, context: Context) -> tuple[float, float]:
        """Seconds of the compressed and of the plain gather, from a trace of what changes (collective)."""
        from ciera_piper_core.allgather.change_trace import TraceRecorder, trace_of
        from ciera_piper_core.allgather.gain import GainModel, predict
        from ciera_piper_core.allgather.selection import plan_traffic

        for _ in range(WARM_GATHERS):
            self.run()
            context.alive()
        recorder = TraceRecorder(self._plan)
        self._gather.on_sample = recorder.add
        for _ in range(RECORDED_GATHERS):
            self.run()
            context.alive()
        self._gather.on_sample = None
        trace = trace_of([recorder], self._group, "the suite's shards")
        model = GainModel(calibration.comm, calibration.kernels, margin=MARGIN)
        traffic = plan_traffic(self._plan, trace)
        gain = predict(traffic, model, {segment.name for segment in self._plan.segments})
        return gain.predicted_s, gain.plain_s


def _lane(context: Context) -> GatherLane:
    """One for all cases of this group of ranks: threads, buffers and connections stay."""
    from ciera_piper_core.allgather.lane import GatherLane

    lane: GatherLane | None = context.scratch.get(LANE)
    if lane is None:
        lane = context.scratch[LANE] = GatherLane(context.group.data, device=context.site.device)
    return lane
