"""Cases of training: what their parameters become, what is refused and why, how close two of them must come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from bench.errors import UsageError
from bench.launch.site import local_site
from bench.suite import Case
from suites import training_case
from suites.end_to_end import EndToEndSuite
from suites.training_case import (
    AXES,
    DEFAULTS,
    EXPERT_CHOICE_ROUNDING,
    FIRST_ROUNDED_STEPS,
    FIRST_STEPS,
    ROUNDING,
    ROUTES_PART,
    VALIDATION_TOLERANCE,
    agreements,
    batch_of,
    read_training,
    refused,
    require_system,
)

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Agreement


def case(**changes: Any) -> Case:
    return Case({**DEFAULTS, **changes})


def of_loss(found: tuple[Agreement, ...]) -> Agreement:
    return next(agreement for agreement in found if agreement.series == "loss")


def test_every_axis_has_a_default_that_it_takes() -> None:
    assert [axis.name for axis in AXES] == list(DEFAULTS)
    for axis in AXES:
        axis.require(DEFAULTS[axis.name])


def test_parameters_become_a_recipe_and_a_system_with_all_its_options() -> None:
    training = read_training(
        case(system="fsdp:reshard=false", precision="bf16", sequence=32, microbatches=2, router="loss_free", skew=1.5),
        7,
    )
    recipe = training.recipe
    assert (recipe.precision, recipe.sequence, recipe.global_batch, recipe.seed) == ("bf16", 32, 4, 7)
    assert (recipe.routing.kind, recipe.routing.skew) == ("loss_free", 1.5)
    assert recipe.architecture.vocab == training.corpus.vocab == 256
    assert training.system.name == "fsdp"
    assert training.options == {"reshard": False}


def test_a_batch_of_nothing_is_one_sequence_a_rank_and_microbatch() -> None:
    assert batch_of(case(ranks=4, microbatches=3)) == 12
    assert batch_of(case(ranks=4, microbatches=3, batch=24)) == 24


def test_text_of_ones_own_is_read(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("to be or not to be, " * 100)
    assert "text.txt" in read_training(case(corpus=str(tmp_path / "text.txt"), sequence=16), 0).corpus.source


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch": 3}, "3 sequences"),
        ({"system": "fsdp:speed=9"}, "no option 'speed'"),
        ({"model": "mixtral"}, "unknown model"),
        ({"corpus": "/nowhere/at/all"}, "nowhere"),
        ({"tokenizer": "tokenizer.json"}, "name a corpus too"),
        ({"sequence": 10**9}, "make no sequence of 1000000000"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_a_line(changes: dict[str, Any], words: str) -> None:
    reason = refused(case(**changes), local_site(0, 2, "cpu", 0))
    assert reason is not None
    assert words in reason
    assert "\n" not in reason


def test_what_can_be_trained_is_not_refused() -> None:
    assert refused(case(), local_site(0, 2, "cpu", 0)) is None


def test_a_missing_extra_is_a_reason_and_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError("deepspeed is missing: pip install 'ciera-piper-bench[deepspeed]'")

    monkeypatch.setattr(training_case, "load_system", missing)
    assert "pip install" in (refused(case(), local_site(0, 2, "cpu", 0)) or "")


@pytest.mark.parametrize("text", ["fdsp", "fsdp:reshard", "fsdp:reshard=true:reshard=false"])
def test_systems_are_refused_before_they_are_loaded(text: str) -> None:
    with pytest.raises(UsageError):
        require_system(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [("fsdp:x=1", "no option 'x'; it has: reshard"), ("piper:pp=x", "pp is a whole number, not 'x'")],
)
def test_options_are_refused_before_anything_starts(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        require_system(text)
    with pytest.raises(UsageError, match=words):
        list(EndToEndSuite().cases("quick", {"system": (text,)}))


def test_options_of_what_is_not_installed_are_left_to_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError("deepspeed is missing")

    monkeypatch.setattr(training_case, "load_system", missing)
    assert require_system("fsdp:x=1") == "fsdp"


@pytest.mark.parametrize(("one", "other"), [("ciera", "fsdp"), ("fsdp", "ciera-off"), ("ciera", "ciera-off:block=64")])
def test_systems_of_one_lineage_must_be_equal_to_the_bit(one: str, other: str) -> None:
    for precision in ROUNDING:
        found = agreements(case(system=one, precision=precision), case(system=other, precision=precision))
        assert {(agreement.series, agreement.tolerance, agreement.first) for agreement in found} == {
            ("loss", 0.0, None),
            ("validation_loss", 0.0, None),
        }


def test_other_systems_may_be_off_by_what_both_declare() -> None:
    alone = of_loss(agreements(case(system="fsdp"), case(system="plain")))
    both = of_loss(agreements(case(system="ciera"), case(system="xmoe")))
    assert alone.tolerance == pytest.approx(1e-5)
    assert both.tolerance == pytest.approx(2e-5)
    assert both.first == FIRST_STEPS
    # Rounding may part their routes, but not those of systems that are one.
    assert both.parting == ROUTES_PART
    assert of_loss(agreements(case(system="ciera"), case(system="fsdp"))).parting is None
    # Who rounds weights chooses other experts from the first step on, and has room for it.
    assert of_loss(agreements(case(system="zeropp"), case(system="fsdp"))).parting is None


def test_where_experts_choose_fewer_steps_are_held() -> None:
    # Experts are always full, so that counts are equal whoever was chosen.
    found = of_loss(agreements(case(router="expert_choice"), case(router="expert_choice", system="xmoe")))
    assert (found.tolerance, found.first, found.parting) == (EXPERT_CHOICE_ROUNDING, FIRST_ROUNDED_STEPS, None)
    same = of_loss(agreements(case(router="expert_choice"), case(router="expert_choice", system="ciera")))
    assert (same.tolerance, same.first) == (0.0, None)


def test_half_precision_may_round_its_losses() -> None:
    found = agreements(case(system="fsdp", precision="bf16"), case(system="xmoe", precision="bf16"))
    assert of_loss(found).tolerance == ROUNDING["bf16"]
    # Later plain itself is further than that from its own float32.
    assert of_loss(found).first == FIRST_ROUNDED_STEPS
    assert of_loss(found).parting is None
    validation = next(agreement for agreement in found if agreement.series == "validation_loss")
    assert validation.tolerance == max(VALIDATION_TOLERANCE, ROUNDING["bf16"])
    gradients = agreements(case(system="fsdp", gradient_precision="bf16"), case(system="xmoe"))
    assert of_loss(gradients).tolerance == ROUNDING["bf16"]
    assert of_loss(gradients).first == FIRST_ROUNDED_STEPS
