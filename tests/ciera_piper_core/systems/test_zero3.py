"""Tests of DeepSpeed's ZeRO-3: the plain model's training, nothing else on stdout, and why experts are leaf modules."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

from ciera_piper_core.alltoall.placement import even_placement
from ciera_piper_core.ranges import recording
from ciera_piper_core.systems.system import Ranks, parse_options
from ciera_piper_core.training.build import build_model
from ciera_piper_core.training.health import NonFiniteError
from ciera_piper_core.training.optimizer import make_optimizer
from ciera_piper_core.training.recipe import Routing
from tests.ciera_piper_core.systems.deepspeed_family import runs
from tests.ciera_piper_core.systems.expert_family import (
    batch,
    build,
    difference,
    plain_run,
    ranks_of,
    recipe,
    worst,
)
from tests.gloo_world import run_world

from ciera_piper_core.systems.deepspeed_engine import adamw, import_deepspeed  # isort: skip
from ciera_piper_core.systems.zero3 import Zero3System  # isort: skip

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context


def test_training_is_the_plain_models(tmp_path: Path) -> None:
    """20 steps in fp32; gradients and their norm before the first."""
    given = recipe(microbatches=2)
    wanted = plain_run(given, 20)
    (run,) = runs(tmp_path, [(Zero3System, given, "")], steps=20, world=2)
    assert difference(run.gradients, wanted.gradients) < 1e-6
    for name, gradient in wanted.gradients.items():
        assert difference({name: run.gradients[name]}, {name: gradient}) < 1e-5, name
    assert worst(run.norms[:1], wanted.norms[:1]) < 1e-6
    assert worst(run.losses, wanted.losses) < 1e-5
    assert worst(run.norms, wanted.norms) < 1e-3
    assert run.losses[-1] < run.losses[0] - 1


def test_options_and_models_change_nothing(tmp_path: Path) -> None:
    """Nothing kept whole, a second copy within nodes, tied embeddings, recomputation, loss-free routing, no leaves."""
    cases = [
        (Zero3System, recipe(), "persist=0:overlap=false"),
        (Zero3System, recipe(), "hpz=2"),
        (Zero3System, recipe(tied=True, checkpointing="full"), ""),
        (Zero3System, recipe(routing=Routing("loss_free", bias_rate=0.01), checkpointing="selective"), ""),
        (Zero3System, recipe(routing=Routing("capacity", capacity_factor=0.5)), ""),
    ]
    for run, (_, given, options) in zip(runs(tmp_path, cases, steps=3, world=4), cases, strict=True):
        wanted = plain_run(given, 3)
        what = f"{given.routing.kind} {options}"
        assert difference(run.gradients, wanted.gradients) < 1e-6, what
        assert worst(run.losses, wanted.losses) < 1e-5, what


def test_bf16_begins_with_the_unrounded_weights(tmp_path: Path) -> None:
    """DeepSpeed alone would copy masters from rounded ones; and a loss-free bias stays float32."""
    given = recipe(precision="bf16", routing=Routing("loss_free", bias_rate=1e-4))

    def body(context: Context) -> tuple[bool, float, float, str]:
        system = build(Zero3System, given, ranks_of(context))
        same = True
        if whole := system.full_parameters():
            first = dict(build_model(given).named_parameters())
            same = all(torch.equal(whole[name], first[name]) for name in first)
        losses = []
        for step in range(3):
            losses.append(system.accumulate(batch(step)))
            system.update()
        bias = next(buffer for name, buffer in system.model.named_buffers() if name.endswith("bias"))  # type: ignore[attr-defined]
        dtype = str(bias.dtype)
        system.close()
        return same, losses[0], losses[-1], dtype

    wanted = plain_run(given, 3)
    for same, first, last, dtype in run_world(2, body, tmp_path):
        assert same
        assert dtype == "torch.float32"
        assert first == pytest.approx(wanted.losses[0], rel=3e-3)
        assert last == pytest.approx(wanted.losses[2], rel=1e-2)


def test_evaluation_changes_nothing_and_stdout_stays_ours(tmp_path: Path) -> None:
    """Rows are printed on stdout, so DeepSpeed may not print there; its work is named in regions."""
    given = recipe()

    def body(context: Context) -> tuple[list[float], float, bytes, set[str]]:
        # The file, not the stream: whatever prints, by whatever way.
        out = tmp_path / f"stdout-{context.group.rank}"
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT)
        os.dup2(descriptor, 1)
        system = build(Zero3System, given, ranks_of(context))
        losses = []
        with recording() as spans:
            for step in range(3):
                losses.append(system.accumulate(batch(step)))
                system.update()
                evaluated = system.evaluate(batch(1000))
        system.close()
        return losses, evaluated, out.read_bytes(), {span.name for span in spans}

    wanted = plain_run(given, 3)
    for losses, evaluated, printed, regions in run_world(2, body, tmp_path):
        assert worst(losses, wanted.losses) < 1e-5
        assert 3 < evaluated < 7
        assert printed == b""
        assert {"parameter_gather", "gradient_reduce", "optimizer", "moe.experts", "loss"} <= regions


def test_numbers_that_are_none_stop_all_ranks(tmp_path: Path) -> None:
    """A weight that is none, on one rank: its layer is named. A gradient that is none: DeepSpeed cannot say whose."""

    def body(context: Context) -> list[str]:
        ranks = ranks_of(context)
        poisoned = build(Zero3System, recipe(), ranks, "persist=0")
        state = poisoned.state_dict()
        if context.group.rank == 1:
            state["weights"]["layers.1.routed_experts.router.weight.master"].to_local().fill_(torch.nan)
        poisoned.load_state_dict(state)
        with pytest.raises(NonFiniteError) as loss:
            poisoned.accumulate(batch(0))
        poisoned.close()
        leaping = build(Zero3System, recipe(learning_rate=1e30), ranks)
        leaping.accumulate(batch(0))
        leaping.update()
        leaping.accumulate(batch(1))
        with pytest.raises(NonFiniteError) as gradient:
            leaping.update()
        leaping.close()
        return [str(loss.value), str(gradient.value)]

    first, second = run_world(2, body, tmp_path)
    assert first == second
    assert first[0].startswith("step 0: output of layers.1.")
    assert first[1].startswith("step 1: gradient of some weight")


class _Choosy(torch.nn.Module):
    """Experts that are modules of their own, of which a pass uses one."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = torch.nn.ModuleList(torch.nn.Linear(8, 8, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor, expert: int) -> torch.Tensor:
        used: torch.Tensor = self.experts[expert](x)
        return used


