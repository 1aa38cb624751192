"""Built-in specifications: machines by name, from ``specifications.toml``."""

from __future__ import annotations

import functools
import tomllib
from importlib.resources import files
from typing import Any, get_args

from ciera_piper_core.platforms.platform import (
    DEFAULT_DTYPE,
    ELEMENT_BYTES,
    TERMS,
    Congestion,
    Messages,
    Platform,
    Status,
    Term,
)
from ciera_piper_core.platforms.roofline import Efficiency, Roofline, Tile

COPIED = (
    "device",
    "gpus_per_node",
    "memory_bytes",
    "overhead_bytes",
    "memory_bandwidth_bytes_s",
    "peak_flops",
    "intra_node_bytes_s",
    "intra_node_share",
    "nics_per_node",
    "nic_bytes_s",
    "nic_share",
    "topology",
    "single_hop_nodes",
    "group_nodes",
    "taper",
)
"""Keys that are fields of a platform."""

NEEDED = (*COPIED, "nodes", "intra_message_seconds", "inter_message_seconds", "efficiency", "sources")
OPTIONAL = ("peers_that_halve", "most")


def names() -> list[str]:
    """Names of the built-in machines."""
    return list(_tables())


def load(name: str, dtype: str = DEFAULT_DTYPE) -> Platform:
    """The built-in machine of that name, computing in ``dtype``.

    Raises:
        ValueError: there is none.
    """
    tables = _tables()
    if name not in tables:
        raise ValueError(f"unknown platform {name!r}; built in: {', '.join(tables)}")
    return parse(name, tables[name], dtype)


def parse(name: str, table: dict[str, Any], dtype: str = DEFAULT_DTYPE) -> Platform:
    """A platform from its TOML table.

    Raises:
        ValueError: a key is missing or unknown, or a value is out of range.
    """
    _check_keys(name, table, NEEDED, OPTIONAL)
    efficiency = dict(table["efficiency"])
    _check_keys(f"{name}.efficiency", efficiency, tuple(Efficiency.__dataclass_fields__))
    efficiency["tiles"] = tuple(Tile(*tile) for tile in efficiency["tiles"])
    _check_keys(f"{name}.sources", table["sources"], TERMS)
    terms = {term: _term(f"{name}.sources.{term}", table["sources"][term]) for term in TERMS}
    congestion = {key: float(table[key]) for key in OPTIONAL if key in table}
    return Platform(
        name=name,
        **{key: table[key] for key in COPIED},
        max_gpus=table["nodes"] * table["gpus_per_node"],
        peak_source=str(terms["peak"]),
        message_seconds=Messages(table["intra_message_seconds"], table["inter_message_seconds"]),
        congestion=Congestion(**congestion),
        rates=Roofline(
            table["peak_flops"][dtype],
            table["memory_bandwidth_bytes_s"],
            Efficiency(**efficiency),
            ELEMENT_BYTES[dtype],
        ),
        dtype=dtype,
        terms=terms,
    )


def _check_keys(where: str, table: dict[str, Any], needed: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
    if missing := [key for key in needed if key not in table]:
        raise ValueError(f"specification {where!r} lacks {missing[0]!r}")
    if unknown := sorted(table.keys() - {*needed, *optional}):
        raise ValueError(f"specification {where!r}: unknown key {unknown[0]!r}")


def _term(where: str, text: str) -> Term:
    status, _, rest = text.partition(": ")
    for known in get_args(Status):
        if status == known and rest:
            return Term(known, rest)
    raise ValueError(f"specification {where!r} must begin with 'specified: ' or 'assumed: '")


@functools.cache
def _tables() -> dict[str, dict[str, Any]]:
    text = files("ciera_piper_core.platforms").joinpath("specifications.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
