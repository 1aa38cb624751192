"""Groups of ranks that serve profiled cases: below a tool, lost, and each case with a folder of its own."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

from bench.profiling.session import folders_of
from bench.suite import Case
from bench.sweep import Job
from tests.bench.profiling.profile_program import COLLECTIVE, profile
from tests.faulty_suite import FaultySuite

FAULTY = "tests.faulty_suite:FaultySuite"

FAKE_NSYS = """#!/bin/sh
# Runs the program, and writes its report after it, as nsys does; but not that of rank 1.
for word in "$@"; do case "$word" in --output=*) report="${word#--output=}";; esac; done
while [ "$1" = profile ] || [ "${1#--}" != "$1" ]; do shift; done
"$@"
code=$?
sleep 1
case "$report" in *rank1*) ;; *) echo "a report" > "$report";; esac
exit $code
"""


def test_nsys_wraps_every_rank_and_is_waited_for(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "nsys").write_text(FAKE_NSYS)
    (tools / "nsys").chmod(0o755)
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    done = profile(tmp_path, *COLLECTIVE, "--with", "nsys", "--output", "out", "--json", PATH=path)
    (case,) = json.loads(done.stdout)["cases"]
    assert case["files"] == ["out/rank0.nsys-rep"], done.stderr
    assert case["reason"] == "rank1.nsys-rep was not written"
    assert done.returncode == 4


def test_a_lost_rank_is_named_and_the_next_case_goes_on(tmp_path: Path) -> None:
    said = "rank 1 was killed by SIGKILL"
    arguments = ("--set", "fault=kill", "--set", "at=0", "--set", "number=0,1", "--iterations", "2")
    done = profile(tmp_path, FAULTY, *arguments, "--output", "out", "--json")
    assert done.returncode == 4
    first, second = json.loads(done.stdout)["cases"]
    assert first["status"] == "failed"
    assert said in first["reason"]
    (stacks,) = [tmp_path / file for file in first["files"]]
    assert "== rank 0 ==" in stacks.read_text()
    assert second["status"] == "ok"
    assert said in done.stderr


def testfolders_of_of_cases_are_safe_and_apart() -> None:
    suite = FaultySuite()
    cases = [Case({"name": text}) for text in ("../../etc", "a/b\n\x1b[31m", "é" * 300, "é" * 301)]
    folders = folders_of([Job("x:Y", suite, case, 1) for case in cases], Path("/root"))
    assert len({*folders}) == len(cases)
    for folder in folders:
        assert folder.parent == Path("/root")
        assert folder.name.isascii()
        assert folder.name.isprintable()
        assert len(folder.name) < 120
    for one, other in itertools.pairwise(folders):
        assert one.name < other.name
