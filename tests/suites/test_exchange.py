"""The oracle: its data is exact in every dtype, and it misses no wrong element."""

from __future__ import annotations

import hashlib
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench.definitions import Work
from suites import exchange
from suites.communication import DTYPE_BYTES
from suites.exchange import POISON, Exchange, KeyedData, Part, filled, wrong_elements

DTYPES = [getattr(torch, name) for name in DTYPE_BYTES]
ranges = st.tuples(st.integers(0, 100), st.integers(0, 100))


def test_data_is_the_same_on_every_machine() -> None:
    digests = [
        hashlib.blake2b(
            KeyedData(seed=7, ranks=16, summed=summed).sent(3, 5, 1000).tobytes(), digest_size=8
        ).hexdigest()
        for summed in (False, True)
    ]
    assert digests == ["736c260fc3d3a83a", "6003d8543ef09187"]


@given(st.integers(0, 2**63), st.integers(1, 40), st.booleans(), ranges)
def test_a_stretch_is_a_slice_of_the_whole(seed: int, ranks: int, summed: bool, stretch: tuple[int, int]) -> None:
    start, count = stretch
    data = KeyedData(seed, ranks, summed)
    assert np.array_equal(data.sent(ranks - 1, start, count), data.sent(ranks - 1, 0, 200)[start : start + count])


@given(st.integers(0, 2**63), st.integers(1, 40), ranges)
def test_the_total_is_the_sum_of_what_ranks_send(seed: int, ranks: int, stretch: tuple[int, int]) -> None:
    data = KeyedData(seed, ranks, summed=True)
    sent = np.array([data.sent(rank, *stretch) for rank in range(ranks)], dtype=np.int64)
    assert np.array_equal(data.total(*stretch), sent.sum(axis=0))
    assert np.abs(sent).sum(axis=0).max(initial=0) <= 128, "a partial sum could leave int8"


@pytest.mark.parametrize("ranks", [2, 9, 64])
def test_every_rank_takes_part_in_the_sum(ranks: int) -> None:
    data = KeyedData(0, ranks, summed=True)
    assert all(np.any(data.sent(rank, 0, 8 * ranks)) for rank in range(ranks))


@pytest.mark.parametrize("summed", [False, True])
def test_poison_is_never_expected(summed: bool) -> None:
    data = KeyedData(1, 8, summed)
    assert not np.any(data.sent(0, 0, 100_000) == POISON)
    assert not np.any(data.total(0, 100_000) == POISON) or not summed


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_value_is_exact_in_every_dtype(dtype: torch.dtype) -> None:
    values = torch.arange(-128, 128, dtype=torch.int8)
    assert torch.equal(values.to(dtype).to(torch.int8), values)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("summed", [False, True])
def test_filling_spans_chunks(dtype: torch.dtype, summed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "CHUNK_ELEMENTS", 13)
    data = KeyedData(1, 3, summed)
    tensor = filled(torch.empty((10, 5), dtype=dtype), data, rank=2)
    assert torch.equal(tensor.view(-1).to(torch.int8), torch.from_numpy(data.sent(2, 0, 50)))
    assert wrong_elements(tensor, [Part(2, 0, 50)], data) == 0


@given(st.sampled_from(DTYPES), st.integers(0, 99), st.integers(1, 255))
def test_a_single_wrong_element_is_found(dtype: torch.dtype, position: int, error: int) -> None:
    data = KeyedData(1, 3)
    parts = [Part(0, 40, 30), Part(1, 3, 0), Part(2, 7, 70)]
    received = torch.cat([torch.from_numpy(data.sent(0, 40, 30)), torch.from_numpy(data.sent(2, 7, 70))]).to(dtype)
    assert wrong_elements(received, parts, data) == 0
    received[position] += error
    assert wrong_elements(received, parts, data) == 1


def test_nan_is_wrong() -> None:
    data = KeyedData(1, 2)
    received = filled(torch.empty(10), data, rank=0)
    received[4] = math.nan
    assert wrong_elements(received, [Part(0, 0, 10)], data) == 1


def test_elements_without_an_oracle_are_refused() -> None:
    with pytest.raises(ValueError, match="covers 9 of 10"):
        wrong_elements(torch.zeros(10), [Part(0, 0, 9)], KeyedData(1, 2))


def test_a_call_that_does_nothing_gets_every_element_wrong_twice() -> None:
    data = KeyedData(1, 1)
    # What an earlier case left in the memory must not pass.
    received = filled(torch.empty(1000, dtype=torch.int8), data, rank=0)
    workload = Exchange(lambda: None, received, [Part(0, 0, 1000)], data, Work())
    workload.run()
    assert workload.check() == 2000


@pytest.mark.parametrize(("wrong_call", "wrong"), [(2, 3), (3, 3), (1, 0)], ids=["last", "the check's", "earlier"])
def test_the_last_timed_output_and_the_checks_own_both_count(wrong_call: int, wrong: int) -> None:
    data = KeyedData(1, 1)
    received, right = torch.empty(100), filled(torch.empty(100), data, rank=0)
    calls = itertools.count(1)

    def call() -> None:
        received.copy_(right)
        if next(calls) == wrong_call:
            received[:3] += 1

    workload = Exchange(call, received, [Part(0, 0, 100)], data, Work())
    for _ in range(2):
        workload.prepare()
        workload.run()
    assert workload.check() == wrong


def test_in_place_calls_start_from_the_source_each_time() -> None:
    data = KeyedData(1, 1)
    received = torch.empty(100, dtype=torch.float32)
    source = filled(torch.empty(100), data, rank=0)
    seen = []
    workload = Exchange(
        lambda: (seen.append(received.clone()), received.add_(1)),
        received,
        [Part(0, 0, 100)],
        data,
        Work(),
        source=source,
        refill=True,
    )
    for _ in range(3):
        workload.prepare()
        workload.run()
    assert workload.check() == 200
    assert len(seen) == 4
    assert all(torch.equal(before, source) for before in seen)
