"""The fingerprint: complete, the same in every process, free of secrets, never in the way."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.environment import fingerprint, identity_differences, identity_digest

SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI-K7MDENG-bPxRfiCYEXAMPLEKEY",
    "HF_TOKEN": "hf_planted0000000000000000000000000",
    "MY_PASSWORD": "correct horse",
    "NCCL_DEBUG_FILE": "/home/planted/nccl.log",
    "NCCL_FOO_TOKEN": "planted1",
    "PYTORCH_API_KEY": "planted2",
    "TORCH_NCCL_SECRET": "planted3",
    "UCX_SOMETHING": "plantedAbcdefghijklmnop4",
    "WANDB_API_KEY": "planted5",
}


def in_new_process(*, cwd: Path | None = None, code: str = "", **variables: str) -> tuple[dict, str]:  # type: ignore[type-arg]
    """The fingerprint and its digest as another process sees them."""
    show = "import json\nfrom bench.environment import fingerprint, identity_digest\nf = fingerprint()\n"
    show += "import sys\nassert 'torch' not in sys.modules\nprint(json.dumps([f, identity_digest(f)]))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **variables}
    command = [sys.executable, "-c", f"{code}\n{show}"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cwd, timeout=60)
    assert done.returncode == 0, done.stderr
    found, digest = json.loads(done.stdout)
    return found, digest


def test_an_hgx_node(hgx: Path) -> None:
    identity = fingerprint(hgx, environ={"NCCL_ALGO": "Ring"})["identity"]
    (gpus,) = identity["gpus"]
    assert (gpus["model"], gpus["count"], gpus["driver"]) == ("NVIDIA H100 80GB HBM3", 8, "550.90.07")
    assert identity["memory_gib"] == 2048
    assert identity["kernel"] == "5.15.0-1046-nvidia"
    assert identity["os"] == "Ubuntu 22.04.4 LTS"
    assert len(identity["rdma"]) == 8
    assert identity["affinity"][3]["nics"]["mlx5_3"] == "PIX"
    assert identity["variables"] == {"NCCL_ALGO": "Ring"}


def test_an_amd_node(amd_node: Path) -> None:
    identity = fingerprint(amd_node)["identity"]
    (gpus,) = identity["gpus"]
    assert (gpus["model"], gpus["count"], gpus["memory_gib"]) == ("AMD Instinct MI250X", 4, 64)


def test_gpus_that_differ_are_counted_apart(amd_node: Path) -> None:
    nodes = amd_node / "sys/class/kfd/kfd/topology/nodes"
    (nodes / "2/mem_banks/0/properties").write_text("size_in_bytes 34351349760")
    counts = [(gpu["memory_gib"], gpu["count"]) for gpu in fingerprint(amd_node)["identity"]["gpus"]]
    assert counts == [(64, 3), (32, 1)]


def test_processes_of_a_machine_agree_whatever_its_state() -> None:
    here = fingerprint()
    there, digest = in_new_process()
    assert there["identity"] == here["identity"]
    assert digest == identity_digest(here)
    assert there["volatile"]["at"] != here["volatile"]["at"]


def test_it_survives_the_store() -> None:
    found = fingerprint()
    again = json.loads(json.dumps(found, allow_nan=False))
    assert again == found
    reordered = {"identity": dict(reversed(list(found["identity"].items()))), "volatile": {}}
    assert identity_digest(again) == identity_digest(found) == identity_digest(reordered)


def test_secrets_are_nowhere_in_it() -> None:
    found, _ = in_new_process(**SECRETS, OMP_NUM_THREADS="3")
    text = json.dumps(found)
    assert found["identity"]["variables"]["OMP_NUM_THREADS"] == "3", "the environment was looked at"
    assert "planted" not in text
    assert [value for value in SECRETS.values() if value in text] == []


def test_identity_holds_nothing_of_this_host_alone() -> None:
    found = fingerprint()
    text = json.dumps(found["identity"])
    # A short host name such as "vm" may be part of a word.
    own = [found["volatile"]["conditions"]["boot_id"], f'"{socket.gethostname()}"', str(Path.cwd())]
    own += [file.read_text().strip() for file in Path("/sys/class/net").glob("*/address")]
    assert [fact for fact in own if fact and fact in text and fact != "00:00:00:00:00:00"] == []


def test_what_changes_speed_changes_the_digest() -> None:
    one, digest = in_new_process(OMP_NUM_THREADS="1")
    other, other_digest = in_new_process(OMP_NUM_THREADS="2")
    assert digest != other_digest
    assert identity_differences(one, other) == ["variables.OMP_NUM_THREADS: '1' and '2'"]
    assert identity_differences(one, one) == []


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_fewer_cores_are_another_machine() -> None:
    one_cpu = f"import os; os.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}})"
    bound, bound_digest = in_new_process(code=one_cpu)
    free, free_digest = in_new_process()
    assert bound_digest != free_digest
    assert all(text.startswith("cpu.usable_") for text in identity_differences(bound, free))


def test_a_folder_that_is_gone_is_no_error(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    found, _ = in_new_process(cwd=gone, code="import os; os.rmdir(os.getcwd())")
    assert found["volatile"]["git"] is None


def test_an_empty_machine_is_no_error(tmp_path: Path) -> None:
    found = fingerprint(tmp_path, environ={})
    assert found["identity"]["nics"] == []
    assert found["volatile"]["conditions"]["load_1min"] is None


@pytest.mark.parametrize(
    ("mark", "kind"), [(".dockerenv", "docker"), ("run/.containerenv", "podman"), ("etc/hosts", None)]
)
def test_containers_are_told_by_their_marks(tmp_path: Path, mark: str, kind: str | None) -> None:
    (tmp_path / mark).parent.mkdir(exist_ok=True)
    (tmp_path / mark).touch()
    assert fingerprint(tmp_path, environ={})["volatile"]["container"] == kind
    inside = fingerprint(tmp_path, environ={"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert inside["volatile"]["container"] == "kubernetes"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_garbage_in_any_file_is_no_error(hgx: Path, amd_node: Path, data: st.DataObject) -> None:
    files = sorted(path for path in hgx.rglob("*") if path.is_file() and not path.is_symlink())
    file = data.draw(st.sampled_from(files))
    digits = st.text("0123456789-,.: \n", max_size=40).map(str.encode)
    content = data.draw(st.one_of(st.none(), digits, st.binary(max_size=60)))
    before = file.read_bytes()
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    try:
        found = fingerprint(hgx)
    finally:
        file.write_bytes(before)
    json.dumps(found, allow_nan=False)
    assert len(identity_digest(found)) == 12


def test_unreadable_folders_are_no_error(hgx: Path) -> None:
    for folder in ("sys/class/net", "sys/devices/system/cpu", "proc/driver/nvidia"):
        shutil.rmtree(hgx / folder)
        (hgx / folder).write_text("a file")
    assert fingerprint(hgx)["identity"]["gpus"] == []


@pytest.mark.alone
def test_it_takes_less_than_a_third_of_a_second() -> None:
    code = "import time\nfrom bench.environment import fingerprint\n"
    code += "began = time.perf_counter()\nfingerprint()\nprint(time.perf_counter() - began)"
    times_s = []
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
        times_s.append(float(done.stdout))
    assert min(times_s) < 0.3
