"""Reading fields of a Hugging Face configuration: spellings, class defaults, and errors that name the field."""

from __future__ import annotations

import functools
import json
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ciera_piper_core.models.wording import shorten

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

SPELLINGS: dict[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "d_model"),
    "num_hidden_layers": ("num_hidden_layers", "n_layers", "num_layers"),
    "num_attention_heads": ("num_attention_heads", "n_heads", "num_heads"),
    "num_key_value_heads": ("num_key_value_heads", "num_attention_groups"),
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": (
        "num_experts_per_tok",
        "num_experts_per_token",
        "moe_topk",
        "moe_top_k",
        "moe_k",
        "top_k_experts",
    ),
    "n_shared_experts": ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"),
    "num_nextn_predict_layers": ("num_nextn_predict_layers", "num_mtp_layers"),
    "kv_channels": ("kv_channels", "head_dim"),
    "conv_kernel_size": ("conv_kernel_size", "sconv_kernel_size"),
    "layers_block_type": ("layers_block_type", "layer_types"),
    "n_groups": ("mamba_n_groups", "n_groups"),
    "conv_kernel": ("mamba_d_conv", "conv_kernel"),
    "expand": ("mamba_expand", "expand"),
    "use_conv_bias": ("mamba_conv_bias", "use_conv_bias"),
}
"""The names under which families store one field."""

OLDER_LAYER_TYPES = {
    "mamba": "linear_attention",
    "attention": "full_attention",
    "deepseek_sparse_attention": "indexed_attention",
    "qwen_sparse_attention": "indexed_attention",
}


REQUIRED = "required"
"""In ``defaults.json``: the class has a default, but it is the size of one certain model, and so a guess."""


MOST_LAYERS = 4096
"""Layers that a model may have."""

MOST_EXPERTS = 1 << 16
"""Experts that a layer may have."""

MOST_SIZE = 1 << 24
"""Any other size: widths, heads, rows of the vocabulary."""

MOST: Mapping[str, int] = {
    **dict.fromkeys(("num_experts", "num_experts_per_tok", "n_shared_experts", "zero_expert_num"), MOST_EXPERTS),
    **dict.fromkeys(("num_passes", "loop_num_passes"), 100),
    "heads_per_ngram": 16,
    "ngram_size": 8,
    "ngram_vocab_size_base": 1 << 28,
}
"""The largest value of the fields that ``MOST_SIZE`` does not hold for; of those that end with ``_layers`` it is
``MOST_LAYERS``. All are far beyond what is trained, and keep what follows from them within 64 bits and seconds."""


def most_of(name: str) -> int:
    """The largest value of a field."""
    return MOST.get(name, MOST_LAYERS if name.endswith("_layers") else MOST_SIZE)


