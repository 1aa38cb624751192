"""All checks together, on this machine and on one that lacks nearly everything."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from bench.doctor import exit_code, run_checks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SHOW_ALL = """
import json
from pathlib import Path
from bench.doctor import exit_code, render, run_checks
from rich.console import Console
checks = run_checks(Path("file/store"))
Console(stderr=True).print(render(checks), crop=False)
print(json.dumps([exit_code(checks), [check.to_dict() for check in checks]]))
"""


def test_this_machine_can_measure(tmp_path: Path) -> None:
    checks = run_checks(tmp_path / "store")
    assert exit_code(checks) == 0, [check for check in checks if check.required]
    names = [check.name for check in checks]
    assert len(set(names)) == len(names)
    assert not (tmp_path / "store").exists()
    for check in checks:
        assert check.found
        assert "\n" not in check.found + check.fix
        assert check.fix == "" or check.status in ("warn", "missing")
    json.dumps([check.to_dict() for check in checks])


def test_a_machine_that_lacks_nearly_everything(
    bare_python: str, tmp_path: Path, run_python: Callable[..., str], monkeypatch: Any
) -> None:
    (tmp_path / "file").touch()
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(tmp_path)
    code, checks = json.loads(run_python(SHOW_ALL, python=bare_python, PATH=str(empty)))
    status = {check["name"]: check["status"] for check in checks}
    assert code == 4
    for name in ("torch", "gloo", "packages", "C compiler", "py-spy", "lab", "browser", "store"):
        assert status[name] == "missing", name
    for name in ("python", "memory"):
        assert status[name] == "ok", name