@pytest.mark.parametrize("leaves", [True, False])
def test_experts_that_are_modules_need_to_be_leaves(tmp_path: Path, leaves: bool) -> None:
    """Rank r uses expert r alone (deepspeedai/DeepSpeed#4808): without leaves the loss is wrong, or a rank raises."""
    torch.manual_seed(0)
    model, x = _Choosy(), torch.randn(4, 8, requires_grad=True)
    wanted = [model(x, rank).square().mean().item() for rank in range(2)]

    def body(context: Context) -> float | str:
        deepspeed = import_deepspeed(torch.device("cpu"))
        from deepspeed.utils import set_z3_leaf_modules

        os.environ["LOCAL_RANK"] = str(context.group.rank)
        deepspeed.init_distributed(dist_backend="gloo")
        if leaves:
            set_z3_leaf_modules(model, [_Choosy])
        settings = {
            "train_micro_batch_size_per_gpu": 1,
            "zero_allow_untested_optimizer": True,
            "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
        }
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
        try:
            loss = engine(x, context.group.rank).square().mean()
            first = float(loss.detach())
            engine.backward(loss)
            engine.step()
            return first
        except (RuntimeError, AssertionError) as error:
            return str(error)

    got: list[Any]
    try:
        got = run_world(2, body, tmp_path, timeout_s=20)
    except AssertionError as error:
        # It may hang as well, or one rank's exit may take the other along.
        got = [str(error)]
    right = got == [pytest.approx(value, rel=1e-5) for value in wanted]
    assert right == leaves, got


def test_its_adamw_is_that_of_all_systems() -> None:
    given = recipe(learning_rate=2e-3, weight_decay=0.03)
    weight = torch.nn.Parameter(torch.zeros(2))
    assert adamw(given, [weight]).defaults == make_optimizer(given, {"weight": weight}).defaults


def test_refusals_say_what_to_change() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert dist.group.WORLD is not None
        ranks = Ranks(dist.group.WORLD, even_placement(1, 1), torch.device("cpu"))

        def why(options: dict[str, str] | None = None, **changes: Any) -> str | None:
            return Zero3System.refusal(recipe(**changes), ranks, parse_options(Zero3System, options or {}))

        assert why() is None
        assert "use adam" in str(why(optimizer="adafactor"))
        assert "zeropp" in str(why({"qwz": "true"}))
        assert "zeropp" in str(why({"qgz": "true"}))
        assert "hpz=2 does not divide 1 ranks" in str(why({"hpz": "2"}))
        assert "microbatches" in str(why(microbatches=3))
        two = Ranks(dist.group.WORLD, even_placement(2, 2), torch.device("cpu"))
        assert "all 1 ranks" in str(Zero3System.refusal(recipe(), two, parse_options(Zero3System, {})))
        with pytest.raises(ValueError, match=r"zero3: .* use adam"):
            Zero3System(recipe(optimizer="adafactor"), ranks, parse_options(Zero3System, {}))
    finally:
        dist.destroy_process_group()