class Fields:
    """The fields of one configuration.

    A field that is missing has the value that the family's configuration class of ``transformers``
    gives it, by the table ``defaults.json``. Widths and counts have none there: the configuration must
    give them.

    Attributes:
        family: the ``model_type``.
        read: names of all fields whose default was asked for, under all their spellings.
    """

    def __init__(self, family: str, values: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> None:
        self.family = family
        self.read: set[str] = set()
        self._values = values
        self._defaults = class_defaults().get(family, {}) if defaults is None else defaults

    def size(self, name: str, *, least: int = 1) -> int:
        """A whole number that the configuration itself must give."""
        value = self._given(name)
        if value is None:
            raise self._lacks(name)
        return self._whole(name, value, least)

    def integer(self, name: str, *, least: int = 1, default: int | None = None) -> int:
        """A whole number, of the configuration or by default.

        Args:
            default: what the family's class takes where it keeps no default for the field.
        """
        value = self.optional(name, least=least)
        if value is None:
            value = default
        if value is None:
            raise self._lacks(name)
        return value

    def optional(self, name: str, *, least: int = 1) -> int | None:
        """A whole number, or None where the configuration or its class says null."""
        value = self.raw(name)
        return None if value is None else self._whole(name, value, least)

    def flag(self, name: str, *, default: bool | None = None) -> bool:
        """A truth value."""
        value = self.raw(name)
        if value is None:
            value = default
        if value is None:
            raise self._lacks(name)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def items(self, name: str) -> list[Any] | None:
        """A list, or None."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, list | tuple):
            raise self._wrong(name, value, "a list")
        return list(value)

    def indices(self, name: str) -> list[int] | None:
        """A list of layer numbers, or None."""
        values = self.items(name)
        return None if values is None else [self._whole(name, value, 0) for value in values]

    def types(self, name: str, layers: int, allowed: Collection[str]) -> list[str] | None:
        """A kind for each layer, or None.

        Raises:
            ValueError: not as many as layers, or a kind that the family does not have.
        """
        values = self.items(name)
        if values is None:
            return None
        kinds = [OLDER_LAYER_TYPES.get(value, value) for value in values]
        if len(kinds) != layers:
            raise ValueError(f"{self._where}: {name} names {len(kinds)} layers, but the model has {layers}")
        for kind in kinds:
            if kind not in allowed:
                raise self._wrong(name, kind, f"one of {', '.join(sorted(allowed))}")
        return kinds

    def part(self, name: str) -> Fields:
        """The fields of a nested table; empty where it is missing."""
        value = self.raw(name)
        if value is not None and not isinstance(value, dict):
            raise self._wrong(name, value, "a table")
        nested = self._defaults.get(f"{name}.*") or {}
        return Fields(f"{self.family}.{name}", value or {}, nested)

    def raw(self, name: str) -> Any:
        """The value as it stands, or by default; None where both say null or nothing."""
        for spelling in SPELLINGS.get(name, (name,)):
            self.read.add(spelling)
        value = self._given(name)
        if value is not None or any(spelling in self._values for spelling in SPELLINGS.get(name, (name,))):
            return value
        for spelling in SPELLINGS.get(name, (name,)):
            if spelling in self._defaults:
                if self._defaults[spelling] == REQUIRED:
                    raise self._lacks(name)
                return self._defaults[spelling]
        return None

    def refuse(self, message: str) -> ValueError:
        """An error about this configuration."""
        return ValueError(f"{self._where}: {shorten(message, 300)}")

    def _given(self, name: str) -> Any:
        """The configuration's own value under any of the field's names."""
        spellings = SPELLINGS.get(name, (name,))
        given = {key: self._values[key] for key in spellings if self._values.get(key) is not None}
        if not given:
            return None
        first, *others = given
        for other in others:
            if given[other] != given[first]:
                raise ValueError(
                    f"{self._where}: {first} is {shorten(repr(given[first]))}, but {other}, the same field, is"
                    f" {shorten(repr(given[other]))}"
                )
        return given[first]

    @property
    def _where(self) -> str:
        return f"configuration of family {self.family!r}"

    def _lacks(self, name: str) -> ValueError:
        spellings: Sequence[str] = SPELLINGS.get(name, (name,))
        also = f" (also read as {', '.join(s for s in spellings if s != name)})" if len(spellings) > 1 else ""
        return ValueError(f"{self._where} lacks {name}{also}, and the family has no default for it; add it")

    def _whole(self, name: str, value: Any, least: int) -> int:
        if type(value) is not int or value < least:
            raise self._wrong(name, value, f"a whole number of at least {least}")
        if value > most_of(name):
            raise self._wrong(name, value, f"at most {most_of(name)}")
        return value

    def _wrong(self, name: str, value: Any, expected: str) -> ValueError:
        return ValueError(f"{self._where}: {name} is {shorten(repr(value))}; it must be {expected}")


@functools.cache
def class_defaults() -> dict[str, dict[str, Any]]:
    """Defaults of the configuration classes of ``transformers``, by family and field; tests hold them equal."""
    text = files("ciera_piper_core.models.hf").joinpath("defaults.json").read_text(encoding="utf-8")
    table: dict[str, dict[str, Any]] = json.loads(text)
    return table
