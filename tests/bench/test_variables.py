"""What of the environment may be recorded: settings, never secrets, paths or addresses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.variables import NAMES, PREFIXES, WITHHELD, recorded_variables

SETTINGS = {
    "GLOO_SOCKET_IFNAME": "eth0",
    "KMP_AFFINITY": "granularity=fine,compact,1,0",
    "MKL_NUM_THREADS": "8",
    "NCCL_ALGO": "^Ring",
    "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1,mlx5_bond_10:1",
    "OMP_NUM_THREADS": "8",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,roundup_power2_divisions:[256:1,512:2]",
    "SLURM_GPUS_PER_NODE": "8",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "UCX_TLS": "rc,cuda_copy,cuda_ipc",
}


def test_settings_are_kept_as_they_are() -> None:
    others = {"HOME": "/root", "PATH": "/bin", "LS_COLORS": "x", "SLURM_JOB_ID": "17", "SLURM_NTASKS": "8"}
    assert recorded_variables({**others, **SETTINGS}) == SETTINGS


@pytest.mark.parametrize(
    "name",
    [
        "AWS_SECRET_ACCESS_KEY",
        "FI_AUTH_KEY",
        "HF_TOKEN",
        "KMP_PASSWORD",
        "MKL_LICENSE_CERT",
        "NCCL_COMM_ID",
        "NCCL_FOO_TOKEN",
        "NCCL_HOSTID",
        "OMP_PRIVATE",
        "UCX_CREDENTIALS",
        "nccl_debug",
    ],
)
def test_names_that_are_not_listed_or_sound_secret_are_left_out(name: str) -> None:
    assert recorded_variables({name: "1"}) == {}


@pytest.mark.parametrize(
    "value",
    [
        "/home/someone/topo.xml",
        "https://user:hunter2@example.org",
        "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.x",
        "0123456789abcdef0123",
        "s3cr3t!",
        "pa$$word",
        "someone@example.org",
        "10.1.2.3:4567",
        "fe80::1ff:fe23:4567:890a",
        "line\nbreak",
        "\udcff",
        "x" * 201,
    ],
)
def test_values_that_may_be_secrets_paths_or_addresses_are_withheld(value: str) -> None:
    assert recorded_variables({"NCCL_TOPO_FILE": value}) == {"NCCL_TOPO_FILE": WITHHELD}


@pytest.mark.parametrize(
    ("value", "recorded"),
    [("0,1,2,3", "4 device(s)"), ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6, 7", "2 device(s)"), ("", "0 device(s)")],
)
def test_of_the_devices_that_a_job_was_given_their_number_is_kept(value: str, recorded: str) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        assert recorded_variables({name: value}) == {name: recorded}


@given(
    st.dictionaries(
        st.one_of(st.text(), st.sampled_from(PREFIXES).flatmap(lambda p: st.text().map(p.__add__))), st.text()
    )
)
def test_any_environment(environ: dict[str, str]) -> None:
    for name, value in recorded_variables(environ).items():
        assert name in NAMES or name.startswith(PREFIXES)
        assert value == WITHHELD or not set(value) & set("/@\\\"'$%&!?#\n\0")
