"""The catalogue of mixture-of-experts architectures, by name."""

from __future__ import annotations

import difflib
import functools
import tomllib
from dataclasses import dataclass, fields
from importlib.resources import files
from typing import Any, Literal

HeadKind = Literal["mha", "gqa", "mla"]
HEAD_KINDS: tuple[HeadKind, ...] = ("mha", "gqa", "mla")


@dataclass(frozen=True)
class MLA:
    """Widths of multi-head latent attention.

    Attributes:
        q_lora: rank of the query's projection; 0 if it has full rank.
        kv_lora: rank of the latent that keys and values are made from.
        qk_nope, qk_rope: width of a head's query and key without and with rotation; the latter's
            key is shared by all heads.
        v_head: width of a head's value.
    """

    q_lora: int
    kv_lora: int
    qk_nope: int
    qk_rope: int
    v_head: int


@dataclass(frozen=True)
class Architecture:
    """Dimensions of one model; ``architectures.toml`` explains each field.

    With ``mla``, ``kv_heads`` equals ``heads`` and ``head_dim`` is the width of a head's query.
    """

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    top_k: int
    expert_ffn: int
    matrices_per_expert: int
    vocab: int
    source: Literal["config", "size"]
    total_params_billion: float
    active_params_billion: float | None = None
    mla: MLA | None = None
    shared_ffn: int = 0
    residual_ffn: int = 0
    dense_layers: int = 0
    dense_ffn: int = 0
    tied_embeddings: bool = False
    embeddings_in_total: bool = True

    @property
    def head_kind(self) -> HeadKind:
        """How heads share keys and values."""
        if self.mla:
            return "mla"
        return "mha" if self.kv_heads == self.heads else "gqa"


def names() -> list[str]:
    """Names of all architectures, in the catalogue's order."""
    return list(_catalogue())


def load(name: str) -> Architecture:
    """The architecture of that name.

    Raises:
        ValueError: no such architecture; the message names near ones.
    """
    known = _catalogue()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
        raise ValueError(f"unknown architecture {name!r}; {hint}")
    return known[name]


def parse(name: str, table: dict[str, Any]) -> Architecture:
    """An architecture from its TOML table.

    Raises:
        ValueError: a key is unknown or missing, or dimensions contradict each other.
    """
    values = dict(table)
    if "mla" in values:
        mla = MLA(**_checked(f"{name}.mla", values["mla"], MLA))
        derived = {"kv_heads": values.get("heads"), "head_dim": mla.qk_nope + mla.qk_rope}
        given = derived.keys() & values.keys()
        if given:
            raise ValueError(f"architecture {name!r}: {', '.join(sorted(given))} follow from mla; leave them out")
        values |= derived | {"mla": mla}
    architecture = Architecture(**_checked(name, {**values, "name": name}, Architecture))
    if architecture.heads % architecture.kv_heads:
        raise ValueError(
            f"architecture {name!r}: {architecture.heads} heads cannot share {architecture.kv_heads} kv_heads"
        )
    if architecture.matrices_per_expert not in (2, 3):
        raise ValueError(f"architecture {name!r}: matrices_per_expert is 2 or 3")
    return architecture


def _checked(where: str, values: dict[str, Any], record: type) -> dict[str, Any]:
    """``values`` if their keys fit the dataclass ``record``."""
    known = {field.name for field in fields(record)}
    unknown = sorted(values.keys() - known)
    if unknown:
        raise ValueError(f"architecture {where!r}: unknown key {unknown[0]!r}; known: {', '.join(sorted(known))}")
    try:
        record(**values)
    except TypeError as error:
        raise ValueError(f"architecture {where!r}: {str(error).partition('() ')[2]}") from None
    return values


@functools.cache
def _catalogue() -> dict[str, Architecture]:
    text = files("ciera_piper_core.models").joinpath("architectures.toml").read_text(encoding="utf-8")
    return {name: parse(name, table) for name, table in tomllib.loads(text).items()}
