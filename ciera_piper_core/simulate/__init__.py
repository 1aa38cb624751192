"""Communication at scale, predicted: all-to-all exchanges from 2 to 4096 devices and more.

Two engines give the same kind of answer, a :class:`~ciera_piper_core.simulate.prediction.Prediction`:

- ``closed_form.UniformModel(machine, algorithm, ranks).at(bytes_per_rank)``: uniform traffic, microseconds a point;
- ``fluid.predict(machine, schedule)``: any traffic matrix, as a fluid whose flows share links fairly (``max_min``).

``platforms.load_machine("frontier")`` gives the machine, ``flows.schedule(algorithm, job, matrix)`` the
phases of an algorithm, ``terms`` the costs that a fluid does not have. Importing this module is cheap.
"""

from __future__ import annotations

from typing import Literal, get_args

Algorithm = Literal["flat", "two_phase", "halo_v0", "halo_v1", "halo_v2"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
"""Algorithms that the engines know."""

Bottleneck = Literal["intra-node", "NIC", "switch", "global", "message rate", "packing"]
BOTTLENECKS: tuple[Bottleneck, ...] = get_args(Bottleneck)
"""What a prediction's time may mostly go to; the first four are kinds of links."""

LINK_KINDS: tuple[Bottleneck, ...] = BOTTLENECKS[:4]
"""Kinds of links, by the index that a fabric stores for each of its links."""
