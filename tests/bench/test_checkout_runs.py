"""Runs of a checkout's own ``bench``: its suites, a selection of its cases, errors, Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

from bench.checkout_runs import Checkout
from bench.errors import BenchError, UsageError
from bench.store.reader import Store
from tests.bench.planted import plant

if TYPE_CHECKING:
    from pathlib import Path

QUICK = ("--max-time=0.02",)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout("main", plant(tmp_path / "repository"), tmp_path / "store", QUICK)


SUITE = "planted.suite:PlantedSuite"


def test_a_side_knows_its_own_suites(checkout: Checkout) -> None:
    assert checkout.has_suite(SUITE)
    assert checkout.has_suite("memory"), "installed suites are there as well"
    assert not checkout.has_suite("nowhere")


def test_a_suite_that_cannot_be_loaded_is_an_error(checkout: Checkout) -> None:
    (checkout.path / "planted" / "suite.py").write_text("raise ValueError('broken')")
    with pytest.raises(BenchError, match=r"main: the suite planted.suite:PlantedSuite cannot be loaded: .*broken"):
        checkout.has_suite(SUITE)


@pytest.mark.parametrize(
    ("cases", "expected"),
    [
        ([{"milliseconds": 4, "kind": "hit"}], ["--select=milliseconds=4", "--select=kind=hit"]),
        ([{"milliseconds": 4, "kind": "not*hit"}], ["--select=milliseconds=4", "--select=kind=not[*]hit"]),
        ([{"kind": "a,b", "milliseconds": 4}], ["--select=milliseconds=4"]),
        ([{"kind": "hit"}, {"kind": "not*hit", "milliseconds": 4}], ["--select=kind=hit,not[*]hit"]),
        ([{"other": 1}], []),
    ],
)
def test_the_selection_keeps_the_cases(checkout: Checkout, cases: list[Any], expected: list[str]) -> None:
    assert checkout._selection(SUITE, cases) == expected


@pytest.mark.alone
def test_selected_cases_are_measured_and_stored(checkout: Checkout) -> None:
    rows = checkout.measure(SUITE, [{"milliseconds": 4, "kind": "not*hit"}])
    assert [(row.params["kind"], row.status) for row in rows] == [("not*hit", "ok")]
    (run,) = Store(checkout.store).runs()
    assert run.run_id == rows[0].run_id
    # What the place decides cannot be selected; then all is measured.
    assert len(checkout.measure(SUITE, [{"milliseconds": 5, "kind": "hit"}])) == 2


def test_an_option_that_is_wrong_for_a_side_is_named(checkout: Checkout) -> None:
    wrong = Checkout("main", checkout.path, checkout.store, ("--preset=none",))
    with pytest.raises(UsageError, match="main: unknown preset 'none'"):
        wrong.measure(SUITE, None)


@pytest.mark.alone
def test_ctrl_c_ends_the_run_which_keeps_its_rows(checkout: Checkout) -> None:
    """The order of the cases is another in each run, so the interrupt comes as soon as any is stored."""
    cases = [{"milliseconds": 1 << power, "kind": kind} for power in range(9) for kind in ("hit", "not*hit")]
    many = Checkout("main", checkout.path, checkout.store, ("--max-time=0.2", "--set=milliseconds=1:256"))
    over = threading.Event()

    def interrupt_when_stored() -> None:
        while not over.wait(0.05):
            if any(b'"ok"' in path.read_bytes() for path in checkout.store.glob("runs/*.jsonl")):
                os.kill(os.getpid(), signal.SIGINT)
                return

    thread = threading.Thread(target=interrupt_when_stored)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            many.measure(SUITE, cases)
    finally:
        over.set()
        thread.join()
    (run,) = Store(checkout.store).runs()
    assert run.state == "sealed"
    assert 0 < run.counts["ok"] < len(cases)
