"""Small machines that the simulator's tests share."""

from __future__ import annotations

from ciera_piper_core.simulate.machine import Machine, Node
from ciera_piper_core.simulate.topology import Dragonfly, FatTree, RailFatTree, SingleSwitch

NODE = Node(gpus=4, port_bytes_s=30.0, nics=2, nic_bytes_s=10.0)
ONE_NIC_EACH = Node(gpus=4, port_bytes_s=30.0, nics=4, nic_bytes_s=10.0)

SMALL = {
    "switch": Machine("switch", NODE, SingleSwitch()),
    "dragonfly": Machine("dragonfly", NODE, Dragonfly(2, 2, 4, link_bytes_s=8.0)),
    "tapered": Machine("tapered", NODE, Dragonfly(2, 1, 8, link_bytes_s=20.0, taper=3.0)),
    "minimal": Machine("minimal", NODE, Dragonfly(1, 2, 8, link_bytes_s=9.0, global_links=2, routing="minimal")),
    "fat tree": Machine("fat tree", NODE, FatTree(2, 2, leaf_taper=2.0, pod_taper=3.0)),
    "rails": Machine("rails", ONE_NIC_EACH, RailFatTree(2, leaf_taper=2.0, unit_taper=2.0)),
    "shared port": Machine(
        "shared port",
        Node(gpus=4, port_bytes_s=12.0, nics=2, nic_bytes_s=20.0, port_carries_network=True),
        FatTree(2, leaf_taper=2.0),
    ),
}
"""By name; each has a link of its own kind that may be the narrowest."""
