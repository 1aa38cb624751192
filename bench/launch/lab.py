"""The emulated cluster: network namespaces on one machine, joined by links of a given rate.

``--lab nodes=4,ranks-per-node=2,rate=1gbit``. ``docs/lab.md`` says how it works and what it can and
cannot show. The network is made of anonymous namespaces that a holder process keeps
(``lab_holder``), so the host's own network is never touched and nothing outlives its processes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.definitions import BIT_RATE_UNITS, parse_bit_rate
from bench.errors import BenchError, LaunchError, UsageError
from bench.launch import lab_holder, lab_network
from bench.launch.lab_leftovers import MARK_VARIABLE, end_marked, new_mark, remove_leftovers

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Lab", "LabShape", "remove_leftovers", "unavailable_reason"]

EXAMPLE = "nodes=4,ranks-per-node=2,rate=1gbit"
KEYS = ("nodes", "ranks-per-node", "rate", "delay")

MAX_NODES = 1000
"""A Linux bridge has at most 1023 ports."""

MIN_RATE_BITS_PER_S = 10**6
MAX_RATE_BITS_PER_S = 10**12
MAX_DELAY_US = 10**6

ADMIN_PATHS = ("/usr/sbin", "/sbin")
"""Where ``ip`` and ``tc`` are looked for after PATH, which lacks these for ordinary users on Debian."""

_TOOLS = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux", "env": "coreutils"}
"""Programs that a lab needs, and the Debian packages that have them."""

_MODULES = {"tbf": "sch_tbf", "type bridge": "bridge", "type veth": "veth"}
"""Word in a command, and the kernel module behind it."""

_DELAY_UNITS_US = {"us": 1, "ms": 10**3, "s": 10**6}
_END_SECONDS = 10.0

# Kernel settings that keep ordinary users from making namespaces: file, value, and the command that undoes it.
_USER_NAMESPACE_SWITCHES = (
    ("/proc/sys/user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=10000"),
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    ),
)


@dataclass(frozen=True)
class LabShape:
    """What a lab looks like.

    Attributes:
        nodes: number of nodes.
        ranks_per_node: on each of them.
        rate_bits_per_s: of each node's link, in each direction.
        delay_us: one-way delay between any two nodes, added to the machine's own.
    """

    nodes: int
    ranks_per_node: int
    rate_bits_per_s: int
    delay_us: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= MAX_NODES:
            raise UsageError(f"a lab has 1 to {MAX_NODES} nodes, not {self.nodes}")
        if self.ranks_per_node < 1:
            raise UsageError(f"a lab's node needs at least 1 rank, not {self.ranks_per_node}")
        if not MIN_RATE_BITS_PER_S <= self.rate_bits_per_s <= MAX_RATE_BITS_PER_S:
            raise UsageError(f"a lab's rate is from 1mbit to 1tbit, not {_format_rate(self.rate_bits_per_s)}")
        if not 0 <= self.delay_us <= MAX_DELAY_US:
            raise UsageError(f"a lab's delay is from 0us to 1s, not {self.delay_us}us")

    @classmethod
    def parse(cls, text: str) -> LabShape:
        """The shape from ``nodes=4,ranks-per-node=2,rate=1gbit[,delay=100us]``, in any order.

        Raises:
            UsageError: a key is unknown, missing or given twice, or a value makes no sense.
        """
        values: dict[str, str] = {}
        for part in text.split(","):
            key, equals, value = (piece.strip() for piece in part.partition("="))
            if key not in KEYS:
                raise UsageError(f"unknown key {key!r} in lab {text!r}; known: {', '.join(KEYS)}")
            if not equals or not value:
                raise UsageError(f"{key} has no value in lab {text!r}; write for example {EXAMPLE}")
            if key in values:
                raise UsageError(f"{key} is given twice in lab {text!r}")
            values[key] = value
        missing = [key for key in KEYS if key not in values and key != "delay"]
        if missing:
            raise UsageError(f"lab {text!r} lacks {' and '.join(missing)}; write for example {EXAMPLE}")
        return cls(
            nodes=_parse_count("nodes", values["nodes"]),
            ranks_per_node=_parse_count("ranks-per-node", values["ranks-per-node"]),
            rate_bits_per_s=parse_bit_rate(values["rate"]),
            delay_us=_parse_delay(values.get("delay", "0us")),
        )

    def __str__(self) -> str:
        delay = f",delay={self.delay_us}us" if self.delay_us else ""
        rate = _format_rate(self.rate_bits_per_s)
        return f"nodes={self.nodes},ranks-per-node={self.ranks_per_node},rate={rate}{delay}"

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.nodes * self.ranks_per_node


class Lab:
    """A running lab. Use it as a context manager: it is built on entry, and on exit all that runs in it is killed.

    If the owner, which is the process that enters it, dies in whatever way, the same happens.
    """

    def __init__(self, shape: LabShape) -> None:
        self.shape = shape
        self._holder: subprocess.Popen[str] | None = None
        self._enter: list[str] = []
        self._mark = ""

    def __enter__(self) -> Lab:
        """Build the network.

        Raises:
            LaunchError: a tool is missing, or the kernel refuses or lacks something.
        """
        tools = {name: _find_tool(name, package) for name, package in _TOOLS.items()}
        self._mark = new_mark()
        # A session of its own, so that Ctrl-C in the terminal does not take the network from under the ranks.
        self._holder = subprocess.Popen(
            [sys.executable, "-I", "-S", lab_holder.__file__],
            env={**os.environ, MARK_VARIABLE: self._mark},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            user_namespace = self._build(tools)
        except BaseException:
            self.close()
            raise
        user = [f"--user=/proc/{self._holder.pid}/ns/user", "--preserve-credentials"] if user_namespace else []
        self._enter = [tools["env"], f"{MARK_VARIABLE}={self._mark}", tools["nsenter"], *user, "--net={}", "--"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill all that runs in the lab and remove its network; does nothing the second time."""
        holder, self._holder = self._holder, None
        if holder is None:
            return
        try:
            # A word, because a child that was forked from here may keep the pipe open.
            holder.communicate("end\n", timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            holder.kill()
            holder.communicate()
        # What was about to enter a node when the holder looked for what to kill.
        end_marked(self._mark)

    def node_command(self, node: int, argv: list[str]) -> list[str]:
        """``argv`` so that it runs on a node: in its network, and else in the caller's surroundings.

        The command replaces itself twice and then is ``argv``, so that process id, descriptors, working
        directory and environment are kept; the latter gains the owner's mark. Without root, the process
        sees itself as user 0, which outside is still the caller.

        Raises:
            LaunchError: the lab is not there, or not any more.
            ValueError: there is no such node.
        """
        self._require(node)
        if self._holder is None:
            raise LaunchError("the lab is not running; enter it first")
        if self._holder.poll() is not None:
            raise LaunchError(f"the lab's holder, process {self._holder.pid}, has ended and its network with it")
        path = lab_holder.namespace_path(self._holder.pid, node + 1)
        return [*(part.format(path) for part in self._enter), *argv]

    def node_address(self, node: int) -> str:
        """The address at which ranks of any node reach this one.

        Raises:
            ValueError: there is no such node.
        """
        self._require(node)
        return lab_network.node_address(node)

    def node_interface(self, node: int) -> str:
        """The interface that has the node's address, for ``GLOO_SOCKET_IFNAME`` and ``NCCL_SOCKET_IFNAME``.

        Raises:
            ValueError: there is no such node.
        """
        self._require(node)
        return lab_network.INTERFACE

    def _require(self, node: int) -> None:
        if not 0 <= node < self.shape.nodes:
            raise ValueError(f"no node {node} in a lab of {self.shape.nodes}")

    def _build(self, tools: dict[str, str]) -> bool:
        """Have the holder build the network; True if it needed a user namespace for that."""
        assert self._holder is not None
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        assert self._holder.stderr is not None
        shape = self.shape
        steps = lab_network.build_steps(shape.nodes, shape.rate_bits_per_s, shape.delay_us, self._holder.pid, tools)
        request = {"owner": os.getpid(), "namespaces": shape.nodes + 1, "steps": steps}
        try:
            self._holder.stdin.write(json.dumps(request) + "\n")
            self._holder.stdin.flush()
            answer = self._holder.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            said = self._holder.stderr.read().strip().splitlines()
            raise LaunchError(f"the lab's holder ended at once: {said[-1] if said else 'it was killed'}")
        outcome: dict[str, Any] = json.loads(answer)
        if "error" in outcome:
            raise LaunchError(_explain(outcome["error"], outcome.get("refused")))
        return bool(outcome["user_namespace"])


def unavailable_reason() -> str | None:
    """Why no lab can be built here, with what would change that; None if a small one was built and removed."""
    try:
        with Lab(LabShape(nodes=2, ranks_per_node=1, rate_bits_per_s=10**9)):
            return None
    except BenchError as error:
        return str(error)


def _find_tool(name: str, package: str) -> str:
    path = shutil.which(name) or shutil.which(name, path=os.pathsep.join(ADMIN_PATHS))
    if path is None:
        raise LaunchError(f"a lab needs the program {name!r}, which is not installed; run: apt install {package}")
    return path


def _explain(error: str, refused: str | None) -> str:
    """The holder's error, with what to do about it."""
    if refused == "user namespace":
        for path, value, command in _USER_NAMESPACE_SWITCHES:
            if Path(path).is_file() and Path(path).read_text().strip() == value:
                return f"cannot build the lab: {error}; run as root, or first as root: {command}"
        return f"cannot build the lab: {error}; run as root"
    if "qdisc kind is unknown" in error or "Unknown device type" in error:
        if "netem" in error:
            return "cannot build the lab: this kernel lacks sch_netem, which makes delays; drop delay= from --lab"
        module = next(module for word, module in _MODULES.items() if word in error)
        return f"cannot build the lab: this kernel lacks {module}; run as root: modprobe {module}"
    return f"cannot build the lab: {error}"


def _parse_count(key: str, value: str) -> int:
    if not value.isdecimal() or len(value) > 9:
        raise UsageError(f"{key} in a lab takes a whole number, not {value!r}")
    return int(value)


def _parse_delay(text: str) -> int:
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)(us|ms|s)", text)
    if not match:
        raise UsageError(f"{text!r} is not a delay; write for example 100us or 2ms")
    return round(float(match.group(1)) * _DELAY_UNITS_US[match.group(2)])


def _format_rate(bits_per_s: int) -> str:
    for unit, factor in sorted(BIT_RATE_UNITS.items(), key=lambda item: -item[1]):
        if bits_per_s >= factor and bits_per_s % factor == 0:
            return f"{bits_per_s // factor}{unit.lower()}"
    return f"{bits_per_s}bit"
