"""Exit codes and install lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.doctor import Check, exit_code
from bench.doctor.check import install_command

if TYPE_CHECKING:
    from pathlib import Path

    from bench.doctor.check import Status


@pytest.mark.parametrize(
    ("status", "required", "code"),
    [("missing", True, 4), ("missing", False, 0), ("warn", True, 0), ("ok", True, 0), ("n/a", True, 0)],
)
def test_only_what_is_required_and_missing_fails(status: Status, required: bool, code: int) -> None:
    assert exit_code([Check("fine", "ok", ""), Check("this", status, "", required=required)]) == code


@pytest.mark.parametrize(
    ("manager", "expected"),
    [
        ("apt-get", "sudo apt-get install iproute2 gcc"),
        ("dnf", "sudo dnf install iproute gcc"),
        (None, "install iproute gcc with this system's package manager"),
    ],
)
def test_the_install_line_is_that_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manager: str | None, expected: str
) -> None:
    if manager:
        (tmp_path / manager).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert install_command("iproute2", "gcc") == expected
