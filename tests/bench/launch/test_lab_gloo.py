"""A world of torch.distributed ranks across a lab's nodes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.launch.lab import Lab, LabShape
from tests.bench.launch.lab_traffic import sent_bytes

RANK = Path(__file__).with_name("lab_rank.py")


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.usefixtures("lab_available")
def test_collectives_are_right_across_nodes(tmp_path: Path) -> None:
    shape = LabShape(nodes=2, ranks_per_node=2, rate_bits_per_s=10**9)
    with Lab(shape) as lab:
        ranks = []
        for rank in range(shape.world):
            node = rank // shape.ranks_per_node
            argv = [sys.executable, str(RANK), str(rank), str(shape.world), str(tmp_path / "store")]
            environment = {**os.environ, "GLOO_SOCKET_IFNAME": lab.node_interface(node), "OMP_NUM_THREADS": "1"}
            ranks.append(
                subprocess.Popen(
                    lab.node_command(node, argv),
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        for rank, process in enumerate(ranks):
            said, errors = process.communicate(timeout=120)
            assert said == f"rank {rank} is right\n", errors
        # Half of each rank's 32 KB of the all-to-all goes to the other node.
        assert sent_bytes(lab, 0, lab.node_interface(0)) > 32_000
        assert sent_bytes(lab, 0, "lo") > 16_000
