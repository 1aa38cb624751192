"""Machines to simulate: built-in ones, users' TOML files, and profiles that were measured."""

from __future__ import annotations

import dataclasses
import functools
import math
import tomllib
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from ciera_piper_core.platforms import load_platform, specification
from ciera_piper_core.platforms.platform import Status, Term
from ciera_piper_core.simulate import topology
from ciera_piper_core.simulate.emulated import lab_machine
from ciera_piper_core.simulate.machine import BANDWIDTHS, Machine, Node
from ciera_piper_core.simulate.terms import Terms, require_known

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ciera_piper_core.platforms.platform import Platform
    from ciera_piper_core.simulate.topology import Network

NETWORKS: Mapping[str, type] = {
    "dragonfly": topology.Dragonfly,
    "fat tree": topology.FatTree,
    "rail-optimised fat tree": topology.RailFatTree,
    "single switch": topology.SingleSwitch,
    "single node": topology.SingleNode,
}
"""Networks by the ``kind`` of a file's ``[network]`` table; its other keys are the network's attributes."""

SCALARS: Mapping[str, Any] = {"int": int, "float": (int, float), "bool": bool, "str": str}
"""What TOML has for an attribute, by its annotation."""

KINDS: Mapping[Any, str] = {
    int: "a whole number",
    (int, float): "a number",
    bool: "true or false",
    str: "text",
    dict: "a table",
}
LAB_KEY = "ranks-per-node="
"""What every text of an emulated cluster's shape holds, and no name or path."""

COPY_SAMPLE_BYTES = 1e9
"""Of a pass over memory whose rate stands for packing."""


def names() -> list[str]:
    """Names of the built-in machines."""
    return specification.names()


def load_machine(text: str) -> Machine:
    """The machine that a user means.

    Args:
        text: name of a built-in machine, path of a TOML file (``from_table``), path of a profile
            that ``bench characterize`` wrote, or the shape of an emulated cluster (``emulated.lab_machine``).

    Raises:
        ValueError: none of these, or a file that cannot be used; the message says what is wrong in it.
    """
    if LAB_KEY in text:
        return lab_machine(text)
    path = Path(text)
    if path.suffix == ".toml" and text not in names():
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ValueError(f"machine file {text!r} cannot be read: {error.strerror}") from error
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ValueError(f"machine file {text!r} cannot be read: {error}") from error
        return from_table(path.stem, table)
    return from_platform(load_platform(text))


def from_platform(platform: Platform) -> Machine:
    """A machine from what the planner knows of it, and the terms that ``machine_terms.toml`` has for its name."""
    entry = topology.Entry(platform.nics_per_node, max(platform.nic_bytes_s * platform.nic_share, 1.0))
    terms = Terms(
        message_intra_s=platform.message_seconds.intra,
        message_inter_s=platform.message_seconds.inter,
        peers_that_halve=platform.congestion.peers_that_halve,
        incast_most=platform.congestion.most,
        copy_bytes_s=COPY_SAMPLE_BYTES / float(platform.rates.memory_seconds(COPY_SAMPLE_BYTES)),
        known={
            "message_intra_s": platform.terms["messages"],
            "message_inter_s": platform.terms["messages"],
            "peers_that_halve": platform.terms["congestion"],
            "incast_most": platform.terms["congestion"],
            "copy_bytes_s": platform.terms["memory_bandwidth"],
        },
    )
    return Machine(
        platform.name,
        Node(
            platform.gpus_per_node,
            platform.intra_node_bytes_s * platform.intra_node_share,
            entry.nics,
            entry.nic_bytes_s,
        ),
        _network_of(platform, entry),
        _with_terms(platform.name, terms, _built_in_terms().get(platform.name, {})),
        platform.max_gpus,
        {name: platform.terms[name] for name in BANDWIDTHS},
    )


def _network_of(platform: Platform, entry: topology.Entry) -> Network:
    """The network that a platform's few numbers describe."""
    if platform.topology == "single node" or platform.nic_bytes_s == 0:
        return topology.SingleNode()
    nodes = platform.max_gpus // platform.gpus_per_node
    hop, group = platform.single_hop_nodes, platform.group_nodes
    if platform.topology == "dragonfly":
        return topology.Dragonfly(
            hop, math.ceil(group / hop), math.ceil(nodes / group), entry.nic_bytes_s, taper=platform.taper
        )
    if "rail" in platform.topology:
        return topology.RailFatTree(hop, unit_taper=platform.taper, nodes=nodes)
    if platform.topology == "fat-tree":
        pods = math.ceil(group / hop) if group < nodes else 0
        return topology.FatTree(hop, pods, pod_taper=platform.taper, nodes=nodes)
    return topology.SingleSwitch()


