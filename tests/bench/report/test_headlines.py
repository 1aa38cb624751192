"""The headline cards: the best values, by rule and without one."""

from __future__ import annotations

from bench.definitions import BUSBW, LATENCY, THROUGHPUT
from bench.report.cases import gather
from bench.report.headlines import MAX_LINES, headlines
from tests.bench.report.sample_rows import row, sample_rows


def test_cards_of_a_whole_machine() -> None:
    cards = headlines(gather(sample_rows()))
    assert [(card.title, card.emulated) for card in cards] == [
        ("Peak matmul rate", False),
        ("Memory bandwidth", False),
        ("Best bus bandwidth", False),
        ("Base latency", False),
        ("Attention", False),
        ("Expert GEMM", False),
        ("example_codec", False),
        ("Best bus bandwidth", True),
        ("Base latency", True),
    ]
    assert [line.label for line in cards[0].lines] == ["bfloat16", "float32", "float16"]
    assert cards[1].lines[0].where == "threads=2"


def test_the_best_follows_the_direction_of_the_metric() -> None:
    rows = []
    for ranks, latency, busbw in ((2, 30.0, 1.0), (4, 20.0, 2.0)):
        params = {"op": "all_reduce", "ranks": ranks}
        rows.append(row(params, "latency", LATENCY, suite="collectives", value=latency))
        rows.append(row(params, "busbw", BUSBW, suite="collectives", value=busbw))
    bandwidth, latency_card = headlines(gather(rows))
    assert [(line.row.value, line.where) for line in bandwidth.lines] == [(2.0, "ranks=4")]
    assert [(line.row.value, line.where) for line in latency_card.lines] == [(20.0, "ranks=4")]


def test_what_was_not_measured_or_did_not_settle() -> None:
    rows = [
        row({"dtype": "float32"}, "throughput", THROUGHPUT, suite="matmul_peak", value=1.0, stop_reason="max_time"),
        row({"dtype": "int8"}, "throughput", THROUGHPUT, suite="matmul_peak", status="skipped", reason="no kernel"),
    ]
    [card] = headlines(gather(rows))
    assert [(line.label, line.settled) for line in card.lines] == [("float32", False)]
    assert headlines(gather(rows[1:])) == []


def test_a_card_has_a_limited_number_of_lines() -> None:
    rows = [row({"dtype": f"type{i}"}, "throughput", THROUGHPUT, suite="matmul_peak", value=1.0 + i) for i in range(20)]
    [card] = headlines(gather(rows))
    assert len(card.lines) == MAX_LINES
    assert card.lines[0].label == "type19"
