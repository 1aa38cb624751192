"""Trains a small real mixture-of-experts model under FSDP2, for tests that hold two ways of gathering to the same bits.

The model has what makes shards awkward: matrices that no world divides evenly, fewer experts than
ranks (so some ranks hold nothing but padding), norms smaller than a block, frozen parameters. The
data is text: the standard library's sources, byte by byte.
"""

from __future__ import annotations

import argparse
import ast
import random
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from ciera_piper_core.allgather.fsdp import abandon_iteration, compress_all_gathers
from ciera_piper_core.exponents.coding import CodedDataError
from ciera_piper_core.exponents.segment import CodingSettings
from ciera_piper_core.models.architecture import Architecture, Attention, Experts, FeedForward, Layer
from ciera_piper_core.models.initialisation import initialise
from ciera_piper_core.models.loss import token_loss
from ciera_piper_core.models.transformer import Transformer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from ciera_piper_core.allgather.statistics import Kind
    from ciera_piper_core.exponents.segment import Mode

BYTES = 256
HIDDEN = 40
SEQUENCES, LENGTH = 2, 32
EXPERTS = 5
LEARNING_RATE = 3e-3
BLOCK = 64
"""The smallest: the model's shards are small."""

FROZEN = ("layers.0.attention_norm.weight", "layers.0.dense.down", "layers.1.routed_experts.experts.gate")


@cache
def text() -> Tensor:
    """Bytes of some of the standard library's sources, uint8."""
    sources = b"".join(Path(str(module.__file__)).read_bytes() for module in (argparse, ast, random))
    return torch.frombuffer(bytearray(sources), dtype=torch.uint8)


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Tokens and targets ``(SEQUENCES, LENGTH)``, int64, another piece of text for each step and rank."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    starts = torch.randint(len(text()) - LENGTH - 1, (SEQUENCES, 1), generator=generator)
    window = text()[starts + torch.arange(LENGTH + 1)].long()
    return window[:, :-1], window[:, 1:]


def small_moe(recompute: bool = False) -> Transformer:
    """Two layers, one dense and one of experts; weights in float32, the same wherever it is called."""
    attention = Attention(4, 2, 8, 8)
    layers = (Layer(attention, dense=FeedForward(72)), Layer(attention, Experts(EXPERTS, 2, 48, shared_ffn=24)))
    model = Transformer(
        Architecture("small", HIDDEN, BYTES, layers), dtype=torch.float32, checkpointing="full" if recompute else "none"
    )
    initialise(model, 3)
    return model


@dataclass(frozen=True)
class Recipe:
    """How a model is trained.

    Attributes:
        dtype: of the gathered parameters; the optimizer's are float32.
        reshard: whether to free parameters after the forward pass, and gather them again in the backward
            pass; a number keeps those of layers on so many ranks.
        frozen: names of parameters that are not trained.
        recompute: whether the backward pass computes layers' activations again.
    """

    dtype: torch.dtype
    reshard: bool | int = True
    frozen: tuple[str, ...] = ()
    recompute: bool = False


