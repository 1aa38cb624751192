"""Router traces: what is read, what is refused, and the traffic that they become."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciera_piper_core.alltoall.router_trace import MOST_STEPS, RouterTrace, read_trace, replayed

if TYPE_CHECKING:
    from pathlib import Path


def written(path: Path, *lines: object) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


def test_a_trace_is_read_with_or_without_sources(tmp_path: Path) -> None:
    plain = read_trace(written(tmp_path / "a", {"step": 0, "counts": [1, 2]}, "", {"counts": [3, 4]}))
    assert plain.counts.tolist() == [[[1, 2]], [[3, 4]]]
    sources = read_trace(written(tmp_path / "b", {"counts": [[1, 2], [0, 5]]}))
    assert sources.counts.tolist() == [[[1, 2], [0, 5]]]
    assert len(plain.digest) == 12
    assert plain.digest != sources.digest


def test_only_the_first_steps_count(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path / "a", *[{"counts": [step, 1]} for step in range(MOST_STEPS + 9)]))
    assert trace.counts[:, 0, 0].tolist() == list(range(MOST_STEPS))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "is empty"),
        (["{"], "line 1 is no JSON"),
        (["[" * 100_000], "line 1 is no JSON"),
        ([{"counts": [1]}, {"tokens": [1]}], "line 2 has no `counts`"),
        ([[1]], "line 1 has no `counts`"),
        ([{"counts": []}], "has no `counts`"),
        ([{"counts": [[1], 2]}], "each source has a list"),
        ([{"counts": [1, -1]}], "-1 is no number of tokens"),
        ([{"counts": [1, True]}], "True is no number of tokens"),
        ([{"counts": [1, 1.5]}], "1.5 is no number of tokens"),
        ([{"counts": [1 << 31]}], "is no number of tokens"),
        ([{"counts": [[1], [1, 2]]}], "different numbers of experts"),
        ([{"counts": [1, 2]}, {"counts": [1]}], "line 2 has other numbers"),
    ],
)
def test_what_is_no_trace_is_refused_by_line(lines: list[object], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        read_trace(written(tmp_path / "trace", *lines))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot read router trace .*gone: No such file"):
        read_trace(tmp_path / "gone")


def test_experts_by_block_and_sources_in_their_place() -> None:
    trace = RouterTrace(np.array([[[1, 1, 6, 0], [0, 0, 1, 1]]]), "")
    assert replayed(trace, 2, 80).tolist() == [[[20, 60], [0, 80]]]
    # Four ranks: two for each source.
    assert replayed(trace, 4, 8)[0].tolist() == [[1, 1, 6, 0], [1, 1, 6, 0], [0, 0, 4, 4], [0, 0, 4, 4]]


def test_a_step_without_tokens_is_even() -> None:
    assert replayed(RouterTrace(np.zeros((1, 1, 2), dtype=np.int64), ""), 2, 6).tolist() == [[[3, 3], [3, 3]]]


def test_more_ranks_than_experts_are_refused() -> None:
    with pytest.raises(ValueError, match="2 experts cannot be replayed on 3 ranks"):
        replayed(RouterTrace(np.ones((1, 1, 2), dtype=np.int64), ""), 3, 6)


@given(
    st.lists(st.lists(st.integers(0, 1 << 30), min_size=6, max_size=6), min_size=1, max_size=4),
    st.integers(1, 6),
    st.integers(0, 10_000),
)
def test_every_rank_sends_all_its_rows(counts: list[list[int]], ranks: int, rows: int) -> None:
    matrix = replayed(RouterTrace(np.array(counts)[:, np.newaxis], ""), ranks, rows)
    assert matrix.shape == (len(counts), ranks, ranks)
    assert (matrix.sum(axis=2) == rows).all()
    assert (matrix >= 0).all()
