"""The catalogue of mixture-of-experts architectures, by name, and what ``--model`` takes."""

from __future__ import annotations

import difflib
import functools
import tomllib
from dataclasses import MISSING, dataclass, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from ciera_piper_core.models.architecture import MLA, Architecture, Attention, Experts, FeedForward, Layer
from ciera_piper_core.models.wording import shorten

if TYPE_CHECKING:
    from collections.abc import Iterator

Record = TypeVar("Record")


@dataclass(frozen=True)
class _Table:
    """One table of ``architectures.toml``, which explains each key."""

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
    qkv_bias: bool = False
    qk_norm: Literal["none", "head", "all"] = "none"
    norms_per_layer: int = 2
    position_buckets: int = 0
    shared_ffn: int = 0
    shared_gate: bool = False
    residual_ffn: int = 0
    dense_layers: int = 0
    dense_at: Literal["first", "even"] = "first"
    dense_ffn: int = 0
    dense_matrices: int = 0
    encoder_layers: int = 0
    mtp_layers: int = 0
    tied_embeddings: bool = False
    embeddings_in_total: bool = True


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
        raise ValueError(f"unknown architecture {name!r}; {_near(name)}")
    return known[name]


def model(text: str) -> Architecture:
    """What ``--model`` takes: a name of the catalogue, a Hugging Face ``config.json``, or its folder.

    Raises:
        ValueError: neither; or the configuration cannot be read exactly.
    """
    if text in _catalogue():
        return load(text)
    path = Path(text)
    if path.suffix == ".json" or _exists(path):
        from ciera_piper_core.models.hf import read_config

        return read_config(path)
    near = difflib.get_close_matches(text[:100], _catalogue(), n=3, cutoff=0.6)
    if near:
        help_ = f"did you mean {' or '.join(near)}? Otherwise give the path of a config.json"
    else:
        help_ = f"give the path of a config.json, or one of {', '.join(_catalogue())}"
    raise ValueError(f"unknown model {shorten(text)!r}; {help_}")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that no file can have
        return False


def parse(name: str, table: dict[str, Any]) -> Architecture:
    """An architecture from its TOML table.

    Raises:
        ValueError: a key is unknown or missing, or dimensions contradict each other.
    """
    values = dict(table)
    if "mla" in values:
        mla = _record(f"{name}.mla", values["mla"], MLA)
        derived = {"kv_heads": values.get("heads"), "head_dim": mla.qk_nope + mla.qk_rope}
        given = derived.keys() & values.keys()
        if given:
            raise ValueError(f"architecture {name!r}: {', '.join(sorted(given))} follow from mla; leave them out")
        values |= derived | {"mla": mla}
    t = _record(name, values, _Table)
    try:
        return _architecture(name, t)
    except ValueError as error:
        raise ValueError(f"architecture {name!r}: {error}") from None