class Training:
    """One model under FSDP2 with its optimizer.

    Attributes:
        model: the root module; layers are sharded one by one, what is left of the root together.
        name: for error messages and files.
    """

    name = "plain"

    def __init__(self, recipe: Recipe, mesh: DeviceMesh) -> None:
        self.model = small_moe(recipe.recompute)
        self.train_only(recipe.frozen)
        policy = MixedPrecisionPolicy(param_dtype=recipe.dtype, reduce_dtype=torch.float32)
        for layer in self.model.layers.values():
            fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=recipe.reshard)
        fully_shard(self.model, mesh=mesh, mp_policy=policy, reshard_after_forward=bool(recipe.reshard))
        self.optimizer = self.new_optimizer()

    @property
    def root(self) -> FSDPModule:
        """The model as FSDP sees it."""
        assert isinstance(self.model, FSDPModule)
        return self.model

    def new_optimizer(self) -> torch.optim.Optimizer:
        """An optimizer without a past; fused, which takes a fifth of the time on DTensors."""
        return torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE, weight_decay=0.01, fused=True)

    def forward_and_backward(self, batches: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
        """Losses of the micro-batches; gradients are reduced after the last alone."""
        losses = []
        for number, (tokens, targets) in enumerate(batches):
            self.root.set_requires_gradient_sync(number == len(batches) - 1)
            loss = token_loss(self.model(tokens), targets) / len(batches)
            loss.backward()
            losses.append(loss.detach())
        return losses

    def step(self, batches: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
        """One optimizer step; its losses."""
        losses = self.forward_and_backward(batches)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return losses

    def abandon(self) -> None:
        """After an exception inside of a step: as if the step had not begun."""
        abandon_iteration(self.root)
        self.optimizer.zero_grad()

    def shards(self) -> Iterator[tuple[str, Tensor]]:
        """By name, this rank's part of each parameter, as integers."""
        for name, weight in self.model.named_parameters():
            yield name, weight.to_local().detach().reshape(-1).view(torch.int32)  # type: ignore[attr-defined]

    def train_only(self, frozen: tuple[str, ...]) -> None:
        """Train all but these parameters from now on."""
        for name, weight in self.model.named_parameters():
            weight.requires_grad_(name not in frozen)

    def save(self, folder: Path) -> None:
        """Write a checkpoint (all ranks)."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        checkpoint.save({"model": model, "optimizer": optimizer}, checkpoint_id=folder)

    def load(self, folder: Path) -> None:
        """Read a checkpoint (all ranks)."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        state = {"model": model, "optimizer": optimizer}
        checkpoint.load(state, checkpoint_id=folder)
        set_state_dict(self.model, self.optimizer, model_state_dict=model, optim_state_dict=optimizer)


class Compressed(Training):
    """A training whose gathers are compressed.

    Attributes:
        handles: one for each parameter group.
    """

    def __init__(self, recipe: Recipe, mesh: DeviceMesh, modes: Sequence[Mode] = ("auto",) * 3, name: str = "") -> None:
        """
        Args:
            modes: of coding: of each layer, and of what is left of the root.
        """
        super().__init__(recipe, mesh)
        self.name = name or "compressed"
        # Groups that a call before has compressed are left alone by the next.
        self.handles = [
            compress_all_gathers(part, CodingSettings(mode, BLOCK))
            for part, mode in zip([*self.model.layers.values(), self.model], modes, strict=True)
        ]

    def gathers(self, kind: Kind) -> int:
        """So many gathers of a kind were made by all groups."""
        return sum(one.gathers[kind] for handle in self.handles for one in handle.statistics.values())

    def remove(self) -> None:
        """Back to plain gathers."""
        for handle in self.handles:
            handle.remove()


@contextmanager
def failing(owner: type, method: str, at: int) -> Iterator[list[int]]:
    """The so many-th call of a method raises, once; gives the number of calls."""
    real = getattr(owner, method)
    calls = [0]

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == at:
            raise CodedDataError("on purpose")
        return real(self, *args, **kwargs)

    with patch.object(owner, method, counted):
        yield calls


def cpu_mesh(world: int) -> DeviceMesh:
    """A mesh of all ranks."""
    return DeviceMesh("cpu", torch.arange(world), mesh_dim_names=("shard",))


def same_bits(left: Tensor, right: Tensor) -> bool:
    """Whether two float32 tensors hold the same bits."""
    return torch.equal(left.view(torch.int32), right.view(torch.int32))


def differing(left: Training, right: Training) -> list[str]:
    """Names of the parameters whose shards differ by any bit on this rank."""
    pairs = zip(left.shards(), right.shards(), strict=True)
    return [name for (name, mine), (_, other) in pairs if not torch.equal(mine, other)]
