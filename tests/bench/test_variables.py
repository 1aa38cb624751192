"""What of the environment may be recorded: settings, never secrets, paths or addresses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.variables import NAMES, PREFIXES, WITHHELD, recorded_variables

SETTINGS = {
    "CUDA_VISIBLE_DEVICES": "0,1,2,3",
    "GLOO_SOCKET_IFNAME": "eth0",
    "KMP_AFFINITY": "granularity=fine,compact,1,0",
    "MKL_NUM_THREADS": "8",
    "NCCL_ALGO": "^Ring",
    "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1,mlx5_bond_10:1",
    "OMP_NUM_THREADS": "8",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,roundup_power2_divisions:[256:1,512:2]",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_NTASKS_PER_NODE": "8(x4)",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "UCX_TLS": "rc,cuda_copy,cuda_ipc",
}


def test_settings_are_kept_as_they_are() -> None:
    others = {"HOME": "/root", "PATH": "/bin", "LS_COLORS": "x", "SLURM_JOB_ID": "17", "SLURMD_NODENAME": "n1"}
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


def test_devices_by_uuid_show_their_number_alone() -> None:
    uuids = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6,GPU-6d3f6a5c2b1e0d4f,MIG-c7384736-a75d-5afc-978f-d2f1294409fd"
    recorded = recorded_variables({"CUDA_VISIBLE_DEVICES": uuids})
    assert recorded == {"CUDA_VISIBLE_DEVICES": "GPU-<uuid>,GPU-<uuid>,MIG-<uuid>"}


@given(
    st.dictionaries(
        st.one_of(st.text(), st.sampled_from(PREFIXES).flatmap(lambda p: st.text().map(p.__add__))), st.text()
    )
)
def test_any_environment(environ: dict[str, str]) -> None:
    for name, value in recorded_variables(environ).items():
        assert name in NAMES or name.startswith(PREFIXES)
        assert value == WITHHELD or not set(value) & set("/@\\\"'$%&!?#\n\0")
