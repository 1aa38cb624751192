"""Asks SimGrid how long all-to-all exchanges take, and writes its answers as reference data.

It runs under the Python that has the SimGrid package of the distribution (Debian: ``apt-get install
python3-simgrid``), and uses nothing else. In the project's folder::

    /usr/bin/python3 -m ci.simgrid.oracle --write results/reference/simgrid_alltoall.json

Answers that the file has already are kept (a case whose description has changed is asked again), so
that an interrupted run goes on. ``--case NAME`` asks one case and prints it; ``--list`` names all.

What is simulated: SimGrid's fluid network model CM02 without latency, bandwidth factor 1, and no
traffic of acknowledgements, so that flows share links fairly (max-min) and nothing else costs time.
Nodes are zones of their own: a GPU reaches the others of its node over its port, and the rest of the
world over its NIC; the nodes hang on SimGrid's own Dragonfly (minimal routing) or fat tree
(destination modulo spines). A rank starts a phase when it has finished the phases that it needs, and
a flow starts when its sender and its receiver both have.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from ci.simgrid import cases
from ci.simgrid.cases import Case, Dragonfly

ROOT = Path(__file__).resolve().parents[2]

SETTINGS = {
    "network/model": "CM02",
    "network/optim": "Lazy",
    "network/crosstraffic": "0",
    "network/TCP-gamma": "0",
    "network/weight-S": "0",
    "network/bandwidth-factor": "1",
    "network/latency-factor": "1",
    "maxmin/concurrency-limit": "-1",
    "surf/precision": "1e-9",
}

Flow = tuple[int, int, int]
"""Sender, receiver, bytes."""

Phase = tuple[list[Flow], list[int]]
"""Flows, and the numbers of the phases that sender and receiver must have finished."""


def phases_of(algorithm: str, traffic: list[list[int]], gpus: int) -> list[Phase]:
    """The flows of an algorithm, written from its description and apart from the project's own.

    Args:
        traffic: bytes from each rank to each.
        gpus: ranks of each node, in order.
    """
    ranks = range(len(traffic))
    sums: list[dict[tuple[int, int], int]] = [{}, {}, {}]

    def add(phase: int, sender: int, receiver: int, size: int) -> None:
        if sender != receiver and size:
            sums[phase][sender, receiver] = sums[phase].get((sender, receiver), 0) + size

    for i in ranks:
        for j in ranks:
            home, there, place = i // gpus, j // gpus, i % gpus
            if algorithm == "flat":
                add(0, i, j, traffic[i][j])
            elif algorithm == "two_phase":
                relay = home * gpus + j % gpus
                add(0, i, relay, traffic[i][j])
                add(1, relay, j, traffic[i][j])
            elif home == there:
                add(0, i, j, traffic[i][j])
            else:
                relay = there * gpus + place
                add(1, i, relay, traffic[i][j])
                add(2, relay, j, traffic[i][j])
    needs: dict[str, list[list[int]]] = {
        "flat": [[]],
        "two_phase": [[], [0]],
        "halo_v0": [[], [0], [1]],
        "halo_v1": [[], [], [0, 1]],
        "halo_v2": [[1], [], [1]],
    }
    flows = [[(i, j, size) for (i, j), size in each.items()] for each in sums]
    return [(flows[phase], wanted) for phase, wanted in enumerate(needs[algorithm])]


def build(engine, case: Case) -> list:  # type: ignore[no-untyped-def]  # SimGrid has no types
    """The platform; the hosts that stand for ranks, in order."""
    from simgrid import ClusterCallbacks, DragonflyParams, FatTreeParams, Link, LinkInRoute, NetZone

    node, network, hosts = case.node, case.network, {}

    def link(zone, name: str, bytes_s: float):  # type: ignore[no-untyped-def]
        made = zone.create_split_duplex_link(name, bytes_s)
        made.set_latency(0)
        made.seal()
        return made

    def make_node(parent, coordinates, number):  # type: ignore[no-untyped-def]
        zone = NetZone.create_full_zone(f"node{number}")
        zone.set_parent(parent)
        gateway = zone.create_router(f"gateway{number}")
        gpus = [zone.create_host(f"gpu{number}.{place}", 1e9) for place in range(node.gpus)]
        ports = [link(zone, f"port{number}.{place}", node.port_bytes_s) for place in range(node.gpus)]
        nics = [link(zone, f"nic{number}.{nic}", node.nic_bytes_s) for nic in range(node.nics)]
        for a, first in enumerate(gpus):
            for b in range(a + 1, node.gpus):
                between = [LinkInRoute(ports[a], LinkInRoute.UP), LinkInRoute(ports[b], LinkInRoute.DOWN)]
                zone.add_route(first.netpoint, gpus[b].netpoint, None, None, between, True)
            nic = nics[a * node.nics // node.gpus]
            zone.add_route(first.netpoint, gateway, None, None, [LinkInRoute(nic, LinkInRoute.UP)], True)
        zone.seal()
        hosts[number] = gpus
        return zone.netpoint, gateway

    callbacks = ClusterCallbacks(make_node, None, None)
    duplex = Link.SharingPolicy.SPLITDUPLEX
    if isinstance(network, Dragonfly):
        parameters = DragonflyParams(
            (network.groups, network.global_links),
            (1, 1),
            (network.switches_per_group, network.local_links),
            network.nodes_per_switch,
        )
        create = NetZone.create_dragonfly_zone
    else:
        parameters = FatTreeParams(2, [network.nodes_per_leaf, network.leaves], [1, network.spines], [1, 1])
        create = NetZone.create_fatTree_zone
    create("network", engine.netzone_root, parameters, callbacks, network.link_bytes_s, 0, duplex).seal()
    return [gpu for number in sorted(hosts) for gpu in hosts[number]][: case.ranks]


def ask(case: Case) -> dict[str, float | int]:
    """Seconds of one case, and what it took to find out; once a process, as SimGrid demands."""
    from simgrid import Actor, Comm, Engine, Mailbox

    phases = phases_of(case.algorithm, cases.matrix(case.traffic, case.ranks), case.node.gpus)
    engine = Engine(
        ["oracle", "--log=root.thres:warning", *(f"--cfg={key}:{value}" for key, value in SETTINGS.items())]
    )
    hosts = build(engine, case)

    def all_at_once() -> None:
        # One actor: SimGrid is several times faster with it than with one a rank.
        for flow in [Comm.sendto_async(hosts[i], hosts[j], size) for i, j, size in phases[0][0]]:
            flow.wait()

    def rank(number: int, own: list[tuple[list[Flow], list[Flow], list[int]]]) -> None:
        done: set[int] = set()
        started: dict[int, list] = {}
        payloads: list = []  # SimGrid writes into them, so they must live as long as the actor.
        while len(done) < len(own):
            for phase, (sent, received, needs) in enumerate(own):
                if phase not in started and done.issuperset(needs):
                    puts = [Mailbox.by_name(f"{phase}:{i}:{j}").put_async(0, size) for i, j, size in sent]
                    gets = [Mailbox.by_name(f"{phase}:{i}:{j}").get_async() for i, j, _ in received]
                    payloads.extend(gets)
                    started[phase] = [*puts, *(transfer for transfer, _ in gets)]
            for phase in started.keys() - done:
                for transfer in started[phase]:
                    transfer.wait()
                done.add(phase)

    if case.algorithm == "flat":
        Actor.create("all", hosts[0], all_at_once)
    else:
        own: list[list[tuple[list[Flow], list[Flow], list[int]]]] = [
            [([], [], needs) for _, needs in phases] for _ in hosts
        ]
        for phase, (flows, _) in enumerate(phases):
            for flow in flows:
                own[flow[0]][phase][0].append(flow)
                own[flow[1]][phase][1].append(flow)
        for number, host in enumerate(hosts):
            Actor.create(f"rank{number}", host, rank, number, own[number])
    wall, cpu = time.perf_counter(), time.process_time()
    engine.run()
    return {
        "seconds": engine.clock,
        "flows": sum(len(flows) for flows, _ in phases),
        "simgrid_wall_s": round(time.perf_counter() - wall, 4),
        "simgrid_cpu_s": round(time.process_time() - cpu, 4),
    }


def ask_apart(case: Case, limit_s: float) -> dict[str, float | int]:
    """The answer to one case, from a process of its own.

    Raises:
        RuntimeError: SimGrid failed, or took longer than ``limit_s``.
    """
    command = [sys.executable, "-m", "ci.simgrid.oracle", "--case", case.name]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, cwd=ROOT)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{case.name}: no answer within {limit_s:g} s") from None
    if run.returncode:
        raise RuntimeError(f"{case.name}: SimGrid ended with {run.returncode}: {run.stderr.strip()[-400:]}")
    answer: dict[str, float | int] = json.loads(run.stdout.splitlines()[-1])
    return answer


def write(path: Path, names: list[str], limit_s: float) -> list[str]:
    """Ask all cases that the file does not answer, writing it after each; what went wrong, in words."""
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"cases": []}
    known = {entry["name"]: entry for entry in stored["cases"]}
    entries, faults = [], []
    todo = cases.cases()
    for number, case in enumerate(todo, 1):
        description = {"name": case.name, **case.describe()}
        entry = known.get(case.name, {})
        if {key: entry.get(key) for key in description} == json.loads(json.dumps(description)):
            entries.append(entry)
            continue
        if names and case.name not in names:
            continue
        print(f"{number}/{len(todo)} {case.name}", file=sys.stderr, flush=True)
        try:
            entries.append({**description, **ask_apart(case, limit_s)})
        except RuntimeError as error:
            faults.append(str(error))
            continue
        later = [known[each.name] for each in todo[number:] if each.name in known]
        save(path, entries + later)
    save(path, entries)
    return faults


def save(path: Path, entries: list[dict]) -> None:
    """The whole file, in one step, a case a line."""
    import simgrid

    head = {
        "about": "Seconds of all-to-all exchanges by SimGrid's fluid network model; ci/simgrid/oracle.py wrote it.",
        "simgrid": simgrid.simgrid_version,
        "settings": SETTINGS,
        "written": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
    }
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    text = json.dumps(head, indent=1)[:-2] + f',\n "cases": [\n{lines}\n]\n}}\n'
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", type=Path, metavar="FILE", help="ask what FILE does not answer yet")
    what.add_argument("--case", metavar="NAME", help="ask one case and print its answer")
    what.add_argument("--list", action="store_true", help="names of all cases")
    parser.add_argument("--limit", type=float, default=900, metavar="SECONDS", help="for one case")
    parser.add_argument("names", nargs="*", help="with --write: only these")
    options = parser.parse_args()
    if options.list:
        print("\n".join(case.name for case in cases.cases()))
        return 0
    if options.case:
        found = [case for case in cases.cases() if case.name == options.case]
        if not found:
            parser.error(f"no case {options.case!r}; --list names all")
        print(json.dumps(ask(found[0])))
        return 0
    faults = write(options.write, options.names, options.limit)
    print("\n".join(faults), file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
