"""ZeRO++'s two collectives for FSDP2: an Allgather of int8 weights, a reduce-scatter of int4 gradients in two levels.

Both compute in float32 between the exchanges, where DeepSpeed's kernels use float16; and a level with
one rank or one node is left out, where DeepSpeed quantises once more for nobody. Otherwise group
sizes, steps and rounding are DeepSpeed's (``quantisation.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter

from ciera_piper_core.ranges import region
from ciera_piper_core.systems.quantisation import (
    blocks_of,
    code_bytes,
    dequantise,
    gradient_block,
    quantise,
    rounding_bound,
    weight_block,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from ciera_piper_core.allgather.fsdp_groups import GatheredParameter
    from ciera_piper_core.alltoall.placement import Placement
    from ciera_piper_core.systems.quantisation import Bits

WEIGHT_BITS: Bits = 8
GRADIENT_BITS: Bits = 4


class QuantisedAllGather(AllGather):
    """Gathers a group's weights as int8 codes and float32 steps: all ranks get the same values, their own shard's too.

    Args:
        block: values of a block; 0 for DeepSpeed's rule.

    Attributes:
        sent_bytes, plain_bytes: that this rank sent to each other one so far, and would have without quantising.
    """

    def __init__(self, block: int = 0) -> None:
        self.block = block
        self.sent_bytes = self.plain_bytes = 0

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        values, world = input_tensor.numel(), group.size()
        block = self.block or weight_block(values)
        with region("codec"):
            message = _joined([_step_bytes(quantise(input_tensor.view(1, -1), block, WEIGHT_BITS))])
        gathered = message.new_empty(world, message.shape[1])
        dist.all_gather_single(gathered.view(-1), message.view(-1), group=group)
        with region("codec"):
            codes, steps = _split(gathered, values, block, WEIGHT_BITS)
            output_tensor.view(world, values).copy_(dequantise(codes, steps, values, block, WEIGHT_BITS))
        self.sent_bytes += message.numel()
        self.plain_bytes += input_tensor.nbytes
        return None


@dataclass(frozen=True)
class GradientPart:
    """One parameter's part of each rank's share of a reduce-scatter.

    Attributes:
        values: of the share, padding included.
        block: values of a block; 0 for a part that travels as it is: vectors, as DeepSpeed has it.
    """

    values: int
    block: int


def gradient_parts(parameters: Sequence[GatheredParameter], world: int, block: int = 0) -> tuple[GradientPart, ...]:
    """The parts of an FSDP2 group's reduce-scatter among ``world`` ranks; ``block`` 0 for DeepSpeed's rule."""
    return tuple(
        GradientPart(one.values, 0 if len(one.shape) < 2 else block or gradient_block(one.shape, world))
        for one in parameters
    )


class NodeGroups:
    """The two groups that a rank exchanges gradients with: of its node, and of its rail (same place, other nodes).

    Args:
        ranks: all of them (collective); all ranks make all groups.
        placement: of them; all nodes with as many ranks.

    Attributes:
        internal, rail: the groups; None where this rank is alone.
        owners: for each rank of the node, in the order of ``internal``, the ranks of its rail in the order of theirs.

    Raises:
        ValueError: nodes of different sizes.
    """

    def __init__(self, ranks: dist.ProcessGroup, placement: Placement) -> None:
        if not placement.even:
            raise ValueError(f"two levels need nodes of one size, not {placement.describe()}")
        self.placement = placement
        self.ranks = ranks
        everyone = dist.get_process_group_ranks(ranks)
        mine = dist.get_rank(ranks)
        rails = tuple(zip(*placement.nodes, strict=True))
        # Torch orders a group's ranks; rows go in the same order.
        node = sorted(placement.nodes[placement.node_of(mine)])
        rail_of = {one: sorted(rail) for rail in rails for one in rail}
        self.owners = tuple(tuple(rail_of[peer]) for peer in node)
        self._made: list[Any] = []
        self.internal: Any = None
        self.rail: Any = None
        for kind, sets in (("internal", placement.nodes), ("rail", rails)):
            for members in sets:
                if len(members) == 1:
                    continue
                group = ranks
                if len(members) != placement.world:
                    group = dist.new_group([everyone[one] for one in members], backend=dist.get_backend(ranks))
                    if mine in members:
                        self._made.append(group)
                if mine in members:
                    setattr(self, kind, group)

    def close(self) -> None:
        """Release the groups (collective)."""
        while self._made:
            dist.destroy_process_group(self._made.pop())


class QuantisedReduceScatter(ReduceScatter):
    """Sums gradients in two exchanges of int4 codes: within the node, then along the rail.

    Within the node, each rank gets what its rail shall have, from all ranks of the node, and sums it in
    float32; along the rail these sums go to their owners. So between nodes travels a node's sum, not
    each rank's gradient.

    Args:
        parts: of each rank's share, in order.
        nodes: the ranks.

    Attributes:
        sent_bytes, plain_bytes: that this rank sent to others so far, and would have in a plain reduce-scatter.
    """

    def __init__(self, parts: Sequence[GradientPart], nodes: NodeGroups) -> None:
        self.parts, self.nodes = tuple(parts), nodes
        self.values = sum(part.values for part in parts)
        self.sent_bytes = self.plain_bytes = 0

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp | dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> dist.Work | None:
        placement = self.nodes.placement
        world, nodes, per_node = placement.world, len(placement.nodes), placement.ranks_per_node
        if group.size() != world or input_tensor.numel() != world * self.values:
            raise ValueError(
                f"a reduce-scatter of {input_tensor.numel()} values on {group.size()} ranks; planned were"
                f" {world * self.values} on {world}: a parameter without gradient, or one that was frozen later?"
            )
        # Each peer of the node gets the shares of its rail in one message.
        owners = torch.tensor(self.nodes.owners, device=input_tensor.device).flatten()
        sums = input_tensor.view(world, self.values)[owners]
        if per_node > 1:
            received = self._exchanged(sums, per_node, self.nodes.internal)
            sums = received.view(per_node, nodes, self.values).sum(0)
        if nodes > 1:
            sums = self._exchanged(sums, nodes, self.nodes.rail).sum(0, keepdim=True)
        if op == dist.ReduceOp.AVG:
            sums = sums / world
        elif op != dist.ReduceOp.SUM:
            raise ValueError(f"a quantised reduce-scatter sums or averages, {op} is neither")
        output_tensor.copy_(sums.view(-1))
        self.plain_bytes += input_tensor.nbytes // world * (world - 1)
        return None

    def _exchanged(self, rows: Tensor, peers: int, group: dist.ProcessGroup) -> Tensor:
        """``(rows, values)``, as many rows for each peer, to what came from each peer, float32 in the same shape."""
        with region("codec"):
            message = encode_gradients(rows, self.parts)
        received = torch.empty_like(message)
        dist.all_to_all_single(received.view(-1), message.view(-1), group=group)
        self.sent_bytes += message.numel() // peers * (peers - 1)
        with region("codec"):
            return decode_gradients(received, self.parts, rows.dtype)


def encode_gradients(rows: Tensor, parts: Sequence[GradientPart]) -> Tensor:
    """``(rows, values)`` as messages ``(rows, bytes)``, uint8."""
    pieces = []
    for part, columns in zip(parts, torch.split(rows, [part.values for part in parts], dim=1), strict=True):
        if part.block:
            pieces.append(_step_bytes(quantise(columns, part.block, GRADIENT_BITS)))
        else:
            pieces.append(columns.contiguous().view(torch.uint8))
    return _joined(pieces)


def decode_gradients(messages: Tensor, parts: Sequence[GradientPart], dtype: torch.dtype) -> Tensor:
    """Messages ``(rows, bytes)`` of values that were of ``dtype``, as float32 ``(rows, values)``."""
    columns = []
    at = 0
    for part in parts:
        size = _part_bytes(part, dtype)
        piece = messages[:, at : at + size]
        at += size
        if part.block:
            codes, steps = _split(piece, part.values, part.block, GRADIENT_BITS)
            columns.append(dequantise(codes, steps, part.values, part.block, GRADIENT_BITS))
        else:
            columns.append(piece.contiguous().view(dtype).to(torch.float32))
    return torch.cat(columns, dim=1)


def reduction_bound(contributions: Tensor, placement: Placement, parts: Sequence[GradientPart]) -> Tensor:
    """How far a rank's share of the sum may be off, float32 ``(values,)``.

    Args:
        contributions: ``(world, values)``: each rank's gradient for that share.
    """
    nodes, per_node = len(placement.nodes), placement.ranks_per_node
    total = torch.zeros(contributions.shape[1])
    at = 0
    for part in parts:
        mine = contributions[:, at : at + part.values].to(torch.float32)
        if part.block:
            ranks = rounding_bound(mine, part.block, GRADIENT_BITS) if per_node > 1 else torch.zeros_like(mine)
            bound = ranks.sum(0)
            if nodes > 1:
                for members in placement.nodes:
                    node, off = mine[list(members)].sum(0), ranks[list(members)].sum(0)
                    # The sum that is quantised next is off already: its block's step may be larger by that.
                    largest = _block_maxima(node.abs() + off, part.block)
                    bound = bound + largest / (1 << (GRADIENT_BITS - 1))
            total[at : at + part.values] = bound
        total[at : at + part.values] += mine.abs().sum(0) * 2.0**-18
        at += part.values
    return total


def _block_maxima(values: Tensor, block: int) -> Tensor:
    blocks = blocks_of(len(values), block)
    padded = torch.nn.functional.pad(values, (0, blocks * block - len(values))).view(blocks, block)
    return padded.amax(1).repeat_interleave(block)[: len(values)]


def _step_bytes(coded: tuple[Tensor, Tensor]) -> Tensor:
    """Codes and steps of each row as its bytes, steps first."""
    codes, steps = coded
    return torch.cat([steps.contiguous().view(torch.uint8), codes], dim=1)


def _split(message: Tensor, values: int, block: int, bits: Bits) -> tuple[Tensor, Tensor]:
    of_steps = 4 * blocks_of(values, block)
    steps = message[:, :of_steps].contiguous().view(torch.float32)
    return message[:, of_steps : of_steps + code_bytes(values, bits)], steps


def _part_bytes(part: GradientPart, dtype: torch.dtype) -> int:
    if not part.block:
        return part.values * dtype.itemsize
    return 4 * blocks_of(part.values, part.block) + code_bytes(part.values, GRADIENT_BITS)


def _joined(pieces: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(pieces), dim=1).contiguous()
