"""What a gate found: a comparison for each metric of each case, the verdict over all, and the exit code."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from bench.errors import EXIT_INCONCLUSIVE, EXIT_NOT_MEASURED, EXIT_OK, EXIT_REGRESSION

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.policy import Policy
    from bench.suite import Value

Verdict = Literal["pass", "improved", "regressed", "inconclusive", "new", "missing", "failed"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

SEVERITY: tuple[Verdict, ...] = ("regressed", "failed", "missing", "inconclusive", "improved", "new", "pass")
"""The order in which comparisons are shown, the worst first."""

COMPARED: tuple[Verdict, ...] = ("pass", "improved", "regressed", "inconclusive")
"""Verdicts that come from two numbers."""

GATE_REASONS = (
    "no_baseline",
    "baseline_not_measured",
    "other_machine",
    "unknown_machine",
    "other_method_version",
    "other_definition",
    "other_unit",
    "other_series",
    "vanished",
    "skipped_now",
    "required",
    "candidate_failed",
    "candidate_timeout",
    "candidate_invalid",
    "unconfirmed",
    "too_few_turns",
    "direction_changed",
    "noise_above_maximum",
)
"""Reason codes of the gate itself; those of two sets of samples are ``bench.stats.judgement.ReasonCode``."""


@dataclass(frozen=True)
class Comparison:
    """One metric of one case.

    Attributes:
        suite, method_version, case, params, metric, unit, definition: as in its rows.
        better: ``lower`` or ``higher``; empty where neither rows nor policy tell.
        verdict, reason_code, message: what became of it, why, and that in words.
        effect: relative, above zero is worse; None where there are not two numbers.
        interval: of the effect, 95 %.
        change: candidate over baseline, less one, whatever is better.
        p_value, adjusted_p_value: of this case alone, and corrected for the number of cases.
        minimum_detectable_effect: the least slowdown that these samples would have shown.
        samples_to_settle: how many more of ``counted_in`` (samples or rounds) a side would settle an
            inconclusive one.
        baseline_value, candidate_value: in ``unit``.
        baseline_samples, candidate_samples: how many there are.
        threshold: the effect that counts: the larger of ``minimum_effect`` and ``noise_floor``.
        minimum_effect: of the policy. noise_floor: measured by A/A; None where it was not.
        confirmed: whether a second, independent measurement confirmed a slowdown; None where there was none.
        waiver: why the policy lets it through; empty if it does not.
        by_turns: each turn of the one side was held against the turn of the other beside it.
    """

    suite: str
    method_version: int
    case: str
    params: Mapping[str, Value]
    metric: str
    unit: str
    definition: str
    better: str
    verdict: Verdict
    reason_code: str
    message: str
    effect: float | None = None
    interval: tuple[float, float] | None = None
    change: float | None = None
    p_value: float | None = None
    adjusted_p_value: float | None = None
    minimum_detectable_effect: float | None = None
    samples_to_settle: int | None = None
    counted_in: str = "samples"
    baseline_value: float | None = None
    candidate_value: float | None = None
    baseline_samples: int = 0
    candidate_samples: int = 0
    threshold: float | None = None
    minimum_effect: float | None = None
    noise_floor: float | None = None
    confirmed: bool | None = None
    waiver: str = ""
    by_turns: bool = False

    @property
    def waived(self) -> bool:
        return bool(self.waiver)

    @property
    def change_interval(self) -> tuple[float, float] | None:
        """The interval of ``change``."""
        if self.interval is None or self.better != "higher":
            return self.interval
        return -self.interval[1], -self.interval[0]

    @property
    def outcome(self) -> str:
        """The verdict as people read it."""
        if self.waived:
            return f"{self.verdict}, waived"
        unconfirmed = self.verdict == "regressed" and self.confirmed is None
        return f"{self.verdict}, not confirmed" if unconfirmed else self.verdict


@dataclass(frozen=True)
class GateResult:
    """A whole gate.

    Attributes:
        baseline, candidate: what each side was.
        comparisons: the worst first.
        policy: that was in force.
        skipped: series that neither side can measure on this machine.
        not_judged: series that the policy leaves out.
        notes: what the user should know, a line each.
        errors: what is wrong with the policy or the data, though a verdict was reached (an expired waiver).
        interrupted: the measuring was ended early.
    """

    baseline: str
    candidate: str
    comparisons: Sequence[Comparison]
    policy: Policy
    skipped: int = 0
    not_judged: int = 0
    notes: Sequence[str] = ()
    errors: Sequence[str] = ()
    interrupted: bool = False
    baseline_runs: Sequence[str] = ()
    candidate_runs: Sequence[str] = ()
    counts: Mapping[Verdict, int] = field(init=False)
    """Comparisons by verdict, all verdicts present; waived ones count with their verdict."""

    def __post_init__(self) -> None:
        found = Counter(comparison.verdict for comparison in self.comparisons)
        object.__setattr__(self, "counts", {verdict: found.get(verdict, 0) for verdict in VERDICTS})

    @property
    def compared(self) -> int:
        """How many pairs of numbers were compared."""
        return sum(self.counts[verdict] for verdict in COMPARED)

    @property
    def waived(self) -> int:
        return sum(comparison.waived for comparison in self.comparisons)

    @property
    def exit_code(self) -> int:
        """The first that applies: 1 a regression, 4 something not measured or nothing compared, 3 inconclusive, 0."""
        held = {comparison.verdict for comparison in self.comparisons if not comparison.waived}
        if "regressed" in held:
            return EXIT_REGRESSION
        if not self.compared or self.interrupted or held & {"missing", "failed"}:
            return EXIT_NOT_MEASURED
        return EXIT_INCONCLUSIVE if "inconclusive" in held else EXIT_OK

    @property
    def verdict(self) -> str:
        """One word for all: regressed, not measured, inconclusive or passed."""
        return {EXIT_OK: "passed", EXIT_REGRESSION: "regressed", EXIT_INCONCLUSIVE: "inconclusive"}.get(
            self.exit_code, "not measured"
        )

    @property
    def headline(self) -> str:
        """``regressed: 12 compared, 1 regressed, 10 pass, 1 inconclusive; 1 waived``."""
        return f"{self.verdict}: {self.summary}"

    @property
    def summary(self) -> str:
        """The headline after its first word."""
        parts = [f"{self.counts[verdict]:,} {verdict}" for verdict in SEVERITY if self.counts[verdict]]
        text = f"{self.compared:,} compared"
        if parts:
            text += f", {', '.join(parts)}"
        extra = [(self.waived, "waived"), (self.not_judged, "left out by the policy"), (self.skipped, "skipped")]
        told = [f"{count:,} {word}" for count, word in extra if count]
        text += f"; {', '.join(told)}" if told else ""
        if not self.compared:
            text += "; nothing was compared"
        return text + ("; interrupted" if self.interrupted else "")
