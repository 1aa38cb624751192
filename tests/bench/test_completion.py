"""What a shell completes, by the verbs that take it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.program import bench

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("list matm", ["matmul_peak"]),
        ("run memory mem", ["memory"]),
        ("noise mem", ["memory"]),
        ("gate mem", ["memory"]),
        ("profile mem", ["memory"]),
        ("run --preset st", ["standard"]),
        ("profile memory --preset st", ["standard"]),
        ("noise memory --preset f", ["full"]),
        ("db ver", ["verify"]),
        ("plan --model olm", ["olmoe-1b-7b"]),
        ("simulate alltoall --platform fron", ["frontier"]),
        ("compare --systems fsd", ["fsdp"]),
        ("import osu --nothing", []),
    ],
)
def test_suites_presets_and_verbs_are_completed(tmp_path: Path, typed: str, completed: list[str]) -> None:
    words = f"bench {typed}"
    done = bench(
        cwd=tmp_path, _BENCH_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(len(words.split()) - 1)
    )
    assert done.stdout.split() == completed
