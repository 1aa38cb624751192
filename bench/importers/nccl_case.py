"""What a number of nccl-tests is of: its ranks and devices, its case, and whether it can be one at all."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.definitions import BUSBW_FACTORS
from bench.importers.contents import as_int, as_number, quoted
from bench.importers.definitions import (
    NCCL_TESTS_ALGBW,
    NCCL_TESTS_BUSBW,
    NCCL_TESTS_CPU_TIME,
    NCCL_TESTS_LATENCY,
    NCCL_TESTS_P99,
)

if TYPE_CHECKING:
    from bench.importers.contents import Contents
    from bench.store.row import Status

OPERATIONS = {"alltoall": "all_to_all", "sendrecv": "send_recv"}
"""Names of the operations that have another one in ``bench.definitions``."""
PRINTED_STEP_GB_S = 0.01
PLACEMENTS = ("out_of_place", "in_place")

_RANK = re.compile(
    r"#\s+Rank\s+(\d+)(?:\s+Group\s+(\d+))?\s+Pid\s+(\d+)\s+on\s+(\S+)\s+device\s+(\d+)\s+\[[^\]]*\]\s*(.*)"
)


@dataclass
class World:
    """A group of ranks.

    Attributes:
        ranks: by rank, its group, host and device's model.
        tool: ``nccl-tests 2.17.1``; empty for versions that do not tell.
        library: version of NCCL or RCCL; empty where it is not told.
        gpus_a_process: threads times GPUs a thread.
    """

    ranks: dict[int, tuple[int, str, str]] = field(default_factory=dict)
    tool: str = ""
    library: str = ""
    gpus_a_process: int = 0

    def set_version(self, family: str, version: str, library: str | None) -> None:
        """The version of the tool, and of its library by the number in which NCCL codes it."""
        self.tool = f"{family}-tests {version}"
        self.library = library_version(library)

    def read_rank(self, text: str) -> bool:
        """Take the line of a rank; False if it is none."""
        match = _RANK.search(text)
        if match is None:
            return False
        rank, group, _, host, _, model = match.groups()
        self.ranks[int(rank)] = (int(group or 0), host, model.strip())
        return True

    def params(self) -> dict[str, Any]:
        """Parameters that the place decides: ranks of a group, nodes, and groups where there are several."""
        if not self.ranks:
            return {}
        groups = Counter(group for group, _, _ in self.ranks.values())
        params = {"ranks": max(groups.values()), "nodes": len({host for _, host, _ in self.ranks.values()})}
        return params if len(groups) == 1 else {**params, "groups": len(groups)}

    def identity(self) -> dict[str, Any]:
        """Software and kinds of device. Their number is in the parameters: one log may hold a sweep over it."""
        models = sorted({model for _, _, model in self.ranks.values()})
        found = {"harness": self.tool, "nccl": self.library, "gpus": [{"model": model} for model in models]}
        return {name: value for name, value in found.items() if value}

    def report(self, contents: Contents) -> str:
        """Put what is known of the machine into a file's contents.

        Returns:
            how it differs from what the rows before were measured on, for one run has one machine; else nothing.
        """
        identity = self.identity()
        known = {name: value for name, value in contents.identity.items() if name in ("harness", "nccl", "gpus")}
        if identity and known and identity != known:
            names = [name for name in {**known, **identity} if known.get(name) != identity.get(name)]
            return ", ".join(f"{name} {quoted(identity.get(name))} after {quoted(known.get(name))}" for name in names)
        contents.identity |= identity
        if self.ranks:
            hosts = {host for _, host, _ in self.ranks.values()}
            contents.volatile["hosts"] = sorted({*contents.volatile.get("hosts", []), *hosts})
            contents.tells_machine = True
        else:
            contents.note("the file does not list its ranks; --set ranks=N tells their number")
        return ""


def library_version(code: object) -> str:
    """``2.27.3`` from 22703, and ``2.8.4`` from 2804 (until 2.8 there were two digits less)."""
    try:
        number = int(str(code))
    except ValueError:
        return ""
    if number <= 0:
        return ""
    major, rest = divmod(number, 10_000 if number >= 10_000 else 1_000)
    return f"{major}.{rest // 100}.{rest % 100}"


COLUMNS = (
    ("time", "latency", NCCL_TESTS_LATENCY),
    ("cputime", "cpu_time", NCCL_TESTS_CPU_TIME),
    ("algbw", "algbw", NCCL_TESTS_ALGBW),
    ("busbw", "busbw", NCCL_TESTS_BUSBW),
    ("i_p99", "iteration_p99", NCCL_TESTS_P99),
)
"""Columns that become rows; minimum, maximum and variation of the iterations describe the same samples."""


def op_of(program: str) -> str:
    """``all_reduce`` from ``/opt/nccl-tests/build/all_reduce_perf``."""
    name = program.replace("\\", "/").rpartition("/")[2].removesuffix("_mpi")
    return name.removesuffix(".exe").removesuffix("_perf")


def case_params(op: str, described: dict[str, Any], placement: str, world: World) -> dict[str, Any]:
    """The parameters of a case; the number of elements follows from bytes and type, and is left out."""
    params: dict[str, Any] = {"op": op, "bytes": as_int(described.get("size")), "placement": placement}
    params["dtype"] = described.get("type", "")
    redop, root = str(described.get("redop", "none")).strip(), as_int(described.get("root"))
    if redop not in ("", "none"):
        params["redop"] = redop
    if root is not None and root >= 0:
        params["root"] = root
    return {**params, **world.params()}


def refined(column: str, cells: dict[str, str], params: dict[str, Any]) -> object:
    """A cell's number with more digits than were printed, where they follow from others of its line.

    Rates are printed to 0.01 GB/s, so that a small message's would change by half from noise alone. Bytes over
    the time, which has four digits, is the same number; it is taken if it rounds to what was printed.
    """
    printed, time = as_number(cells[column]), as_number(cells.get("time"))
    operation, ranks = OPERATIONS.get(params["op"], params["op"]), params.get("ranks")
    factor = 1.0 if column == "algbw" else None
    if column == "busbw" and operation in BUSBW_FACTORS and isinstance(ranks, int):
        factor = BUSBW_FACTORS[operation](ranks)
    if column not in ("algbw", "busbw") or printed is None or not time or factor is None or not params["bytes"]:
        return cells[column]
    exact = float(params["bytes"] / time / 1e3 * factor)
    return exact if abs(exact - printed) <= PRINTED_STEP_GB_S else cells[column]


def judge(wrong: int | None, world: World) -> tuple[Status, str]:
    """What becomes of a number: failed if elements are wrong, invalid if no rank had anybody to talk to.

    nccl-tests built without MPI starts many such worlds.
    """
    if wrong:
        return "failed", f"{wrong} wrong element(s)"
    if len(world.ranks) == 1:
        return "invalid", "a collective in a world of one: nothing was communicated (built without MPI?)"
    return "ok", ""
