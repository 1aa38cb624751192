"""Checks of the store on folders that cannot be written, on full and on read-only file systems."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bench.doctor.storage import check_shared_memory, check_store, filesystem_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Tree


def mount_command(options: str, folder: Path) -> list[str]:
    """A command that runs another with a small file system on ``folder``; skips where that is not allowed."""
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    script = 'mount -t tmpfs -o "$1" none "$2" && shift 2 && exec "$@"'
    command = ["unshare", "--mount", *user, "sh", "-c", script, "sh", options, str(folder)]
    tried = subprocess.run([*command, "true"], capture_output=True, text=True, timeout=30)
    if tried.returncode != 0:
        pytest.skip(f"cannot mount: {tried.stderr.strip()}")
    return command


def test_a_store_that_is_there_or_can_be_made(tmp_path: Path) -> None:
    there = check_store(tmp_path)
    assert there.status in ("ok", "warn"), there
    assert there.found.startswith(f"{tmp_path}, ")
    made_later = check_store(tmp_path / "a" / "b")
    assert made_later.found.startswith(f"{tmp_path}/a/b (to be created), ")
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_a_relative_store_below_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    assert check_store(Path("link/store")).found.startswith("link/store (to be created), ")


@pytest.mark.parametrize("name", ["file", "file/store", "broken link"])
def test_a_store_that_is_no_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "broken link").symlink_to(tmp_path / "nowhere")
    check = check_store(tmp_path / name)
    assert (check.status, check.required) == ("missing", True)
    assert "cannot be written" in check.found


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_a_store_where_nobody_can_write() -> None:
    assert check_store(Path("/proc/store")).status == "missing"


def test_a_store_of_somebody_else(tmp_path: Path, check_elsewhere: Callable[..., dict[str, Any]]) -> None:
    # Root may write anywhere, so that the check is run as nobody; imports come before that.
    become_nobody = "from bench.doctor import storage\nimport os\nif os.geteuid() == 0: os.setuid(65534)"
    tmp_path.chmod(0o555)
    for folder in tmp_path.parents:
        if folder.stat().st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o111)
    call = f"check_store(__import__('pathlib').Path({str(tmp_path)!r}))"
    check = check_elsewhere("storage", call, first=become_nobody)
    assert check["status"] == "missing"
    assert "Permission denied" in check["found"]


@pytest.mark.parametrize(
    ("options", "status", "found"),
    [("ro", "missing", "Read-only file system"), ("size=4m", "warn", "tmpfs, 0.0 GiB free")],
)
def test_a_store_on_another_file_system(
    tmp_path: Path, check_elsewhere: Callable[..., dict[str, Any]], options: str, status: str, found: str
) -> None:
    before = mount_command(options, tmp_path)
    call = f"check_store(__import__('pathlib').Path({str(tmp_path)!r}) / 'store')"
    check = check_elsewhere("storage", call, before=before)
    assert check["status"] == status
    assert found in check["found"]


def test_a_full_file_system(tmp_path: Path, check_elsewhere: Callable[..., dict[str, Any]]) -> None:
    before = mount_command("size=64k", tmp_path)
    fill = f"""
try:
    with open({str(tmp_path / "filler")!r}, "wb", 0) as file:
        while True: file.write(bytes(4096))
except OSError: pass
"""
    call = f"check_store(__import__('pathlib').Path({str(tmp_path)!r}))"
    check = check_elsewhere("storage", call, first=fill, before=before)
    assert check["status"] == "missing"
    assert "No space left" in check["found"]


def test_shared_memory(tmp_path: Path, check_elsewhere: Callable[..., dict[str, Any]]) -> None:
    assert check_shared_memory(tmp_path / "absent").status == "n/a"
    before = mount_command("size=64m", tmp_path)
    call = f"check_shared_memory(__import__('pathlib').Path({str(tmp_path)!r}))"
    check = check_elsewhere("storage", call, before=before)
    assert (check["status"], check["fix"]) == ("warn", "docker run --shm-size=8g")


def test_file_systems_are_named_by_the_deepest_mount(tree: Tree) -> None:
    lines = [
        "27 1 254:0 / / rw - ext4 /dev/vda rw",
        "40 27 0:40 / /scratch rw shared:1 - lustre mgs@tcp:/scratch rw",
        "41 27 0:41 / /home rw - autofs auto.home rw",
        "42 41 0:42 / /home rw - nfs4 server:/home rw",
        r"43 27 0:43 / /with\040blank rw - xfs /dev/sdb rw",
        "44 27 0:44 / /größe rw - btrfs /dev/sdc rw",
    ]
    tree.write("proc/self/mountinfo", "\n".join(lines))
    expected = {"/tmp": "ext4", "/scratch/me": "lustre", "/scratchy": "ext4", "/home/me": "nfs4"}
    expected |= {"/with blank/x": "xfs", "/größe": "btrfs"}
    assert {path: filesystem_of(Path(path), tree.root) for path in expected} == expected
    assert filesystem_of(Path("/"), tree.root / "absent") == "unknown"


@pytest.mark.skipif(shutil.which("stat") is None, reason="needs coreutils")
def test_this_file_system_agrees_with_stat() -> None:
    assert filesystem_of(Path("/proc")) == "proc"
