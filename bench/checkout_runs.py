"""Runs ``bench`` of a checkout in a process of its own, and hands back the rows that it measured."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.errors import BenchError, UsageError
from bench.gate_sources import read_rows_file
from bench.store.row import Row  # noqa: TC001  # a dataclass names it
from bench.worktrees import environment

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from bench.suite import Value

ENDING_GRACE_S = 60.0
LIST_TIMEOUT_S = 120.0
GLOB_CHARACTERS = "*?["


@dataclass
class Checkout:
    """One side of an interleaved comparison.

    Attributes:
        label: what the user called it.
        path: its folder.
        store: where its runs are kept.
        options: of every ``bench run``, as typed.
    """

    label: str
    path: Path
    store: Path
    options: Sequence[str]
    _axes: dict[str, dict[str, str] | None] = field(default_factory=dict)

    def has_suite(self, suite: str) -> bool:
        """Whether this side has the suite at all."""
        return self._axes_of(suite) is not None

    def measure(self, suite: str, cases: Iterable[Mapping[str, Value]] | None) -> list[Row]:
        """Measure a suite once and return its rows; they are in the store too.

        Args:
            suite: name or reference.
            cases: parameters of the cases that are wanted; others may be measured with them. None for all.

        Raises:
            UsageError: the call is wrong for this side.
            BenchError: nothing could be measured.
            KeyboardInterrupt: after the rows measured so far are in the store.
        """
        selection = self._selection(suite, list(cases)) if cases is not None else []
        with tempfile.TemporaryDirectory() as folder:
            rows_file = Path(folder) / "rows.jsonl"
            code, said = self._run(suite, selection, rows_file)
            if code == UsageError.exit_code and selection:
                # Parameters that the place decides are not what was asked for, so they cannot always be selected.
                code, said = self._run(suite, [], rows_file)
            rows = read_rows_file(rows_file)[0] if rows_file.exists() else []
        if code == UsageError.exit_code:
            raise UsageError(f"{self.label}: {said}")
        if not rows:
            raise BenchError(f"{self.label}: {suite} gave no row (exit code {code}): {said}")
        return rows

    def _run(self, suite: str, selection: Sequence[str], rows_file: Path) -> tuple[int, str]:
        """Exit code of ``bench run``, and the last line that it said."""
        command = [sys.executable, "-m", "bench.cli", "run", suite, *self.options, *selection]
        command += ["--json", str(rows_file), "--store", str(self.store)]
        with tempfile.TemporaryFile() as said:
            # A session of its own: Ctrl-C reaches it once, from here, and not from the terminal as well.
            process = subprocess.Popen(
                command,
                cwd=self.path,
                env=environment(self.path),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait()
            except BaseException:
                _end(process)
                raise
            said.seek(0)
            lines = said.read().decode(errors="replace").strip().splitlines()
        return code, lines[-1].removeprefix("bench: ") if lines else "it said nothing"

    def _selection(self, suite: str, cases: Sequence[Mapping[str, Value]]) -> list[str]:
        """``--select`` options that keep these cases, and as few others as the axes allow."""
        options = []
        for name, kind in (self._axes_of(suite) or {}).items():
            values = list(dict.fromkeys(_selected(case[name], kind) for case in cases if name in case))
            if values and all(name in case for case in cases) and None not in values:
                options.append(f"--select={name}={','.join(map(str, values))}")
        return options

    def _axes_of(self, suite: str) -> dict[str, str] | None:
        """Kind of each parameter of a suite, by name; None if this side lacks the suite."""
        if suite not in self._axes:
            described = self._list(suite)
            axes = described.get("parameters", []) if isinstance(described, dict) else None
            self._axes[suite] = None if axes is None else {axis["name"]: axis["kind"] for axis in axes}
        return self._axes[suite]

    def _list(self, suite: str) -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "bench.cli", "list", suite, "--json"],
            cwd=self.path,
            env=environment(self.path),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIST_TIMEOUT_S,
            check=False,
        )
        if done.returncode == UsageError.exit_code and "unknown suite" in done.stderr:
            return None
        if done.returncode != 0:
            said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise BenchError(f"{self.label}: the suite {suite} cannot be loaded: {said.removeprefix('bench: ')}")
        with suppress(ValueError):
            return json.loads(done.stdout)
        raise BenchError(f"{self.label}: `bench list {suite} --json` gave no JSON")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ctrl-C for the child, which then keeps its rows and cleans up; killed with its group if it does not end."""
    with suppress(OSError):
        process.send_signal(signal.SIGINT)
    try:
        process.wait(ENDING_GRACE_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with suppress(OSError):
            process.kill()
        process.wait()


def _selected(value: Value, kind: str) -> str | None:
    """A value as ``--select`` takes it; None if it cannot be said there."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if kind != "str":
        return repr(value) if isinstance(value, float) else str(value)
    text = str(value)
    if not text or "," in text or text != text.strip():
        return None
    return "".join(f"[{character}]" if character in GLOB_CHARACTERS else character for character in text)
