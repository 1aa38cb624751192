"""Where a rank runs: makes the Site of each rank of a group, and carries it between processes."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Literal

from bench.definitions import Ceiling
from bench.suite import Scope, Site

if TYPE_CHECKING:
    from bench.launch.lab import LabShape

Device = Literal["cpu", "cuda"]


def local_site(rank: int, world: int, device: Device, seed: int) -> Site:
    """A rank of a group on this host alone."""
    scope: Scope = "process" if world == 1 else "node" if device == "cuda" else "loopback"
    return Site(rank=rank, world=world, local_rank=rank, ranks_per_node=world, device=device, scope=scope, seed=seed)


def lab_site(rank: int, shape: LabShape, seed: int) -> Site:
    """A rank of a group in the emulated cluster: node by node, as launchers place ranks by block."""
    node, local_rank = divmod(rank, shape.ranks_per_node)
    return Site(
        rank=rank,
        world=shape.world,
        local_rank=local_rank,
        ranks_per_node=shape.ranks_per_node,
        node=node,
        nodes=shape.nodes,
        scope="lab",
        node_link_bits_per_s=shape.rate_bits_per_s,
        lab=str(shape),
        seed=seed,
    )


def with_hardware(site: Site) -> Site:
    """The site with what can be seen of the hardware, by a process on its host."""
    from bench.hardware import cuda_devices, last_level_cache_bytes, peaks_tflops, usable_cores

    gpu_model, cache_bytes = None, last_level_cache_bytes()
    if site.device == "cuda":
        devices = cuda_devices()
        gpu = devices[site.local_rank % len(devices)]
        gpu_model, cache_bytes = gpu.model, gpu.l2_bytes
    cores = max(1, usable_cores() // site.ranks_on_host)
    return replace(site, cores=cores, last_level_cache_bytes=cache_bytes, peak_tflops=peaks_tflops(gpu_model))


def site_to_dict(site: Site) -> dict[str, Any]:
    return asdict(site)


def site_from_dict(record: dict[str, Any]) -> Site:
    peaks = {dtype: Ceiling(**ceiling) for dtype, ceiling in record["peak_tflops"].items()}
    return Site(**{**record, "peak_tflops": peaks})
