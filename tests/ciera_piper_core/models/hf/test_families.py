"""Every family has, to the last weight, as many parameters as the model that ``transformers`` builds."""

from __future__ import annotations

from typing import Any

import pytest

from ciera_piper_core.models.hf import from_hf
from ciera_piper_core.models.hf.read import FAMILIES
from ciera_piper_core.models.parameters import model_parameters
from tests import transformers_models as reference

OURS_ALONE = {"kimi_k2"}
"""``deepseek_v3`` under the name that its checkpoints have."""

NO_DEFAULT = {
    "dbrx": "its rotation is in no default",
    "deepseek_ocr2_text": "mlp_layer_types is null",
    "diffusion_gemma_text": "num_experts is null",
    "dots1": "n_routed_experts is null",
    "hunyuan_v1_moe": "head_dim is null, which its rotation does not take",
    "lfm2_moe": "layer_types is null",
    "qwen3_omni_moe_talker_text": "shared_expert_intermediate_size is missing",
    "qwen4_exp_text": "its indexer's sizes are null",
}
"""Families of which ``transformers`` itself builds no model from the defaults of its configuration class."""


def families() -> list[str]:
    return sorted(FAMILIES.keys() - OURS_ALONE)


def compare(family: str, values: dict[str, Any]) -> None:
    model, has_output = reference.build(family, values)
    # The models that transformers builds leave out the layers that predict further tokens.
    ours = model_parameters(from_hf(values | {"model_type": family}), mtp=False)
    expected = ours.total if has_output else ours.total - ours.output
    assert expected == reference.parameters(family, model)


@pytest.mark.parametrize("family", families())
def test_sizes_that_all_differ(family: str) -> None:
    compare(family, reference.small_config(family))


@pytest.mark.parametrize("family", families())
def test_biases_and_other_flags(family: str) -> None:
    compare(family, reference.small_config(family, **reference.changed_flags(family)))


@pytest.mark.parametrize("family", families())
def test_a_configuration_as_transformers_saves_it(family: str) -> None:
    values = {name: value for name, value in reference.small_config(family).items() if name != "model_type"}
    compare(family, reference.config_class(family)(**values).to_dict())


@pytest.mark.parametrize("family", sorted(set(families()) - NO_DEFAULT.keys()))
def test_the_default_configuration(family: str) -> None:
    values = reference.config_class(family)().to_dict()
    if family == "deepseek_v2":
        # Null in the class; no weight depends on it.
        values["num_experts_per_tok"] = 6
    compare(family, values)


@pytest.mark.parametrize("family", NO_DEFAULT)
def test_the_other_families_have_no_default_model(family: str) -> None:
    with pytest.raises((TypeError, AttributeError)):
        reference.build(family, {})
