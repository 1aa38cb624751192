"""Whether to move experts now: the load that was measured, and what moving costs against what it saves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ciera_piper_core.moe.migration.solver import SOLVERS, Solution, SolverName, load_factor, solve

Floats = NDArray[np.float64]

Verdict = Literal["move", "balanced", "no_better", "does_not_pay", "no_counts"]
"""``move``: do it. ``balanced``: below the threshold. ``no_better``: the solver knows no lower load.
``does_not_pay``: it costs more than it saves until the next check. ``no_counts``: nothing was routed yet."""


@dataclass(frozen=True)
class Policy:
    """When experts move.

    Attributes:
        check_every: steps between two checks; a move must pay off within as many.
        threshold: load of the busiest rank over the mean above which a placement is looked for.
        target: a load that is good enough; see ``solver.solve``.
        margin: how many times its cost a move must save; 0 to move whenever the load falls, whatever it costs.
        solver: see ``solver.SOLVERS``.
        spare_experts: experts that a rank has room for beyond its even share; 0 for swaps only.
        window: steps whose counts are looked at, the newest; at most ``check_every``.

    Raises:
        ValueError: says which value is wrong.
    """

    check_every: int = 20
    threshold: float = 1.1
    target: float = 1.02
    margin: float = 1.0
    solver: SolverName = "search"
    spare_experts: int = 0
    window: int = 10

    def __post_init__(self) -> None:
        if self.solver not in SOLVERS:
            raise ValueError(f"unknown solver {self.solver!r}; known: {', '.join(SOLVERS)}")
        if self.check_every < 1 or not 1 <= self.window <= self.check_every:
            raise ValueError(
                f"migration: a check every {self.check_every} steps over the last {self.window}; "
                "both must be 1 or more, and the second not above the first"
            )
        if not (self.threshold >= 1 and self.target >= 1):
            raise ValueError("migration: threshold and target are the busiest rank's load over the mean, so 1 or more")
        if not (self.margin >= 0 and self.spare_experts >= 0):
            raise ValueError("migration: margin and spare_experts must be 0 or more")


@dataclass(frozen=True)
class Costs:
    """What was measured on these ranks, for one layer.

    Attributes:
        seconds_per_copy: of forward and backward pass together, that one more token copy costs the rank of its expert.
        seconds_per_byte: of a move, over the bytes of the rank that sends or receives the most.
        seconds_per_move: of a move, whatever is moved.
        bytes_per_expert: weights, masters and moments, as they travel.
    """

    seconds_per_copy: float
    seconds_per_byte: float
    seconds_per_move: float
    bytes_per_expert: int

    def __post_init__(self) -> None:
        for name in ("seconds_per_copy", "seconds_per_byte", "seconds_per_move", "bytes_per_expert"):
            if not 0 <= getattr(self, name) < np.inf:
                raise ValueError(f"migration: {name} must be finite and 0 or more, not {getattr(self, name)}")


@dataclass(frozen=True)
class Decision:
    """What to do about one layer, and why.

    Attributes:
        verdict: see ``Verdict``.
        message: one line for people.
        solution: where the experts should be; that they stay where they are if there is nothing better.
        saved_seconds: predicted, until the next check.
        cost_seconds: predicted, of the move.
    """

    verdict: Verdict
    message: str
    solution: Solution
    saved_seconds: float = 0.0
    cost_seconds: float = 0.0

    @property
    def moves(self) -> bool:
        """Whether to move."""
        return self.verdict == "move"


def decide(steps: Floats, rank_of_expert: tuple[int, ...], ranks: int, policy: Policy, costs: Costs) -> Decision:
    """Whether the experts of one layer should move, the same on all ranks that agree on the arguments.

    A step waits for its busiest rank. So a placement is judged step by step, not by the sum of all
    steps, in which ranks that were busy in turn would look balanced.

    Args:
        steps: ``(steps, experts)``: token copies of each expert in each of the last steps, of all ranks.
        rank_of_expert, ranks: where the experts are.
        policy, costs: see there.
    """
    window = np.asarray(steps, dtype=np.float64)[-policy.window :]
    counts = window.sum(axis=0) if len(window) else np.zeros(len(rank_of_expert))
    stay = Solution(tuple(rank_of_expert), tuple(rank_of_expert), tuple(counts.tolist()), ranks)
    if not counts.sum() > 0:
        return Decision("no_counts", "no token was routed since the last check", stay)
    load = load_factor(counts, rank_of_expert, ranks)
    if load <= policy.threshold:
        return Decision("balanced", f"busiest rank {load:.3f} x the mean, threshold {policy.threshold:g}", stay)
    share = -(-len(rank_of_expert) // ranks)
    most = max(share + policy.spare_experts, int(np.bincount(rank_of_expert, minlength=ranks).max()))
    solution = solve(
        counts,
        rank_of_expert,
        ranks,
        solver=policy.solver,
        most_experts=most if policy.spare_experts else None,
        target=policy.target,
    )
    if not solution.moves or not solution.load_after < load:
        return Decision("no_better", f"busiest rank {load:.3f} x the mean; no better placement found", stay)
    saved_copies = busiest(window, rank_of_expert, ranks).mean() - busiest(window, solution.after, ranks).mean()
    saved = float(saved_copies) * costs.seconds_per_copy * policy.check_every
    cost = costs.seconds_per_move + costs.seconds_per_byte * costs.bytes_per_expert * solution.most_sent
    message = (
        f"busiest rank {load:.3f} x the mean, {solution.load_after:.3f} after moving {len(solution.moves)} of"
        f" {len(rank_of_expert)} experts; saves {saved:.3g} s in {policy.check_every} steps and costs {cost:.3g} s"
    )
    pays = saved > policy.margin * cost if policy.margin else saved_copies > 0
    return Decision("move" if pays else "does_not_pay", message, solution, saved, cost)


def busiest(steps: Floats, rank_of_expert: tuple[int, ...], ranks: int) -> Floats:
    """The busiest rank's token copies in each step, ``(steps,)``."""
    on_rank = np.zeros((len(rank_of_expert), ranks))
    on_rank[np.arange(len(rank_of_expert)), list(rank_of_expert)] = 1
    return np.asarray((steps @ on_rank).max(axis=1))