def _architecture(name: str, t: _Table) -> Architecture:
    attention = _attention(t)
    norms = t.norms_per_layer * t.hidden
    experts = Experts(
        t.experts,
        t.top_k,
        t.expert_ffn,
        t.matrices_per_expert,
        shared_ffn=t.shared_ffn,
        shared_extra_parameters=t.hidden if t.shared_gate else 0,
    )
    residual = FeedForward(t.residual_ffn) if t.residual_ffn else None
    moe = Layer(attention, experts=experts, dense=residual, norm_parameters=norms)
    dense = None
    if t.dense_layers:
        block = FeedForward(t.dense_ffn, t.dense_matrices or t.matrices_per_expert)
        dense = Layer(attention, dense=block, norm_parameters=norms)
    stack = list(_stack(t, moe, dense))
    encoder = stack[: t.encoder_layers]
    decoder = stack[t.encoder_layers :]
    if not decoder:
        raise ValueError(f"encoder_layers is {t.encoder_layers}, but there are {t.layers} layers in all")
    if encoder:
        two_way = replace(attention, causal=False)
        encoder = [replace(layer, mixer=two_way) for layer in encoder]
        decoder = [replace(layer, cross=two_way, norm_parameters=norms + t.hidden) for layer in decoder]
    for part in (encoder, decoder):
        if part and t.position_buckets:
            # The first layer of a stack holds the relative positions for all.
            mixer = part[0].mixer
            assert isinstance(mixer, Attention)
            positions = mixer.extra_parameters + t.position_buckets * t.heads
            part[0] = replace(part[0], mixer=replace(mixer, extra_parameters=positions))
    # Norms of the embedding, of the last hidden state, and of the shared output.
    predicting = replace(moe, norm_parameters=norms + 3 * t.hidden)
    return Architecture(
        name=name,
        hidden=t.hidden,
        vocab=t.vocab,
        layers=tuple(decoder),
        encoder=tuple(encoder),
        mtp=(predicting,) * t.mtp_layers,
        tied_embeddings=t.tied_embeddings,
        extra_parameters=t.hidden * (2 if encoder else 1),
        embeddings_in_total=t.embeddings_in_total,
        source=t.source,
        total_params_billion=t.total_params_billion,
        active_params_billion=t.active_params_billion,
    )


def _attention(t: _Table) -> Attention:
    v_dim = t.mla.v_head if t.mla else t.head_dim
    extra = 0
    if t.mla:
        extra += t.mla.q_lora + t.mla.kv_lora
    if t.qkv_bias:
        extra += t.heads * t.head_dim + t.kv_heads * (t.head_dim + v_dim)
    if t.qk_norm == "head":
        extra += 2 * t.head_dim
    elif t.qk_norm == "all":
        extra += (t.heads + t.kv_heads) * t.head_dim
    elif t.qk_norm != "none":
        raise ValueError(f"qk_norm is {t.qk_norm!r}; it is none, head or all")
    return Attention(t.heads, t.kv_heads, t.head_dim, v_dim, t.mla, extra_parameters=extra)


def _stack(t: _Table, moe: Layer, dense: Layer | None) -> Iterator[Layer]:
    """Layers in order; dense ones first, or every second from the first on."""
    if t.dense_at not in ("first", "even"):
        raise ValueError(f"dense_at is {t.dense_at!r}; it is first or even")
    if not 0 <= t.dense_layers < t.layers:
        raise ValueError(f"dense_layers is {t.dense_layers}, but there are {t.layers} layers in all")
    if t.dense_at == "even" and 2 * t.dense_layers != t.layers:
        raise ValueError(f"dense_at is even, so dense_layers is half of {t.layers} layers, not {t.dense_layers}")
    for index in range(t.layers):
        is_dense = index < t.dense_layers if t.dense_at == "first" else index % 2 == 0
        yield dense if is_dense and dense is not None else moe


def _record(where: str, values: dict[str, Any], record: type[Record]) -> Record:
    """An instance of the dataclass ``record``, if the keys fit."""
    known = {field.name: field for field in fields(record)}  # type: ignore[arg-type]
    unknown = sorted(values.keys() - known.keys())
    if unknown:
        raise ValueError(f"architecture {where!r}: unknown key {unknown[0]!r}; known: {', '.join(sorted(known))}")
    missing = [name for name, field in known.items() if field.default is MISSING and name not in values]
    if missing:
        raise ValueError(f"architecture {where!r}: missing key {missing[0]!r}")
    try:
        return record(**values)
    except ValueError as error:
        raise ValueError(f"architecture {where!r}: {error}") from None


def _near(name: str) -> str:
    near = difflib.get_close_matches(name, _catalogue(), n=3, cutoff=0.4)
    return f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(_catalogue())}"


@functools.cache
def _catalogue() -> dict[str, Architecture]:
    text = files("ciera_piper_core.models").joinpath("architectures.toml").read_text(encoding="utf-8")
    return {name: parse(name, table) for name, table in tomllib.loads(text).items()}
