"""The emulated cluster (``bench run --lab``) as a machine, from the text of its shape.

What is declared is the rate of each node's link. The rest, how fast the ranks of a node are among
themselves and what messages cost, depends on the computer that it runs on: calibrate before use.
"""

from __future__ import annotations

import re

from ciera_piper_core.platforms.platform import Term
from ciera_piper_core.simulate.machine import Machine, Node
from ciera_piper_core.simulate.topology import SingleSwitch

BITS_PER_S = {"mbit": 1e6, "gbit": 1e9, "tbit": 1e12}

PAYLOAD = 1448 / 1514
"""Of a link's rate, what a program can see: TCP's share of whole frames."""

LOOPBACK_BYTES_S = 1e9

EXAMPLE = "nodes=4,ranks-per-node=2,rate=400mbit"


def lab_machine(text: str) -> Machine:
    """The machine of a lab's shape, as rows of it carry it in ``lab``.

    Args:
        text: ``nodes=4,ranks-per-node=2,rate=400mbit``; a ``delay`` may follow, which is read over.

    Raises:
        ValueError: a key is missing or unknown, or a value makes no sense.
    """
    values = dict(part.strip().partition("=")[::2] for part in text.split(","))
    if not {"nodes", "ranks-per-node", "rate"} <= values.keys() <= {"nodes", "ranks-per-node", "rate", "delay"}:
        raise ValueError(f"a lab's shape is written as {EXAMPLE}, not {text!r}")
    rate = re.fullmatch(r"(\d+(?:\.\d+)?)(mbit|gbit|tbit)", values["rate"])
    counts = [values["nodes"], values["ranks-per-node"]]
    if rate is None or not all(count.isascii() and count.isdecimal() and int(count) for count in counts):
        raise ValueError(f"a lab's shape is written as {EXAMPLE}, not {text!r}")
    nodes, ranks_per_node = map(int, counts)
    return Machine(
        f"lab {text}",
        Node(ranks_per_node, LOOPBACK_BYTES_S, 1, float(rate[1]) * BITS_PER_S[rate[2]] / 8 * PAYLOAD),
        SingleSwitch(),
        max_gpus=nodes * ranks_per_node,
        known={
            "intra_node": Term("assumed", "1 GB/s between the ranks of a node; it is the computer's"),
            "inter_node": Term("specified", f"{values['rate']} a node, of which TCP carries {PAYLOAD:.1%}"),
            "topology": Term("specified", "a switch without limits of its own"),
        },
    )
