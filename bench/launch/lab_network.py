"""The ``ip`` and ``tc`` commands that make a lab's network: a switch, and a shaped link to each node.

Namespace 0 is the switch, a Linux bridge; namespace ``n + 1`` is node ``n``. A link is a veth pair.
Traffic out of a node is shaped at the node's end, traffic into it at the switch's end. ``docs/lab.md``
shows the measurements behind the constants here.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.launch.lab_holder import Step, namespace_path

if TYPE_CHECKING:
    from collections.abc import Mapping

INTERFACE = "eth0"
"""Name of every node's end of its link, as on a real node."""

SUBNET = ipaddress.IPv4Network("10.77.0.0/16")
"""Seen only inside the lab, so that it collides with nothing on the host or in another lab."""

FRAME_BYTES = 1514
"""A full Ethernet frame as the shaper counts it: 1500 bytes MTU and the header."""

MAX_SEGMENTS = 43
"""Frames in the largest packet that TCP hands down at once (64 KiB)."""

QUEUE_BYTES = 64 * 2**20
"""Room before a shaper. Deep, because the fabrics of HPC machines hold packets back and drop none."""

# Timers fire late, by up to about 50 us on a virtual machine. A bucket that holds just one packet
# loses what flows in meanwhile, and the link never reaches its rate. A bucket much larger lets
# small messages through unshaped. So there are two: a deep one at the rate, which makes up for
# lost time, and a shallow one at a tenth more, which limits how fast that may happen. Larger
# packets would need fewer timers, and with them less of the processors, but also deeper buckets.
_PACKET_SECONDS = 150e-6
_SHALLOW_SECONDS = 175e-6
_DEEP_SECONDS = 425e-6
_PEAK = 1.1

# The switch's end must hold up what several nodes send to one, but not, a second time, what one
# node's own end has let pass: that would cost another timer a packet, and some of the rate.
_SWITCH_DEPTH = 2


@dataclass(frozen=True)
class Shaper:
    """The token buckets of one direction of a link; as text, the arguments of ``tc``.

    Attributes:
        rate_bits_per_s: of the link, Ethernet headers included.
        depth: of the buckets, as a multiple of that at a node's end.
    """

    rate_bits_per_s: int
    depth: int = 1

    @property
    def segments(self) -> int:
        """Frames that TCP may hand down as one packet; the shaper passes them at once."""
        return min(MAX_SEGMENTS, max(1, int(self._bytes_in(_PACKET_SECONDS) / FRAME_BYTES)))

    @property
    def burst_bytes(self) -> int:
        """Depth of the deep bucket: the most that a link idle until now sends ahead of its rate."""
        return self._depth_bytes(_DEEP_SECONDS)

    @property
    def peak_bits_per_s(self) -> int:
        """Rate of the shallow bucket, at which a burst leaves."""
        return round(self.rate_bits_per_s * _PEAK)

    @property
    def peak_burst_bytes(self) -> int:
        """Depth of the shallow bucket: the most that leaves at once."""
        return self._depth_bytes(_SHALLOW_SECONDS)

    def __str__(self) -> str:
        return (
            f"tbf rate {self.rate_bits_per_s}bit burst {self.burst_bytes} limit {QUEUE_BYTES}"
            f" peakrate {self.peak_bits_per_s}bit mtu {self.peak_burst_bytes}"
        )

    def _depth_bytes(self, seconds: float) -> int:
        # On a slow link one frame takes longer than that, and must fit in with time to spare.
        spare = self._bytes_in(seconds - _PACKET_SECONDS)
        return self.depth * max(self._bytes_in(seconds), self.segments * FRAME_BYTES + spare)

    def _bytes_in(self, seconds: float) -> int:
        return int(self.rate_bits_per_s * seconds / 8)


def node_address(node: int) -> str:
    """The IPv4 address of a node."""
    return str(SUBNET[node + 1])


def build_steps(nodes: int, rate_bits_per_s: int, delay_us: int, holder: int, tools: Mapping[str, str]) -> list[Step]:
    """All commands, in order, that join ``nodes`` namespaces of the process ``holder``.

    Args:
        rate_bits_per_s: of each node's link, in each direction.
        delay_us: one-way delay between any two nodes; 0 for none beside the machine's own.
        tools: paths of ``ip`` and ``tc``.
    """
    shaper = Shaper(rate_bits_per_s)
    from_switch = Shaper(rate_bits_per_s, _SWITCH_DEPTH)
    ports = [f"port{node}" for node in range(nodes)]
    switch = [
        "link add name switch type bridge stp_state 0 mcast_snooping 0",
        "link set dev switch addrgenmode none up",
    ]
    for node, port in enumerate(ports):
        peer = f"name {INTERFACE} netns {namespace_path(holder, node + 1)}"
        switch.append(f"link add name {port} type veth peer {peer}")
        switch.append(f"link set dev {port} master switch addrgenmode none up")
    steps = [
        _batch(tools["ip"], 0, switch),
        _batch(tools["tc"], 0, [f"qdisc add dev {port} root {from_switch}" for port in ports]),
    ]
    node_tc = [f"qdisc add dev {INTERFACE} root handle 1: {shaper}"]
    if delay_us:
        # As the shaper's queue. Its limit is in packets: enough for a full TCP window of single frames.
        node_tc.append(f"qdisc add dev {INTERFACE} parent 1:1 handle 2: netem limit 100000 delay {delay_us}us")
    for node in range(nodes):
        node_ip = [
            "link set dev lo up",
            f"address add {node_address(node)}/{SUBNET.prefixlen} dev {INTERFACE}",
            f"link set dev {INTERFACE} gso_max_segs {shaper.segments} addrgenmode none up",
        ]
        steps += [_batch(tools["ip"], node + 1, node_ip), _batch(tools["tc"], node + 1, node_tc)]
    return steps


def _batch(tool: str, namespace: int, lines: list[str]) -> Step:
    return {"namespace": namespace, "command": [tool, "-batch", "-"], "input": "".join(f"{line}\n" for line in lines)}
