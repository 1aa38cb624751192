"""Checks of other packages: shown as theirs, never required, and a broken one says so."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

import pytest

from bench.doctor import installed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bench.doctor import Check

FINE = {"name": "kernels", "status": "ok", "found": "all there"}


@pytest.fixture
def checks_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Check]]:
    """The checks, if packages had exactly these functions: ``(name=function, ...)``."""

    def checks(**functions: Callable[[], Sequence[Mapping[str, Any]]]) -> list[Check]:
        class Entry(EntryPoint):
            def load(self) -> Any:
                return functions[self.name]

        entries = [Entry(name, f"package.module:{name}", installed.CHECK_GROUP) for name in functions]
        monkeypatch.setattr(installed, "entry_points", lambda group: entries)
        return installed.installed_checks()

    return checks


def test_checks_come_in_the_order_of_their_names(checks_of: Callable[..., list[Check]]) -> None:
    second = {"name": "codec", "status": "missing", "found": "not built", "fix": "pip install ."}
    first, last = checks_of(b=lambda: [second], a=lambda: [FINE])
    assert (first.name, first.status, first.found, first.fix) == ("kernels", "ok", "all there", "")
    assert (last.name, last.status, last.fix) == ("codec", "missing", "pip install .")


def test_another_package_cannot_keep_the_harness_from_measuring(checks_of: Callable[..., list[Check]]) -> None:
    (check,) = checks_of(a=lambda: [{**FINE, "status": "missing", "required": True}])
    assert not check.required


def test_a_package_may_have_nothing_to_say(checks_of: Callable[..., list[Check]]) -> None:
    assert checks_of(a=list) == []


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({**FINE, "status": "fine"}, "ValueError: check 'kernels' has the unknown status 'fine'"),
        ({**FINE, "colour": "red"}, "colour"),
        ({"name": "kernels"}, "missing"),
        (3, "TypeError"),
    ],
)
def test_what_is_no_check_is_a_warning(checks_of: Callable[..., list[Check]], record: Any, reason: str) -> None:
    (check,) = checks_of(ours=lambda: [record])
    assert (check.name, check.status, check.fix) == ("checks of ours", "warn", "install package again")
    assert reason in check.found


def test_a_function_that_fails_does_not_hide_the_others(checks_of: Callable[..., list[Check]]) -> None:
    def fail() -> Any:
        raise OSError("no such library\nand more")

    broken, fine = checks_of(a=fail, b=lambda: [FINE])
    assert broken.found == "package.module:a failed: OSError: no such library"
    assert fine.status == "ok"


def test_one_that_cannot_be_imported_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("gone", "no_such_package.checks:all", installed.CHECK_GROUP)
    monkeypatch.setattr(installed, "entry_points", lambda group: [entry])
    (check,) = installed.installed_checks()
    assert (check.status, check.fix) == ("warn", "install no_such_package again")
    assert "ModuleNotFoundError" in check.found