def from_table(name: str, table: Mapping[str, Any]) -> Machine:
    """A machine from a user's table.

    ``base`` names a built-in machine or a profile, whose values hold where the table has none. Without
    it ``[node]`` and ``[network]`` must be complete: the attributes of ``machine.Node``; ``kind`` and
    the attributes of a class of ``topology``. ``[terms]`` has ``name = { value = 1e-6, source =
    "measured: ..." }``, the source beginning with measured, specified or assumed.

    Raises:
        ValueError: an unknown or missing key, or a value out of range.
    """
    known = {"name", "base", "max_gpus", "node", "network", "terms"}
    if unknown := sorted(table.keys() - known):
        raise ValueError(f"machine {name!r}: unknown key {unknown[0]!r}; known: {', '.join(sorted(known))}")
    for key, value in table.items():
        wanted = str if key in ("name", "base") else int if key == "max_gpus" else dict
        if not _is_a(value, wanted):
            raise ValueError(f"machine {name!r}: {key} must be {KINDS[wanted]}, not {value!r}")
    name = table.get("name", name)
    base = _base(name, table["base"]) if "base" in table else None
    node_table, network_table = table.get("node", {}), table.get("network")
    if base is None and (not node_table or network_table is None):
        raise ValueError(f"machine {name!r} needs [node] and [network], or a base to take them from")
    node = _made(name, "node", Node, {**(vars(base.node) if base else {}), **node_table})
    network = _network(name, network_table) if network_table is not None else base.network  # type: ignore[union-attr]
    stated = Term("specified", f"by the file of machine {name!r}")
    how = {
        "intra_node": stated if "port_bytes_s" in node_table else None,
        "inter_node": stated if "nic_bytes_s" in node_table else None,
        "topology": stated if network_table is not None else None,
    }
    inherited = base.known if base else {}
    return Machine(
        name,
        node,
        network,
        _with_terms(name, base.terms if base else Terms(), table.get("terms", {})),
        table.get("max_gpus", base.max_gpus if base else 1 << 30),
        {key: how[key] or inherited.get(key, stated) for key in BANDWIDTHS},
    )


def _base(name: str, text: str) -> Machine:
    """The built-in machine or profile that a file changes; another file would be a chain that nobody can follow."""
    if Path(text).suffix == ".toml":
        raise ValueError(f"machine {name!r}: base is a built-in platform or a profile, not a machine file ({text!r})")
    return from_platform(load_platform(text))


def _network(name: str, table: Mapping[str, Any]) -> Network:
    attributes = dict(table)
    kind = attributes.pop("kind", None)
    if kind not in NETWORKS:
        raise ValueError(f"machine {name!r}: network kind must be one of {', '.join(NETWORKS)}, not {kind!r}")
    network: Network = _made(name, "network", NETWORKS[kind], attributes)
    return network


def _made(name: str, where: str, wanted: type, attributes: Mapping[str, Any]) -> Any:
    """An instance of a dataclass, with a sentence for what does not fit."""
    fields = {field.name: field for field in dataclasses.fields(wanted)}
    if unknown := sorted(attributes.keys() - fields.keys()):
        known = f"known: {', '.join(fields)}" if fields else "it takes nothing but its kind"
        raise ValueError(f"machine {name!r}: {where} has no {unknown[0]!r}; {known}")
    for key, field in fields.items():
        if key not in attributes:
            if field.default is dataclasses.MISSING:
                raise ValueError(f"machine {name!r}: {where} needs {key}")
            continue
        kind = SCALARS.get(str(field.type).removesuffix(" | None"))
        value = attributes[key]
        if kind and value is not None and not _is_a(value, kind):
            raise ValueError(f"machine {name!r}: {where}: {key} must be {KINDS[kind]}, not {value!r}")
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in attributes.items()}
    try:
        return wanted(**values)
    except TypeError as error:
        raise ValueError(f"machine {name!r}: {where}: {error}") from error
    except ValueError as error:
        raise ValueError(f"machine {name!r}: {error}") from error


def _is_a(value: object, kind: Any) -> bool:
    """Whether it is of that kind to a reader: to Python alone, true is a number."""
    return isinstance(value, kind) and isinstance(value, bool) == (kind is bool)


def _with_terms(name: str, terms: Terms, table: Mapping[str, Any]) -> Terms:
    require_known(list(table))
    values: dict[str, float] = {}
    how: dict[str, Term] = {}
    for term, entry in table.items():
        if not isinstance(entry, dict) or entry.keys() != {"value", "source"}:
            raise ValueError(f"machine {name!r}: the term {term} needs a value and a source, and nothing else")
        status, _, text = str(entry["source"]).partition(": ")
        if status not in get_args(Status) or not text:
            raise ValueError(
                f"machine {name!r}: the source of {term} must begin with measured, specified or assumed and a colon"
            )
        if not isinstance(entry["value"], (int, float)) or isinstance(entry["value"], bool):
            raise ValueError(f"machine {name!r}: the value of {term} must be a number, not {entry['value']!r}")
        values[term], how[term] = float(entry["value"]), Term(status, text)  # type: ignore[arg-type]  # just checked
    try:
        return replace(terms, **values, known={**terms.known, **how})
    except ValueError as error:
        raise ValueError(f"machine {name!r}: {error}") from error


@functools.cache
def _built_in_terms() -> dict[str, dict[str, Any]]:
    text = files("ciera_piper_core.simulate").joinpath("machine_terms.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
