"""The move itself: experts with their weights, masters and moments to other ranks, by one all-to-all."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist

from ciera_piper_core.moe.expert_table import ExpertTable
from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ciera_piper_core.alltoall import AllToAll
    from ciera_piper_core.moe.expert_parallel import ExpertParallel
    from ciera_piper_core.training.optimizer import MasterWeights

K = TypeVar("K")


@dataclass(frozen=True)
class Moved:
    """What one move took.

    Attributes:
        experts: that changed their rank.
        bytes_per_expert: that travel with each.
        sent, received: bytes of this rank's experts that left it or reached it.
        seconds: on this rank, from its start until all is in place.
    """

    experts: int
    bytes_per_expert: int
    sent: int
    received: int
    seconds: float


def table_with(table: ExpertTable, rank_of_expert: Sequence[int]) -> ExpertTable:
    """The table with experts on these ranks: who stays keeps its slot unless it is beyond the new number of slots.

    Raises:
        ValueError: ranks of another number of experts, or a rank that would be left without one.
    """
    if len(rank_of_expert) != table.experts:
        raise ValueError(f"ranks of {len(rank_of_expert)} experts for a table of {table.experts}")
    held = []
    for rank, old in enumerate(table.held):
        new = [expert for expert, its in enumerate(rank_of_expert) if its == rank]
        staying = {expert for expert in old[: len(new)] if rank_of_expert[expert] == rank}
        coming = iter(expert for expert in new if expert not in staying)
        slots = [*old, *(-1 for _ in range(len(new) - len(old)))][: len(new)]
        held.append(tuple(expert if expert in staying else next(coming) for expert in slots))
    return ExpertTable(tuple(held))


def move_experts(
    layer: ExpertParallel, table: ExpertTable, masters: MasterWeights, name: str, algorithm: AllToAll
) -> Moved:
    """Bring the experts of one layer to where ``table`` has them (collective over the layer's group).

    Their masters and the optimizer's state travel; working weights are rounded from the masters where
    they arrive, as they were where they came from. So training continues bit for bit as if the experts had
    been there from the start. Called between two steps, when no gradients are kept.

    Args:
        table: of the same experts and ranks.
        masters: with the layer's parameters under ``<name>.experts.up`` and so on.
        name: of the layer in the model.
        algorithm: bound to the layer's group.

    Raises:
        ValueError: a table of other experts or ranks.
    """
    old = layer.table
    if (table.experts, table.ranks) != (old.experts, old.ranks):
        raise ValueError(
            f"{name}: a table of {table.experts} experts on {table.ranks} ranks cannot replace one of"
            f" {old.experts} on {old.ranks}"
        )
    rank = dist.get_rank(layer.group)
    started = time.perf_counter()
    with region("migration"):
        stacks = expert_stacks(layer, masters, name)
        each = bytes_of_one(stacks)
        if table != old:
            arrived = move_stacks(stacks, old, table, algorithm, rank)
            parameters = dict(layer.experts.named_parameters())
            layer.place(table, {m: arrived[m, "master"].to(weight.dtype) for m, weight in parameters.items()})
            for matrix in parameters:
                key = f"{name}.experts.{matrix}"
                # The step count has no experts in it, and is the same on all ranks.
                state = {part: arrived.get((matrix, part), old) for part, old in masters.state(key).items()}
                masters.set_state(key, state)
        settle(layer.experts.up.device)
    seconds = time.perf_counter() - started
    leaving = sum(table.rank_of(expert) != rank for expert in old.held[rank])
    coming = sum(old.rank_of(expert) != rank for expert in table.held[rank])
    moved = sum(table.rank_of(expert) != old.rank_of(expert) for expert in range(old.experts))
    return Moved(moved, each, leaving * each, coming * each, seconds)


def expert_stacks(layer: ExpertParallel, masters: MasterWeights, name: str) -> dict[tuple[str, str], torch.Tensor]:
    """All that belongs to this rank's experts, by matrix and part: ``("up", "master")``, ``("up", "exp_avg")``, ..."""
    return {
        (matrix, part): tensor
        for matrix, _ in layer.experts.named_parameters()
        for part, tensor in masters.state(f"{name}.experts.{matrix}").items()
        if tensor.dim()
    }


def bytes_of_one(stacks: Mapping[Any, torch.Tensor]) -> int:
    """Bytes that travel with one expert."""
    return sum(_elements(stack) * stack.itemsize for stack in stacks.values())


def settle(device: torch.device) -> None:
    """Wait for the device, so that a clock that is read next has seen its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@torch.no_grad()
def move_stacks(
    stacks: Mapping[K, torch.Tensor], old: ExpertTable, new: ExpertTable, algorithm: AllToAll, rank: int
) -> dict[K, torch.Tensor]:
    """Stacks in the order of the table ``new``, from those in the order of ``old`` (collective), bit for bit.

    Where a rank keeps its number of experts its stacks are changed in place, and only those that change
    their place are copied; else they are new.

    Args:
        stacks: tensors of this rank's experts, by any names: ``(local experts, ...)``; the same names, dtypes and
            shapes of an expert on all ranks.
        algorithm: bound to the group that the tables are of.
        rank: this rank in it.
    """
    leaving = [expert for expert in old.held[rank] if new.rank_of(expert) != rank]
    leaving.sort(key=lambda expert: (new.rank_of(expert), expert))
    coming = [expert for expert in new.held[rank] if old.rank_of(expert) != rank]
    coming.sort(key=lambda expert: (old.rank_of(expert), expert))
    device = next(iter(stacks.values())).device
    with region("migration.pack"):
        slots = torch.tensor([old.slot_of(expert) for expert in leaving], dtype=torch.int64, device=device)
        packed = torch.cat([_as_bytes(stack.index_select(0, slots)) for stack in stacks.values()], dim=1)
    arrived = packed.new_empty((len(coming), packed.shape[1]))
    with region("migration.exchange"):
        algorithm.exchange(
            packed,
            _splits([new.rank_of(expert) for expert in leaving], old.ranks),
            _splits([old.rank_of(expert) for expert in coming], old.ranks),
            arrived,
        )
    with region("migration.unpack"):
        from_slot = [old.slot_of(expert) if old.rank_of(expert) == rank else -1 for expert in new.held[rank]]
        of_arrival = torch.tensor([new.slot_of(expert) for expert in coming], dtype=torch.int64, device=device)
        widths = [_elements(stack) * stack.itemsize for stack in stacks.values()]
        return {
            name: _with_arrivals(stack, from_slot, of_arrival, part)
            for (name, stack), part in zip(stacks.items(), torch.split(arrived, widths, dim=1), strict=True)
        }


def _with_arrivals(
    stack: torch.Tensor, from_slot: list[int], of_arrival: torch.Tensor, arrived: torch.Tensor
) -> torch.Tensor:
    """The stack whose slot i has what was in ``from_slot[i]``, or what arrived for it."""
    # A copy even of a single row, which counts as contiguous whatever its stride: other dtypes need it aligned.
    rows = arrived.clone(memory_format=torch.contiguous_format).view(stack.dtype).view(-1, *stack.shape[1:])
    if len(from_slot) == len(stack):
        new, shifted = stack, [slot for slot, source in enumerate(from_slot) if source not in (-1, slot)]
    else:
        new = stack.new_empty((len(from_slot), *stack.shape[1:]))
        shifted = [slot for slot, source in enumerate(from_slot) if source != -1]
    if shifted:
        # Copied out before they are written: one may go where another came from.
        sources = torch.tensor([from_slot[slot] for slot in shifted], device=stack.device)
        new[torch.tensor(shifted, device=stack.device)] = stack.index_select(0, sources)
    new[of_arrival] = rows
    return new


def _splits(ranks_in_order: list[int], ranks: int) -> list[int]:
    return [ranks_in_order.count(rank) for rank in range(ranks)]


def _elements(stack: torch.Tensor) -> int:
    """Of one expert."""
    return stack.shape[1:].numel()


def _as_bytes(rows: torch.Tensor) -> torch.Tensor:
    """``(experts, bytes)``."""
    return rows.reshape(len(rows), _elements(rows)).view(torch.uint8)
