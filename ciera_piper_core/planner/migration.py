"""What moving experts between GPUs costs at worst: the bytes and seconds of the paper's Table IV, for any model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ciera_piper_core.models.parameters import layer_parameters
from ciera_piper_core.planner.static_memory import layer_static_bytes

if TYPE_CHECKING:
    from ciera_piper_core.models.architecture import Architecture
    from ciera_piper_core.planner.strategy import Question, Strategy

STATE_BYTES_PER_PARAMETER = 16
"""Of mixed precision with Adam: weight 2, gradient 2, master copy 4, moments 4 + 4. Between two steps the gradient
need not move; the table counts it, as the paper does."""


@dataclass(frozen=True)
class Migration:
    """A complete reassignment of one layer's experts within an expert-parallel group.

    Attributes:
        model: its name, for people.
        experts, hidden, ffn, matrices: of the layer.
        gpus: of the group, G.
        bandwidth_bytes_s: of the all-to-all, a GPU.
        bytes_per_parameter: that move.

    Raises:
        ValueError: a number below 1.
    """

    model: str
    experts: int
    hidden: int
    ffn: int
    matrices: int
    gpus: int = 8
    bandwidth_bytes_s: float = 50e9
    bytes_per_parameter: float = STATE_BYTES_PER_PARAMETER

    def __post_init__(self) -> None:
        for name in ("experts", "hidden", "ffn", "matrices", "gpus", "bandwidth_bytes_s", "bytes_per_parameter"):
            if not getattr(self, name) >= 1:
                raise ValueError(f"migration of {self.model}: {name} must be 1 or more, not {getattr(self, name)}")

    @property
    def layer_bytes(self) -> float:
        """State of all experts of the layer."""
        return self.bytes_per_parameter * self.matrices * self.experts * self.hidden * self.ffn

    @property
    def bytes_per_gpu(self) -> float:
        """The most that one GPU sends: all that it holds, ``16 * n_mat * E * d * f / G`` (the paper's Section VI)."""
        return self.layer_bytes / self.gpus

    @property
    def expected_bytes_per_gpu(self) -> float:
        """What it sends if the new places are drawn at random: one in G experts stays where it is."""
        return self.bytes_per_gpu * (self.gpus - 1) / self.gpus

    @property
    def seconds(self) -> float:
        """At that bandwidth, at worst."""
        return self.bytes_per_gpu / self.bandwidth_bytes_s

    @property
    def expected_seconds(self) -> float:
        """At that bandwidth, if the new places are drawn at random."""
        return self.expected_bytes_per_gpu / self.bandwidth_bytes_s


def migration_of(architecture: Architecture, gpus: int = 8, bandwidth_bytes_s: float = 50e9) -> Migration:
    """The cost for one of the model's layers with routed experts.

    Raises:
        ValueError: the model has none.
    """
    experts = architecture.experts
    return Migration(
        architecture.name,
        experts.experts,
        experts.expert_hidden or architecture.hidden,
        experts.ffn,
        experts.matrices,
        gpus,
        bandwidth_bytes_s,
    )


def migration_in(question: Question, strategy: Strategy) -> Migration | None:
    """The cost for one of the model's layers within an expert-parallel group of the strategy.

    The bytes a parameter are those of the question's optimizer and precision; a TP rank moves its part of each
    expert. The bandwidth is a GPU's share of what an all-to-all reaches: of the NICs where the group leaves a
    node, else of the node's own links.

    Returns:
        None without expert parallelism, which has nothing to move.
    """
    if strategy.ep == 1 or not question.architecture.has_experts:
        return None
    platform = question.platform
    crosses = strategy.ep * strategy.tp > platform.gpus_per_node
    link = platform.link("all_to_all", crosses=crosses)
    layer, hidden = question.architecture.moe_layer, question.architecture.hidden
    state = layer_static_bytes(layer, hidden, optimizer=question.optimizer, precision=question.precision)
    each = float(state["routed_experts"].total) / layer_parameters(layer, hidden).routed_experts
    whole = migration_of(question.architecture, strategy.ep, link.bytes_s / (platform.gpus_per_nic if crosses else 1))
    return replace(whole, ffn=whole.ffn // strategy.tp, bytes_per_parameter=each)
