"""The gain suite: its cases, its two states, a check that can fail, and what its metrics mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from bench.definitions import Work
from bench.suite import PRESETS, Case, Context, Site
from suites import gain
from suites.gain import CHOICE_COST, GAIN_ERROR, MEASURED_GAIN, GainSuite
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

SUITE = GainSuite()


def case_of(**params: Any) -> Case:
    defaults = {"ranks": 2, "mode": "auto", "dtype": "bfloat16", "bytes_per_rank": 8192, "change_rate": 0.01}
    return Case({**defaults, **params})


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calibrations that take no time."""
    monkeypatch.setattr(gain, "CALIBRATION_S", 0.05)


def test_presets_are_cases_that_can_run() -> None:
    for preset in PRESETS:
        cases = list(SUITE.cases(preset, {}))
        assert cases
        assert all(SUITE.skip_reason(case, Site(world=case["ranks"])) is None for case in cases)
    assert len(list(SUITE.cases("quick", {}))) == 9


def test_skip_reasons() -> None:
    assert SUITE.skip_reason(case_of(ranks=1), Site()) == "a gather needs at least 2 ranks"
    assert SUITE.skip_reason(case_of(change_rate=1.5), Site()) == "a change rate is at most 1, not 1.5"
    reason = SUITE.skip_reason(case_of(bytes_per_rank=6, dtype="float32"), Site())
    assert reason == "6 bytes are no whole number of float32 values"


def test_no_row_is_a_point_of_a_latency_curve() -> None:
    # bench.profile_builder makes curves of rows with latency, bytes and ranks.
    assert "bytes" not in {axis.name for axis in SUITE.axes}
    assert "codec" in SUITE.placed_params(case_of(), Site())


def test_metrics_compare_what_was_predicted_with_what_was_measured() -> None:
    work = Work(predicted_seconds=2.0, predicted_baseline_seconds=3.0)
    assert MEASURED_GAIN.against_baseline is not None
    assert GAIN_ERROR.against_baseline is not None
    assert CHOICE_COST.against_baseline is not None
    assert MEASURED_GAIN.against_baseline(2.5, 4.0, work) == 1.5e6
    assert GAIN_ERROR.against_baseline(2.5, 4.0, work) == pytest.approx(0.5 / 4)
    # A right choice, and a wrong one: it is predicted to be faster, and is slower.
    assert CHOICE_COST.against_baseline(2.5, 4.0, work) == 1.0
    assert CHOICE_COST.against_baseline(5.0, 4.0, work) == 1.25
    # Too little is predicted to compress, whatever comes out.
    little = Work(predicted_seconds=2.8, predicted_baseline_seconds=3.0)
    assert CHOICE_COST.against_baseline(5.0, 4.0, little) == 1.0
    assert CHOICE_COST.against_baseline(2.0, 4.0, little) == 2.0


@pytest.mark.parametrize("params", [{}, {"mode": "block", "dtype": "float16", "change_rate": 1.0}])
def test_right_gathers_pass_and_wrong_ones_are_counted(params: dict[str, Any], tmp_path: Path) -> None:
    def body(context: Context) -> tuple[Any, ...]:
        workload: Any = SUITE.setup(case_of(**params), context)
        for _ in range(3):
            workload.prepare()
            workload.run()
            workload.prepare()
            workload.baseline()
        right = workload.check()
        coded = workload._gather.statistics.gathers["coded"]
        observed = workload.observations()["predicted_gain"]
        work = workload.work
        # One value of the other rank, in the plain output of the last check, then in the gathered one.
        call, kept = workload.baseline, workload.run
        wrong = []

        def spoil(name: str, original: Any, out: Any) -> None:
            def spoiled() -> None:
                original()
                out.view(torch.int16)[5] ^= 1

            setattr(workload, name, spoiled)

        spoil("baseline", call, workload._plain_out)
        wrong.append(workload.check())
        workload.baseline = call
        spoil("run", kept, workload._out)
        wrong.append(workload.check())
        workload.run = kept
        workload.close()
        # A second case on the same ranks uses what was calibrated, and the same connections.
        again: Any = SUITE.setup(case_of(**{**params, "change_rate": 0.5}), context)
        again.run()
        assert again.check() == 0
        again.close()
        assert len(context.scratch[gain.CALIBRATIONS]) == 1
        return right, wrong, coded, len(observed), work.predicted_seconds, work.predicted_baseline_seconds

    ranks = run_world(2, body, tmp_path, timeout_s=100)
    assert ranks[0] == ranks[1]
    right, wrong, coded, observed, predicted, plain = ranks[0]
    assert (right, wrong, observed) == (0, [2, 2], 1)
    assert coded >= 2
    assert predicted > 0
    assert plain > 0
