"""Recognising torchrun, mpirun and srun by the variables that they set."""

from __future__ import annotations

import pytest

from bench.errors import UsageError
from bench.launch.launchers import Launched, detect, require_world

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node7",
    "MASTER_PORT": "29501",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_MCA_ess_base_jobid": "77",
}
SRUN = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS_PER_NODE": "2(x4)",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_ID": "123",
    "SLURM_STEP_NODELIST": "alpha,beta",
}


def test_no_launcher_no_group() -> None:
    assert detect({"HOME": "/nowhere"}) is None


def test_torchrun() -> None:
    assert detect(TORCHRUN) == Launched("torchrun", 3, 4, 1, 2, "node7", 29501, agent_store=True)


def test_mpirun_meets_on_this_host_at_a_port_of_its_job() -> None:
    here = detect(MPIRUN)
    assert here == Launched("mpirun", 1, 2, 1, 2, "127.0.0.1", here.master_port if here else 0)
    other = detect({**MPIRUN, "OMPI_MCA_ess_base_jobid": "78"})
    peer = detect({**MPIRUN, "OMPI_COMM_WORLD_RANK": "0"})
    assert other
    assert here
    assert peer
    assert other.master_port != here.master_port == peer.master_port
    assert 20_000 <= here.master_port < 32_000


def test_mpirun_over_hosts_needs_an_address() -> None:
    with pytest.raises(UsageError, match="set MASTER_ADDR"):
        detect({**MPIRUN, "OMPI_COMM_WORLD_SIZE": "4"})


def test_srun_meets_at_its_first_host() -> None:
    here = detect(SRUN)
    assert here
    assert (here.launcher, here.rank, here.world, here.local_world) == ("srun", 5, 8, 2)
    assert here.master_address == "alpha"


def test_a_slurm_batch_script_is_no_launch() -> None:
    assert detect({**SRUN, "SLURM_STEP_ID": "batch"}) is None
    allocation_alone = {name: value for name, value in SRUN.items() if name != "SLURM_STEP_ID"}
    assert detect(allocation_alone) is None


def test_hydra() -> None:
    here = detect({"PMI_RANK": "1", "PMI_SIZE": "2", "MASTER_PORT": "5000"})
    assert here == Launched("mpirun", 1, 2, 0, 1, "127.0.0.1", 5000)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"RANK": "4"}, "not a rank of a world"), ({"RANK": "x"}, "RANK is 'x'"), ({"WORLD_SIZE": ""}, "WORLD_SIZE")],
)
def test_contradictions_are_named(change: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        detect({**TORCHRUN, **change})


def test_a_world_that_was_not_asked_for_is_refused() -> None:
    here = detect(TORCHRUN)
    assert here
    require_world(here, ())
    require_world(here, (4,))
    for asked in ((8,), (2, 4)):
        with pytest.raises(UsageError, match=f"--ranks {', '.join(map(str, asked))} was asked for.*world of 4"):
            require_world(here, asked)
