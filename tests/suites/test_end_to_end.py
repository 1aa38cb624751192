"""The end-to-end suite in real gloo worlds: its rows, its oracle, right systems and one that cheats."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from bench.errors import UsageError
from bench.launch.site import local_site
from bench.measure.runner import run_case
from bench.measure.sampling import Sampling
from bench.suite import PRESETS, Case, Context
from ciera_piper_core.models.flops import model_flops
from ciera_piper_core.models.parameters import model_parameters
from ciera_piper_core.systems.plain import Plain
from ciera_piper_core.training.regions import REGIONS
from suites import training_case, training_peak
from suites.end_to_end import EndToEndSuite
from suites.training_case import DEFAULTS, read_training
from suites.training_workload import TrainingWorkload, digest, parameters_of, work_of
from tests.gloo_world import run_world
from tests.program import command, environment, json_lines

if TYPE_CHECKING:
    from pathlib import Path

    from bench.store.row import Row

SUITE = EndToEndSuite()
FEW = Sampling(1, 10**9, min_samples=3, max_samples=3, warmup_time_ns=0, warmup_samples=1)


@pytest.fixture(autouse=True)
def _short_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peak is not what is tested; forked ranks inherit it."""
    monkeypatch.setattr(training_peak, "EDGES", (32,))
    monkeypatch.setattr(training_peak, "SECONDS", 0.01)
    # Two small products may be slower than a whole step: the peak is then no ceiling.
    monkeypatch.setattr("suites.training_workload.peak_flops_per_second", lambda context, precision: 1e15)


def case(**changes: Any) -> Case:
    return Case({**DEFAULTS, "sequence": 32, **changes})


def measured(case: Case, folder: Path, world: int = 2) -> list[Row]:
    def body(context: Context) -> list[dict[str, Any]]:
        return [row.to_dict() for row in run_case(SUITE, case, context, FEW)]

    from bench.store.row import Row

    return [Row.from_dict(record) for record in run_world(world, body, folder)[0]]


def keyed(rows: list[Row]) -> dict[str, Row]:
    return {f"{row.metric}:{row.params.get('collective', '')}{row.params.get('region', '')}": row for row in rows}


def test_a_training_system_is_measured_and_checked(tmp_path: Path) -> None:
    rows = keyed(measured(case(system="fsdp"), tmp_path))
    assert {row.status for row in rows.values()} == {"ok"}, {row.reason for row in rows.values() if row.reason}
    assert {row.wrong for row in rows.values()} == {0}
    losses = rows["loss:"].samples
    assert len(losses) == 4
    assert 5.0 < losses[0] < 6.5
    assert losses[-1] < losses[0]
    assert rows["wire_bytes:all_gather"].value == pytest.approx(_gathered_bytes(), rel=0.02)
    parts = sum(
        row.value or 0.0 for name, row in rows.items() if name.startswith("wire_bytes:") and not name.endswith("total")
    )
    assert rows["wire_bytes:total"].value == pytest.approx(parts)
    regions = {name: row.value or 0.0 for name, row in rows.items() if name.startswith("region_time:")}
    assert len(regions) == len(REGIONS)
    assert regions["region_time:parameter_gather"] > 0
    assert 0 <= (rows["residual_share:"].value or 0.0) < 1
    params = rows["mfu:"].params
    assert (params["convention"], params["peak"], params["batch"]) == ("causal", "measured", 2)


def _gathered_bytes() -> float:
    """Layers are gathered twice a step and the rest once; each of two ranks sends its half, in float32."""
    whole = model_parameters(read_training(case(), 0).recipe.architecture, mtp=False)
    once = whole.embedding + whole.output
    return 4.0 * (2 * (whole.total - once) + once)


def test_a_system_that_skips_its_updates_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lazy(Plain):
        name = "lazy"

        def update(self) -> float:
            self.weights.clear()
            return 0.0

    load = training_case.load_system
    monkeypatch.setattr(training_case, "load_system", lambda name: Lazy if name == "fsdp" else load(name))
    rows = measured(case(system="fsdp"), tmp_path, world=1)
    # Its first loss is right, and no other.
    assert {row.status for row in rows} == {"failed"}
    assert {row.wrong for row in rows} == {2}


