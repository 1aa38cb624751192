"""The engines at 4096 ranks: seconds and memory of a process that does nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ciera_piper_core.simulate import ALGORITHMS
from ciera_piper_core.simulate.closed_form import UniformModel
from ciera_piper_core.simulate.platforms import load_machine

ROOT = Path(__file__).resolve().parents[3]

MOST_S, MOST_GIB = 60.0, 4.0

SOLVE = """
import json, resource, time
from ciera_piper_core.alltoall.traffic import traffic_matrix
from ciera_piper_core.simulate.flows import schedule
from ciera_piper_core.simulate.fluid import predict
from ciera_piper_core.simulate.platforms import load_machine

machine = load_machine({machine!r})
matrix = traffic_matrix("zipf", 4096, 1 << 20, 0) * 64
begin = time.process_time()
answer = predict(machine, schedule({algorithm!r}, machine.job(4096), matrix))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
print(json.dumps([answer.seconds, float(matrix.sum(axis=0).max()), time.process_time() - begin, peak]))
"""


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize(
    ("machine", "algorithm"), [("frontier", "flat"), ("frontier", "halo_v1"), ("dgx-h200", "flat")]
)
def test_a_skewed_matrix_of_4096_ranks_is_solved(machine: str, algorithm: str) -> None:
    code = SOLVE.format(machine=machine, algorithm=algorithm)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=170)
    assert done.returncode == 0, done.stderr
    seconds, hottest, took, gib = json.loads(done.stdout)
    node = load_machine(machine).node
    # What the most popular rank receives must get through the NICs of its node, but for its neighbours' part.
    assert seconds > hottest * 0.99 / (node.nics * node.nic_bytes_s)
    assert took < MOST_S
    assert gib < MOST_GIB


def test_uniform_traffic_takes_microseconds_a_point() -> None:
    machine = load_machine("frontier")
    begin = time.process_time()
    models = [UniformModel.build(machine, name, 4096) for name in ALGORITHMS]
    counted = time.process_time()
    sizes = np.geomspace(1e3, 1e10, 2000)
    for model in models:
        model.at(sizes)
    solved = time.process_time()
    assert counted - begin < 1.0
    assert (solved - counted) / (len(models) * len(sizes)) < 20e-6
