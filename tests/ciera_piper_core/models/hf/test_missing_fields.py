"""Nothing is guessed: a field that is missing or wrong is named, or the result is what ``transformers`` builds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ciera_piper_core.models.hf import from_hf
from ciera_piper_core.models.hf.fields import SPELLINGS
from ciera_piper_core.models.hf.read import FAMILIES
from ciera_piper_core.models.parameters import model_parameters
from tests import transformers_models as reference

if TYPE_CHECKING:
    from ciera_piper_core.models.architecture import Architecture


def names_of(field: str) -> set[str]:
    """The field's spellings, by one of which an error may name it."""
    return {field}.union(*(set(known) for known in SPELLINGS.values() if field in known))


def read_or_named(values: dict[str, Any], field: str) -> Architecture | None:
    """The architecture, or None where an error names the field."""
    try:
        return from_hf(values)
    except ValueError as error:
        message = str(error)
    assert any(name in message for name in names_of(field)), f"{field}: {message}"
    return None


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"kimi_k2"}))
def test_a_missing_field_is_named_or_as_in_transformers(family: str) -> None:
    values = reference.small_config(family)
    named = 0
    for field in values.keys() - {"model_type"}:
        rest = {name: value for name, value in values.items() if name not in names_of(field)}
        read = read_or_named(rest, field)
        if read is None:
            named += 1
            continue
        try:
            model, has_output = reference.build(family, rest)
        except Exception:
            # transformers has no model to compare with.
            continue
        ours = model_parameters(read, mtp=False)
        expected = ours.total if has_output else ours.total - ours.output
        assert expected == reference.parameters(family, model), field
    assert named >= 4


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"kimi_k2"}))
@pytest.mark.parametrize("wrong", [-3, 2.5, "8", True], ids=str)
def test_a_wrong_number_is_named(family: str, wrong: Any) -> None:
    values = reference.small_config(family)
    right = from_hf(values)
    named = 0
    for field in [name for name, value in values.items() if type(value) is int]:
        read = read_or_named(values | {field: wrong}, field)
        named += read is None
        # A field that does not matter may be anything.
        assert read is None or read == right, field
    assert named >= 4


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"kimi_k2"}))
def test_zero_never_passes_silently_as_a_size(family: str) -> None:
    values = reference.small_config(family)
    needed = {"hidden_size", "d_model", "vocab_size", "num_attention_heads", "num_heads", "d_ff"}
    for field in values.keys() & needed:
        assert read_or_named(values | {field: 0}, field) is None, field
