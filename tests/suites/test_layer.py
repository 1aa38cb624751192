"""The workload of a layer: forward alone or with gradients, on data that follow from the seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from bench.measure.group import RankGroup
from bench.suite import Case, Context, Site
from suites.layer import LayerWorkload, filled_weights
from suites.matmul_peak import MatmulPeakSuite

if TYPE_CHECKING:
    from bench.suite import Value


class Linear(LayerWorkload):
    """One linear layer."""

    def __init__(self, case: Case, context: Context) -> None:
        super().__init__(MatmulPeakSuite(), case, context, (5, 8))
        self.linear = filled_weights(torch.nn.Linear(8, 8, bias=False), context.site.seed)

    @property
    def _layer(self) -> torch.nn.Module:
        return self.linear

    def check(self) -> int:
        return 0


def workload(direction: str, seed: int = 0) -> Linear:
    params: dict[str, Value] = {"direction": direction, "dtype": "float32", "threads": 0, "m": 5, "n": 8, "k": 8}
    return Linear(Case(params), Context(Site(seed=seed), RankGroup()))


def test_nothing_is_there_before_the_first_pass() -> None:
    linear = workload("forward")
    assert linear.output.isnan().all()
    assert linear.gradients == ()
    linear.close()


@pytest.mark.parametrize("direction", ["forward", "forward_backward"])
def test_a_pass_leaves_output_and_gradients(direction: str) -> None:
    linear = workload(direction)
    linear.run()
    weight = linear.linear.weight
    assert torch.equal(linear.output, linear._input @ weight.T)
    assert not linear.output.requires_grad
    if direction == "forward":
        assert linear.gradients == ()
    else:
        of_input, of_weight = linear.gradients
        assert linear._upstream is not None
        assert torch.allclose(of_input, linear._upstream @ weight)
        assert torch.allclose(of_weight, linear._upstream.T @ linear._input)
    linear.close()


def test_data_and_weights_follow_from_the_seed() -> None:
    outputs = []
    for seed in (1, 1, 2):
        linear = workload("forward", seed)
        linear.run()
        outputs.append(linear.output)
        linear.close()
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
