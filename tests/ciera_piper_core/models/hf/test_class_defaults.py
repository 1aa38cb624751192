"""The table of defaults is that of ``transformers``, and no family of it is missing."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

from ciera_piper_core.models.hf.fields import REQUIRED, Fields, class_defaults
from ciera_piper_core.models.hf.read import FAMILIES, NOT_LANGUAGE_MODELS, TEXT_FAMILIES
from tests import transformers_models as reference


def default_of(cls: type, field: str) -> Any:
    known = {entry.name: entry for entry in dataclasses.fields(cls)}
    entry = known[field]
    return entry.default if entry.default_factory is dataclasses.MISSING else entry.default_factory()


@pytest.mark.parametrize("family", class_defaults())
def test_defaults_are_those_of_the_class(family: str) -> None:
    cls = reference.config_class(family)
    for field, value in class_defaults()[family].items():
        if field.endswith(".*"):
            nested = cls.sub_configs[field.removesuffix(".*")]
            pairs = [(nested, name, inner) for name, inner in value.items()]
        else:
            pairs = [(cls, field, value)]
        for owner, name, expected in pairs:
            default = default_of(owner, name)
            if expected == REQUIRED:
                # Left out on purpose: a size that belongs to one certain model.
                assert type(default) is int, name
                assert default > 0, name
            elif (family, name) == ("nemotron_h", "layers_block_type"):
                # The class builds four layers, one of each kind; no model is that.
                assert expected is None
            else:
                assert expected == default, name
                assert type(expected) is type(default), name


@pytest.mark.parametrize("family", class_defaults())
def test_no_field_with_a_default_is_read_that_the_table_lacks(family: str) -> None:
    known = {field.name for field in dataclasses.fields(reference.config_class(family))}
    for changes in ({}, reference.changed_flags(family)):
        fields = Fields(family, reference.small_config(family, **changes))
        FAMILIES[family](fields)
        assert fields.read
        # Nested tables have their defaults in the builder, or in an entry of their own.
        nested = {"attn_config", "ffn_config", "compress_rates"}
        assert (fields.read & known) - class_defaults()[family].keys() <= nested


def test_every_family_has_its_defaults() -> None:
    assert class_defaults().keys() == FAMILIES.keys() - {"kimi_k2"}


def with_experts(model_type: str) -> bool:
    return any(re.search("expert|moe", field.name) for field in dataclasses.fields(CONFIG_MAPPING[model_type]))


def test_every_family_of_transformers_with_experts_is_known() -> None:
    found = {name for name in CONFIG_MAPPING_NAMES if with_experts(name)}
    assert len(found) > 70
    assert found - FAMILIES.keys() - TEXT_FAMILIES.keys() == NOT_LANGUAGE_MODELS.keys() & found


def test_families_of_several_modalities_name_the_right_text_part() -> None:
    parts = {
        (outer, getattr(inner, "model_type", None))
        for outer in CONFIG_MAPPING_NAMES
        for inner in getattr(CONFIG_MAPPING[outer], "sub_configs", {}).values()
    }
    found = {(outer, inner) for outer, inner in parts if inner in FAMILIES}
    assert len(found) > 15
    assert found <= set(TEXT_FAMILIES.items())
