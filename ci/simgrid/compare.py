"""Our engines beside SimGrid's answers, with the terms off that a fluid lacks: seconds, errors, and time taken.

In the project's environment and folder, with the stored answers::

    python -m ci.simgrid.compare results/reference/simgrid_alltoall.json

``--live PYTHON`` asks SimGrid again instead, case by case in turn with ours, on the same machine; it
is how the times of the two are compared (PYTHON is the one with SimGrid, mostly /usr/bin/python3).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ci.simgrid import cases
from ciera_piper_core.simulate import topology
from ciera_piper_core.simulate.closed_form import UniformModel
from ciera_piper_core.simulate.flows import schedule
from ciera_piper_core.simulate.fluid import RESOLUTION, predict
from ciera_piper_core.simulate.machine import Machine, Node

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ciera_piper_core.simulate.topology import Network

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Answer:
    """One case, answered by both.

    Attributes:
        case: what was asked. engine: ``closed form`` or ``max-min``.
        simgrid_s, ours_s: seconds of the exchange.
        simgrid_took_s, ours_took_s: CPU seconds to find out, without starting up.
    """

    case: cases.Case
    engine: str
    simgrid_s: float
    ours_s: float
    simgrid_took_s: float
    ours_took_s: float

    @property
    def error(self) -> float:
        """Ours over SimGrid's, less 1."""
        return self.ours_s / self.simgrid_s - 1

    @property
    def times_faster(self) -> float:
        return self.simgrid_took_s / self.ours_took_s


def machine_of(case: cases.Case) -> Machine:
    """The case's machine as our engines know it, all terms off."""
    node, wanted = case.node, case.network
    network: Network
    if isinstance(wanted, cases.Dragonfly):
        network = topology.Dragonfly(
            wanted.nodes_per_switch,
            wanted.switches_per_group,
            wanted.groups,
            wanted.link_bytes_s,
            wanted.local_links,
            wanted.global_links,
            "minimal",
        )
    else:
        injected = wanted.nodes_per_leaf * node.nics * node.nic_bytes_s
        network = topology.FatTree(wanted.nodes_per_leaf, leaf_taper=injected / (wanted.spines * wanted.link_bytes_s))
    return Machine(case.machine, Node(node.gpus, node.port_bytes_s, node.nics, node.nic_bytes_s), network)


def answers(case: cases.Case, stored: dict[str, Any], resolution: float = RESOLUTION) -> Iterator[Answer]:
    """Of each of our engines that can answer the case, beside SimGrid's stored answer.

    Args:
        resolution: of the max-min engine (``fluid.predict``); 0 for exact steps, as SimGrid's are.
    """
    machine = machine_of(case)
    job = machine.job(case.ranks)
    matrix = np.array(cases.matrix(case.traffic, case.ranks))
    engines = {
        "max-min": lambda: predict(machine, schedule(case.algorithm, job, matrix), resolution=resolution).seconds  # type: ignore[arg-type]
    }
    if case.traffic == "uniform":
        size = cases.BYTES_PER_PEER * case.ranks
        engines["closed form"] = lambda: float(UniformModel.of_job(machine, case.algorithm, job).at(size).seconds)  # type: ignore[arg-type]
    for name, engine in engines.items():
        began = time.process_time()
        seconds = engine()
        took = time.process_time() - began
        yield Answer(case, name, stored["seconds"], seconds, stored["simgrid_cpu_s"], max(took, 1e-9))


def stored_answers(path: Path) -> dict[str, dict[str, Any]]:
    """SimGrid's answers by case; cases whose description has changed since are left out."""
    entries = json.loads(path.read_text(encoding="utf-8"))["cases"]
    now = {case.name: json.loads(json.dumps({"name": case.name, **case.describe()})) for case in cases.cases()}
    return {
        entry["name"]: entry
        for entry in entries
        if entry["name"] in now and {key: entry.get(key) for key in now[entry["name"]]} == now[entry["name"]]
    }


def live_answer(python: str, case: cases.Case) -> dict[str, Any]:
    """SimGrid's answer of now, from the Python that has it."""
    command = [python, "-m", "ci.simgrid.oracle", "--case", case.name]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    answer: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return answer


def lines(found: Iterable[Answer]) -> Iterator[str]:
    """A table, a line an answer, the worst and the least times faster at its end."""
    of_seconds, of_cost = (
        f"{'SimGrid ms':>11} {'ours ms':>11} {'error':>7}",
        f"{'SimGrid s':>10} {'ours s':>8} {'times':>8}",
    )
    yield f"{'case':44} {'engine':11} {of_seconds} {of_cost}"
    kept = []
    for each in found:
        kept.append(each)
        yield (
            f"{each.case.name:44} {each.engine:11} {each.simgrid_s * 1e3:11.4f} {each.ours_s * 1e3:11.4f}"
            f" {each.error:+7.2%} {each.simgrid_took_s:10.3f} {each.ours_took_s:8.4f} {each.times_faster:8.0f}"
        )
    if kept:
        worst = max(kept, key=lambda each: abs(each.error))
        slowest = min(kept, key=lambda each: each.times_faster)
        yield f"{len(kept)} answers; largest error {worst.error:+.2%} ({worst.case.name}, {worst.engine});"
        yield f"least {slowest.times_faster:.1f} times faster ({slowest.case.name}, {slowest.engine})"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stored", type=Path, nargs="?", default=ROOT / "results/reference/simgrid_alltoall.json")
    parser.add_argument("--live", metavar="PYTHON", help="ask SimGrid now, with this Python")
    parser.add_argument("--exact", action="store_true", help="exact steps of the max-min engine, as SimGrid's are")
    parser.add_argument("--ranks", type=int, action="append", help="only cases of so many ranks; may be repeated")
    parser.add_argument("--algorithm", action="append", choices=cases.ALGORITHMS, help="likewise")
    parser.add_argument("--traffic", action="append", choices=cases.TRAFFIC, help="likewise")
    options = parser.parse_args()
    stored = {} if options.live else stored_answers(options.stored)
    wanted = [
        case
        for case in cases.cases()
        if (not options.ranks or case.ranks in options.ranks)
        and (not options.algorithm or case.algorithm in options.algorithm)
        and (not options.traffic or case.traffic in options.traffic)
        and (options.live or case.name in stored)
    ]
    resolution = 0.0 if options.exact else RESOLUTION

    def found() -> Iterator[Answer]:
        for case in wanted:
            theirs = live_answer(options.live, case) if options.live else stored[case.name]
            yield from answers(case, theirs, resolution)

    for line in lines(found()):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
