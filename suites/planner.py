"""How fast the planner answers: the full search for a model on a platform, and strategies estimated a second."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from bench.definitions import Definition, Work, define
from bench.errors import UsageError
from bench.suite import Axis, Metric, Suite, Workload
from ciera_piper_core.models import catalogue

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bench.suite import Case, Context, Preset, Site, Value
    from ciera_piper_core.planner.schedules import Schedule
    from ciera_piper_core.planner.search import Plan
    from ciera_piper_core.planner.strategy import Strategy

SEARCH_SECONDS = define(
    Definition(
        "duration/plan-search-v1",
        "s",
        "lower",
        "Time of the whole search in one process: candidates, memory, time, ranking. Model and platform are read "
        "before.",
        lambda seconds, work: seconds,
    )
)
STRATEGIES_PER_SECOND = define(
    Definition(
        "rate/plan-strategies-v1",
        "1/s",
        "higher",
        "Strategies whose memory and step time were estimated, over the time of the whole search.",
        lambda seconds, work: work.bytes / seconds,
    )
)

SAMPLED = 16
"""Strategies that the check compares with the oracle."""

MOST_OPERATIONS = 4_500
"""A sampled strategy with more microbatch-stages than this is passed over: the oracle runs them one by one."""

RELATIVE_TOLERANCE = 1e-6
BOUNDED_TOLERANCE = 0.08
"""Of the time, where the schedule's closed form is an estimate or a bound."""


class PlannerSuite(Suite):
    """The search of ``bench plan``."""

    name: ClassVar[str] = "planner"
    summary: ClassVar[str] = "full strategy search: time, and strategies estimated a second"
    method_version: ClassVar[int] = 1
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("search_seconds", SEARCH_SECONDS),
        Metric("strategies_per_second", STRATEGIES_PER_SECOND),
    )
    axes: ClassVar[tuple[Axis, ...]] = (
        Axis("model", "str", "architecture of the catalogue", tuple(catalogue.names())),
        Axis("platform", "str", "built-in platform, or path of a profile"),
        Axis("gpus", "int", "GPUs of it", minimum=1),
    )
    presets: ClassVar[Mapping[Preset, Mapping[str, Sequence[Value]]]] = {
        "quick": {"model": ("deepseek-v3", "kimi-k2"), "platform": ("frontier",), "gpus": (4096,)},
        "standard": {
            "model": ("mixtral-8x7b", "qwen3-235b-a22b", "deepseek-v3", "kimi-k2"),
            "platform": ("frontier", "dgx-h200"),
            "gpus": (512, 4096),
        },
        "full": {
            "model": ("olmoe-1b-7b", "mixtral-8x7b", "qwen3-235b-a22b", "llama-4-maverick", "deepseek-v3", "kimi-k2"),
            "platform": ("frontier", "dgx-a100", "dgx-h200"),
            "gpus": (8, 64, 512, 4096),
        },
    }

    def cases(self, preset: Preset, overrides: Mapping[str, Sequence[Value]]) -> Iterator[Case]:
        if "platform" in overrides:
            # The platforms' package needs numpy, which a mere list of suites must not load.
            from ciera_piper_core.platforms import load_platform

            for platform in overrides["platform"]:
                try:
                    load_platform(str(platform))
                except ValueError as error:
                    raise UsageError(str(error)) from None
        yield from super().cases(preset, overrides)

    def skip_reason(self, case: Case, site: Site) -> str | None:
        from ciera_piper_core.platforms import load_platform

        most = load_platform(case["platform"]).max_gpus
        return f"{case['platform']} has {most} GPUs" if int(case["gpus"]) > most else None

    def setup(self, case: Case, context: Context) -> _Search:
        return _Search(case, context.site.seed)


class _Search(Workload):
    """One search, from nothing but the model and the platform."""

    def __init__(self, case: Case, seed: int) -> None:
        from ciera_piper_core.planner.search import search
        from ciera_piper_core.planner.strategy import Question
        from ciera_piper_core.platforms import load_platform

        platform = load_platform(case["platform"])
        self._question = Question(catalogue.load(case["model"]), platform, int(case["gpus"]))
        self._seed = seed
        self.plan: Plan | None = None
        self._search = search
        # Strategies stand in for bytes: the rate is theirs.
        self.work = Work(bytes=search(self._question).evaluated)

    def run(self) -> None:
        self.plan = self._search(self._question)

    def check(self) -> int:
        """Sampled strategies whose memory, time, MFU or HFU is not the oracle's; all of them before any run."""
        import numpy as np

        plan = self.plan
        if plan is None:
            return SAMPLED
        if plan.evaluated != self.work.bytes:
            return 1
        random = np.random.default_rng(self._seed)
        sample = random.permutation(len(plan))[: 4 * SAMPLED]
        chosen = [int(place) for place in sample if _is_short(plan.fitting[int(place)])][:SAMPLED]
        return sum(self._is_wrong(plan, place) for place in chosen)

    def _is_wrong(self, plan: Plan, place: int) -> bool:
        from ciera_piper_core.planner.estimate_reference import reference_estimate

        prediction = plan[place]
        strategy = prediction.strategy
        reference = reference_estimate(self._question, strategy, simulated=prediction.simulated)
        memory = max(reference.rank_bytes)
        wrong = abs(prediction.peak_memory_bytes - memory) > 1 + RELATIVE_TOLERANCE * memory
        exact = prediction.simulated or self._is_exact(plan, strategy)
        allowed = RELATIVE_TOLERANCE if exact else BOUNDED_TOLERANCE
        # What was predicted of the time is in all three numbers.
        for predicted, right in (
            (prediction.step_seconds, reference.step_seconds),
            (prediction.mfu, reference.mfu),
            (prediction.hfu, reference.hfu),
        ):
            wrong |= abs(predicted / right - 1) > allowed
        return bool(wrong)

    def _is_exact(self, plan: Plan, strategy: Strategy) -> bool:
        """Whether the schedule's closed form is exact here."""
        import numpy as np

        from ciera_piper_core.planner.estimate import columns_of
        from ciera_piper_core.planner.schedule_cost import is_exact

        rows = columns_of(strategy)
        schedule: Schedule = strategy.schedule  # type: ignore[assignment]
        ranks = plan.estimator.timing.rank_seconds(strategy.pp, schedule, rows)
        slowest = int(np.argmax((ranks[0] + ranks[1] + ranks[2])[0]))
        forward, backward, weight = (float(part[0, slowest]) for part in ranks)
        hop = float(plan.estimator.timing.hop_seconds(rows)[0])
        return bool(is_exact(schedule, strategy.pp, strategy.microbatches, forward, backward, weight, hop))


def _is_short(strategy: Strategy) -> bool:
    return strategy.pp * strategy.microbatches <= MOST_OPERATIONS
