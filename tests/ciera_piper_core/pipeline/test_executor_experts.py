"""Expert parallelism inside of stages: every schedule gives the plain model's losses and gradients, on PP 2 x EP 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist

from ciera_piper_core.alltoall import make_all_to_all
from ciera_piper_core.alltoall.flat_dispatch import FlatDispatch
from ciera_piper_core.alltoall.placement import even_placement
from ciera_piper_core.models.loss import token_loss
from ciera_piper_core.moe.expert_parallel import ExpertParallel, spread_experts
from ciera_piper_core.moe.expert_table import ExpertTable
from ciera_piper_core.pipeline.executor import Executor, Microbatch
from ciera_piper_core.pipeline.mesh import MeshShape
from ciera_piper_core.pipeline.schedules import SCHEDULES, rank_stages
from ciera_piper_core.pipeline.stages import Stages, keep_rank, stage_module
from ciera_piper_core.systems.rank_mesh import RankMesh
from ciera_piper_core.systems.system import Ranks
from ciera_piper_core.training.recipe import Routing
from tests.ciera_piper_core.pipeline.small_model import HIDDEN, VOCAB, small_transformer
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context
    from ciera_piper_core.models.feed_forward import RoutedExperts

LAYERS, SEQUENCES, LENGTH, MICROBATCHES = 4, 1, 12, 4
SHAPE = MeshShape(pp=2, dp=1, ep=2)


def text() -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and targets of a step, of both data ranks."""
    generator = torch.Generator().manual_seed(7)
    batch = torch.randint(VOCAB, (2 * MICROBATCHES * SEQUENCES, LENGTH + 1), generator=generator)
    return batch[:, :-1], batch[:, 1:]


def favourites_on_first(plain: RoutedExperts) -> ExpertTable:
    """A table by which the two experts that a strong skew favours are on the first rank."""
    assert plain.router.skew_scores is not None
    first, second, *rest = plain.router.skew_scores.argsort(descending=True).tolist()
    return ExpertTable(((first, second), tuple(rest)))


def check(schedule: str, mesh: RankMesh, *, forced: bool = False) -> None:
    """One step against the plain model."""
    routing = Routing(skew=100) if forced else None
    reference = small_transformer(LAYERS, routing=routing)
    tokens, targets = text()
    whole = token_loss(reference(tokens), targets)
    # The batch is one microbatch here, so the auxiliary loss counts once.
    whole.backward()
    expected = {name: p.grad for name, p in reference.named_parameters() if p.grad is not None}

    pp, data = mesh.coordinate("pp"), mesh.coordinate("ep")
    stages = Stages.evenly(LAYERS, rank_stages(schedule, SHAPE.pp))
    model = small_transformer(LAYERS, routing=routing)
    keep_rank(model, stages, pp)

    def replacement(name: str, plain: RoutedExperts) -> ExpertParallel:
        group = mesh.group("ep")
        dispatcher = FlatDispatch(group, even_placement(2, 2), make_all_to_all("flat", group))
        made = ExpertParallel(plain, group, dispatcher, favourites_on_first(plain) if forced else None)
        with torch.no_grad():
            for kind, weight in made.experts.named_parameters():
                weight.copy_(getattr(plain.experts, kind)[list(made.local_experts)])
        return made

    spread = spread_experts(model, replacement)
    run = Executor(
        {stage: stage_module(model, stages, stage) for stage in stages.of_rank[pp]},
        stages,
        schedule,
        MICROBATCHES,
        Microbatch(SEQUENCES, LENGTH, HIDDEN, VOCAB, torch.float32),
        mesh.group("pp"),
        torch.device("cpu"),
    )
    run.loss_weight = 1 / (MICROBATCHES * SHAPE.data_width)
    model.auxiliary.value = run.loss_weight
    losses = run.step(tokens.chunk(2)[data], targets.chunk(2)[data])
    if run.has_last:
        total = torch.stack(losses).sum() * run.loss_weight
        dist.all_reduce(total, group=mesh.group("ep"))
        assert float(total) == pytest.approx(float(whole.detach()), rel=1e-6)
    if forced:
        # Every choice of every token is of an expert on the first rank.
        others = [module.experts.up.grad for module in spread.values() if data == 1]
        assert all(gradient is None or not gradient.any() for gradient in others)
    for name, parameter in model.named_parameters():
        gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
        other = expected[name]
        if ".routed_experts.experts." in name:
            other = other[list(spread[name.partition(".experts.")[0]].local_experts)]
        else:
            dist.all_reduce(gradient, group=mesh.group("ep"))
        assert (gradient - other).norm() <= 1e-6 * expected[name].norm(), (schedule, name)


def world(folder: Path, *, forced: bool) -> None:
    def body(context: Context) -> None:
        group = dist.group.WORLD
        assert group is not None
        mesh = RankMesh(Ranks(group, even_placement(4, 4), torch.device("cpu")), SHAPE.sizes)
        for schedule in SCHEDULES:
            check(schedule, mesh, forced=forced)

    run_world(4, body, folder)


def test_every_schedule_with_expert_parallelism(tmp_path: Path) -> None:
    world(tmp_path, forced=False)


def test_every_schedule_with_experts_and_ranks_that_get_no_tokens(tmp_path: Path) -> None:
    world(tmp_path, forced=True)
