"""Where ranks that an outside launcher started meet, and what each then knows of its place."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

from bench.errors import LaunchError
from bench.launch.site import with_hardware
from bench.measure.clock import boot_id
from bench.suite import Site

if TYPE_CHECKING:
    from torch.distributed import PrefixStore

    from bench.launch.launchers import Launched
    from bench.launch.site import Device
    from bench.measure.group import RankGroup
    from bench.suite import Scope

RENDEZVOUS_TIMEOUT_S = 120
LOOPBACK_ADDRESSES = ("127.0.0.1", "localhost", "::1")


def meet(launched: Launched) -> PrefixStore:
    """The ranks' rendezvous over TCP: the launcher's own where it serves one, else rank 0's.

    Raises:
        LaunchError: nobody answers there, or the port is taken.
    """
    from torch.distributed import PrefixStore, TCPStore

    if launched.master_address in LOOPBACK_ADDRESSES:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        store = TCPStore(
            launched.master_address,
            launched.master_port,
            launched.world,
            is_master=launched.rank == 0 and not launched.agent_store,
            timeout=timedelta(seconds=RENDEZVOUS_TIMEOUT_S),
        )
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        raise LaunchError(
            f"rank {launched.rank} cannot meet the others at {launched.master_address}:{launched.master_port}"
            f" ({text}); if the port is taken, set MASTER_PORT to a free one"
        ) from error
    # Ranks that torchrun starts again meet in the same store, where the keys of the first attempt still are.
    return PrefixStore(f"bench/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def place(group: RankGroup, device: Device, seed: int) -> Site:
    """This rank's site (collective), from who really shares a host: launchers' counts may be another step's."""
    hosts = group.gather_objects(boot_id())
    nodes = list(dict.fromkeys(hosts))
    mine = hosts[group.rank]
    scope: Scope = "process" if group.world == 1 else "cluster" if len(nodes) > 1 else "loopback"
    if scope == "loopback" and device == "cuda":
        scope = "node"
    site = Site(
        rank=group.rank,
        world=group.world,
        local_rank=hosts[: group.rank].count(mine),
        ranks_per_node=max(hosts.count(host) for host in nodes),
        node=nodes.index(mine),
        nodes=len(nodes),
        device=device,
        scope=scope,
        seed=seed,
    )
    return with_hardware(site)
