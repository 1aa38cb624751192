"""The cluster of the tests leaves nothing behind."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

import pytest

from tests.bench.slurm.cluster import SlurmCluster, why_not

REASON = why_not()


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_a_cluster_that_ends_takes_its_jobs_with_it() -> None:
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    try:
        with SlurmCluster(folder) as cluster:
            cluster.call(
                "sbatch", "--nodes=2", "--output=/dev/null", "--wrap", f"srun sleep 600 & touch {folder}/up; wait"
            )
            deadline = time.monotonic() + 20
            while not (folder / "up").exists():
                assert time.monotonic() < deadline
                time.sleep(0.1)
            assert len(cluster.processes()) > 5
        deadline = time.monotonic() + 5
        while left := cluster.processes():
            assert time.monotonic() < deadline, left
            time.sleep(0.1)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