def test_one_rank_alone_is_a_measurement(tmp_path: Path) -> None:
    rows = keyed(measured(case(system="plain", ranks=1, batch=2), tmp_path, world=1))
    assert rows["iteration_time:"].status == "ok"
    assert rows["wire_bytes:total"].value == 0


def test_a_refused_case_is_skipped_with_its_reason(tmp_path: Path) -> None:
    rows = measured(case(system="fsdp", batch=3), tmp_path)
    assert {row.status for row in rows} == {"skipped"}
    assert "3 sequences" in rows[0].reason


@pytest.mark.slow
def test_a_case_that_memory_does_not_hold_is_a_row_and_the_sweep_goes_on(tmp_path: Path) -> None:
    """Real ranks with 3 GiB of address space each; of the larger batch, the activations of a layer have more."""
    run = command("run", "end_to_end", "--set", "batch=2,100000", "--max-time", "0.2", "--json", "-")
    limited = ["bash", "-c", 'ulimit -v 3145728 && exec "$@"', "limited", *run]
    done = subprocess.run(
        limited, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 4, done.stderr
    rows = json_lines(done.stdout)
    too_large = [row for row in rows if row["params"]["batch"] == 100000]
    assert {row["status"] for row in too_large} == {"failed"}
    assert re.search(r"rank \d raised .*memory", too_large[0]["reason"])
    assert {row["status"] for row in rows if row["params"]["batch"] == 2} == {"ok"}


def test_conditions_tell_trainings_apart() -> None:
    def conditions(seed: int = 0, **changes: Any) -> dict[str, Any]:
        context = Context(replace(local_site(0, 1, "cpu", seed)), _alone())
        workload = TrainingWorkload(case(system="plain", ranks=1, batch=2, **changes), context)
        return dict(workload.conditions())

    usual = conditions()
    assert conditions() == usual
    assert conditions(seed=1)["weights"] != usual["weights"]
    assert conditions(seed=1)["data"] != usual["data"]
    for name, value in (("microbatches", 2), ("checkpointing", "full"), ("optimizer", "adafactor")):
        assert conditions(**{name: value})[name] == value != usual[name]
    assert conditions(router="capacity")["routing_kind"] == "capacity" != usual["routing_kind"]


def _alone() -> Any:
    from bench.measure.group import RankGroup

    return RankGroup()


def test_work_is_that_of_the_model_and_of_what_is_computed_again() -> None:
    recipe = read_training(case(checkpointing="full"), 0).recipe
    work = work_of(recipe, 1e12)
    flops = model_flops(recipe.architecture, 32, "causal")
    assert work.flops == pytest.approx(2 * 32 * flops.total)
    assert work.executed_flops == pytest.approx(2 * 32 * (flops.total + flops.forward - flops.output))
    assert work.items == 64
    none = work_of(read_training(case(), 0).recipe, 1e12)
    assert none.executed_flops == none.flops


def test_a_digest_follows_every_bit_and_name() -> None:
    import torch

    one = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([[3.0]])}
    assert digest(one) == digest(dict(reversed(one.items())))
    for other in (
        {**one, "a": torch.tensor([1.0, 2.0000002])},
        {**one, "b": torch.tensor([3.0])},
        {"a": one["a"], "c": one["b"]},
        {**one, "a": torch.tensor([-0.0, 2.0])},
    ):
        assert digest(other) != digest(one)


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_make_cases_that_fit_their_axes(preset: Any) -> None:
    cases = list(SUITE.cases(preset, {}))
    assert cases
    for one in cases:
        for axis in SUITE.axes:
            axis.require(one[axis.name])


def test_an_unknown_system_is_refused_when_cases_are_made() -> None:
    with pytest.raises(UsageError, match="unknown system"):
        list(SUITE.cases("quick", {"system": ["fdsp"]}))


def test_memory_is_at_least_the_evenly_spread_state() -> None:
    parameters = parameters_of(read_training(case(), 0).recipe.architecture)
    assert SUITE.memory_bytes(case(), local_site(0, 2, "cpu", 0)) == 20 * parameters // 2
