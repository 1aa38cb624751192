"""What ``--slurm`` asks of Slurm: parsed, checked, and as lines of a batch script."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from bench.errors import UsageError, unknown_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Kind = Literal["count", "time", "memory", "word", "list", "flag"]


@dataclass(frozen=True)
class Key:
    """A key of ``--slurm``: Slurm's own name for it, and what its values look like."""

    slurm_name: str
    kind: Kind


KEYS = {
    "nodes": Key("nodes", "count"),
    "ranks-per-node": Key("ntasks-per-node", "count"),
    "cpus-per-rank": Key("cpus-per-task", "count"),
    "gpus-per-node": Key("gpus-per-node", "word"),
    "gres": Key("gres", "list"),
    "mem": Key("mem", "memory"),
    "exclusive": Key("exclusive", "flag"),
    "time": Key("time", "time"),
    "partition": Key("partition", "list"),
    "account": Key("account", "word"),
    "qos": Key("qos", "word"),
    "reservation": Key("reservation", "list"),
    "constraint": Key("constraint", "word"),
    "nodelist": Key("nodelist", "list"),
    "exclude": Key("exclude", "list"),
    "licenses": Key("licenses", "list"),
    "dependency": Key("dependency", "list"),
    "begin": Key("begin", "word"),
    "name": Key("job-name", "word"),
}
MOST = 1_000_000

_TIME = re.compile(r"\d{1,6}-([01]?\d|2[0-3])(:[0-5]?\d){0,2}|\d{1,6}(:[0-5]?\d)?|\d{1,6}(:[0-5]?\d){2}")
"""``days-hours[:minutes[:seconds]]``, ``minutes[:seconds]`` or ``hours:minutes:seconds``; 99 seconds are no part."""
_MEMORY = re.compile(r"\d{1,12}[KMGTkmgt]?")
_WORD = re.compile(r"[A-Za-z0-9_.,:=+@/*&|()\[\]!~^-]{1,200}")
"""No blanks, quotes, ``#`` or ``%``, which mean something in the lines of a batch script."""
_COMMA_OUTSIDE_BRACKETS = re.compile(r",(?![^\[]*\])")


@dataclass(frozen=True)
class JobOptions:
    """A job's shape and place.

    Attributes:
        nodes, ranks_per_node: how many; one task a rank.
        others: further keys of ``KEYS`` with their values, in the order typed; a flag's value is empty.
    """

    nodes: int = 1
    ranks_per_node: int = 1
    others: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for key, count in (("nodes", self.nodes), ("ranks-per-node", self.ranks_per_node)):
            if not 1 <= count <= MOST:
                raise UsageError(f"--slurm {key} needs a whole number from 1 to {MOST}, not {count}")
        for key, value in self.others:
            _check(key, value)

    @classmethod
    def parse(cls, texts: Sequence[str]) -> JobOptions:
        """The options of ``nodes=2,ranks-per-node=4,time=0:30:00``; several texts add up.

        A comma inside brackets, or before a word that is no key, belongs to the value of a list.

        Raises:
            UsageError: an unknown key, or a value that Slurm could not read; the message names it.
        """
        values: dict[str, str] = {}
        last = ""
        for part in (part.strip() for text in texts for part in _COMMA_OUTSIDE_BRACKETS.split(text)):
            key, equals, value = part.partition("=")
            if not equals and key not in KEYS and last and KEYS[last].kind == "list":
                values[last] += f",{key}"
                continue
            last = _known(key)
            if last in values:
                raise UsageError(f"--slurm {last} is given twice")
            if equals and KEYS[last].kind == "flag":
                raise UsageError(f"--slurm {last} takes no value; leave {value!r} out")
            if KEYS[last].kind != "flag" and not value:
                raise UsageError(f"--slurm {last} needs a value: {last}=...")
            values[last] = value
        for key, value in values.items():
            _check(key, value)
        nodes, ranks = int(values.pop("nodes", 1)), int(values.pop("ranks-per-node", 1))
        return cls(nodes, ranks, tuple(values.items()))

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.nodes * self.ranks_per_node

    def get(self, key: str) -> str:
        """The value of a further key, or nothing."""
        return dict(self.others).get(key, "")

    def directives(self) -> Iterator[str]:
        """The options of sbatch, in order."""
        yield f"--nodes={self.nodes}"
        yield f"--ntasks-per-node={self.ranks_per_node}"
        for key, value in self.others:
            name = KEYS[key].slurm_name
            yield f"--{name}={value}" if value else f"--{name}"


def _known(key: str) -> str:
    if key in KEYS:
        return key
    ours = [name for name, known in KEYS.items() if known.slurm_name == key]
    if ours:
        raise UsageError(f"unknown --slurm key {key!r}; did you mean {ours[0]}?")
    raise unknown_name("--slurm key", key, list(KEYS))


def _check(key: str, value: str) -> None:
    """Refuse a value that Slurm could not read, or that would end the line it stands in."""
    kind = KEYS[_known(key)].kind
    if kind == "count" and not (value.isascii() and value.isdigit() and 1 <= int(value[:8]) <= MOST):
        raise UsageError(f"--slurm {key} needs a whole number from 1 to {MOST}, not {value!r}")
    if kind == "time" and not _TIME.fullmatch(value):
        raise UsageError(
            f"--slurm time={value!r} is no time; write minutes, hours:minutes:seconds or days-hours, such as"
            " 30, 0:30:00 or 1-12"
        )
    if kind == "memory" and not _MEMORY.fullmatch(value):
        raise UsageError(f"--slurm {key}={value!r} is no memory; write MiB, or a number with K, M, G or T, such as 64G")
    if kind in ("word", "list") and not _WORD.fullmatch(value):
        raise UsageError(f"--slurm {key}={value!r} has what a batch script cannot hold: no blanks, quotes, # or %")
