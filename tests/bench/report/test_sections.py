"""The sections without a script: what they show, fold, link and leave out."""

from __future__ import annotations

from dataclasses import replace

from bench.definitions import LATENCY
from bench.report.cases import gather
from bench.report.document import legend
from bench.report.headlines import headlines
from bench.report.problems import problems
from bench.report.sections import (
    LEGEND,
    anchor,
    cards,
    definition_list,
    environments,
    machine,
    problem_list,
    run_list,
    verdict_line,
)
from bench.report.verdict import Verdict
from tests.bench.report.sample_rows import LAB, STACK, row, sample_rows, sample_runs


def test_verdict_links_to_what_failed() -> None:
    text = verdict_line(Verdict.of(gather(sample_rows())))
    assert '<a class="chip failed" href="#problems">1 failed</a>' in text
    assert '<a class="chip unsettled" href="#legend">19 did not settle</a>' in text


def test_cards_mark_the_emulated_cluster_and_unsettled_values() -> None:
    text = cards(headlines(gather(sample_rows())))
    assert text.count('class="card emulated"') == 2
    unsettled = row({"dtype": "int8"}, "throughput", LATENCY, suite="matmul_peak", value=2.5, stop_reason="max_time")
    assert ">~2.50<" in cards(headlines(gather([unsettled])))


def test_failures_are_open_and_skips_and_stacks_are_folded() -> None:
    text = problem_list(problems(gather(sample_rows())))
    before, _, folded = text.partition("<summary>Skipped: 3 reasons</summary>")
    assert "killed by signal 9" in before
    assert "needs 4.1GiB" in folded
    assert STACK.splitlines()[-1] in before.partition("<summary>Stacks and detail</summary>")[2]


def test_long_lists_of_cases_say_how_many_more() -> None:
    rows = [row({"i": i}, "latency", LATENCY, status="failed", reason="raised") for i in range(130)]
    text = problem_list(problems(gather(rows)))
    assert text.count("<li>") == 100
    assert "and 30 more" in text
    assert "Nothing failed" in problem_list([])
    assert "Nothing failed" in problem_list(problems(gather([replace(rows[0], status="skipped")])))


def test_identity_is_shown_once_for_runs_that_share_it_and_apart_from_the_volatile() -> None:
    runs = sample_runs()
    text = environments(runs)
    assert text.count("Example Xeon") == 1
    assert text.index("Example Xeon") < text.index("Volatile") < text.index("1.9")
    other = replace(runs[1], fingerprint={"identity": {"cpu": {"model": "Other"}}, "volatile": {}})
    assert environments([runs[0], other]).count("<h3>Identity") == 2
    assert "Not recorded" in environments([other])
    assert "No run record" in environments([])


def test_machine_in_a_line() -> None:
    run = sample_runs()[0]
    assert machine(run) == "laptop · Example Xeon 6 @ 2.60GHz · 2 cores · no GPU · 24 GiB"
    run.fingerprint["identity"]["gpus"] = [{"count": 8, "model": "H100"}]
    assert "8 x H100" in machine(run)
    assert machine(replace(run, fingerprint={}, writer={})) == ""


def test_reproducing_adds_the_seed_only_if_it_was_not_typed() -> None:
    characterize, lab = sample_runs()
    text = run_list([characterize], {})
    assert "<dd>bench characterize --preset quick</dd>" in text
    assert "bench characterize --preset quick --seed 7</code>" in text
    assert run_list([lab], {}).count("--seed 7") == 2
    assert LAB in run_list([lab], {})
    spaced = replace(lab, command=["run", "a b", "--seed=3"])
    assert "bench run &#x27;a b&#x27; --seed=3</code>" in run_list([spaced], {})
    assert "No run record" in run_list([], {})


def test_an_interrupted_run_says_how_to_go_on() -> None:
    run = replace(sample_runs()[0], cases=44)
    text = run_list([run], {run.run_id: 43})
    assert f"1 of 44 have rows; interrupted or still running (if interrupted: bench run --resume {run.run_id})" in text
    assert "<dt>Cases</dt><dd>44</dd>" in run_list([run], {})
    assert "Cases" not in run_list([replace(run, cases=0)], {})


def test_what_a_machine_does_not_tell_is_unknown_and_what_it_lacks_is_none() -> None:
    run = replace(
        sample_runs()[0], fingerprint={"identity": {"nccl": None, "gpus": []}, "volatile": {"container": None}}
    )
    text = environments([run])
    assert '<dt>nccl</dt><dd><span class="quiet">unknown</span></dd>' in text
    assert '<dt>gpus</dt><dd><span class="quiet">none</span></dd>' in text
    assert '<dt>container</dt><dd><span class="quiet">none</span></dd>' in text


def test_definitions_are_those_used() -> None:
    rows = [
        row({}, "latency", LATENCY, value=1.0),
        replace(row({}, "other", LATENCY, value=1.0), definition="other/x-v1"),
    ]
    text = definition_list(gather(rows))
    assert LATENCY.text in text
    assert "lower is better" in text
    assert "other/x-v1" in text
    assert "is not loaded here" in text
    assert "busbw" not in text
    assert "No metric" in definition_list([])


def test_legend_tells_binary_sizes_and_decimal_rates() -> None:
    assert "1 MiB = 1024 KiB" in legend(LEGEND)
    assert "1 GB/s = 10⁹ bytes" in legend(LEGEND)
    assert "Half the interquartile range" in legend(LEGEND)


def test_anchors_differ_where_names_differ() -> None:
    assert len({anchor(name) for name in ("a b", "a-b", "a_b", "a/b", "a%20b")}) == 5
