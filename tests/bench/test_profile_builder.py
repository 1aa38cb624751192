"""Rows become a profile: which rows count, what each section holds, what is told of failures."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.definitions import ALGBW, BUSBW, LATENCY, MEMORY_BANDWIDTH, SHARE_OF_BOUND, THROUGHPUT
from bench.environment import fingerprint, identity_digest
from bench.errors import UsageError
from bench.platform_profile import PlatformProfile
from bench.profile_builder import build_profile
from bench.store.row import Row, RunRecord
from bench.suite import Case

if TYPE_CHECKING:
    import random
    from pathlib import Path

SIZES = [1 << exponent for exponent in range(10, 22)]
RUN, LATER = "20260101T000000-00000001", "20260102T000000-00000002"
DEFINITIONS = {
    "latency": LATENCY,
    "algbw": ALGBW,
    "busbw": BUSBW,
    "share_of_bound": SHARE_OF_BOUND,
    "throughput": THROUGHPUT,
    "bandwidth": MEMORY_BANDWIDTH,
}
PLACE: dict[str, Any] = {"device": "cpu", "nodes": 1, "scope": "loopback", "backend": "gloo"}


def row(suite: str, params: dict[str, Any], metric: str, value: float | None, **fields: Any) -> Row:
    """One row; ok, converged and of the run ``RUN`` unless ``fields`` say otherwise."""
    definition = DEFINITIONS[metric]
    defaults: dict[str, Any] = {
        "run_id": RUN,
        "row_id": 0,
        "method_version": 1,
        "n": 20,
        "stop_reason": "converged",
        "started_at": "2026-01-01T00:00:00.000+00:00",
    }
    return Row(
        suite=suite,
        case=Case(params).id,
        params=params,
        metric=metric,
        unit=definition.unit,
        better=definition.better,
        definition=definition.id,
        value=value,
        **{**defaults, **fields},
    )


def collective(size: int, latency_us: float, **fields: Any) -> list[Row]:
    """The four rows of an all_to_all case on four ranks; ``fields`` may hold other ``params``."""
    params = {"op": "all_to_all", "ranks": 4, "dtype": "bfloat16", "bytes": size, "algorithm": "flat", **PLACE}
    params |= {"traffic": "uniform", **fields.pop("params", {})}
    first = fields.pop("row_id", 0)
    algbw = size / latency_us / 1e3
    values = {"latency": latency_us, "algbw": algbw, "busbw": algbw * 0.75, "share_of_bound": 0.5}
    return [
        row("collectives", params, metric, value, row_id=first + index, rank_min=value, rank_max=value, **fields)
        for index, (metric, value) in enumerate(values.items())
    ]


def sweep(sizes: list[int], alpha_us: float, beta_gb_s: float, **fields: Any) -> list[Row]:
    """An all_to_all sweep that follows the alpha-beta model exactly."""
    return [
        made
        for index, size in enumerate(sizes)
        for made in collective(size, alpha_us + size / beta_gb_s / 1e3, row_id=4 * index, **dict(fields))
    ]


def run_record(run_id: str = RUN, preset: str = "quick", **identity: Any) -> RunRecord:
    return RunRecord(
        run_id=run_id,
        started_at="2026-01-01T00:00:00.000+00:00",
        command=["characterize"],
        suites=["collectives"],
        preset=preset,
        seed=0,
        fingerprint={
            "identity": {"cpu": {"model": "Test CPU", "usable_logical_cpus": 2}, **identity},
            "volatile": {"host": "node7", "temperature": 50},
        },
    )


def content(profile: PlatformProfile) -> dict[str, Any]:
    return profile.model_dump(exclude={"created_at"})


def only_curve(rows: list[Row]) -> Any:
    (curve,) = build_profile(rows, [run_record()]).collectives
    return curve


def test_curve_has_key_points_and_fit() -> None:
    curve = only_curve(sweep(SIZES, alpha_us=25, beta_gb_s=4))
    assert (curve.suite, curve.op, curve.algorithm, curve.traffic) == ("collectives", "all_to_all", "flat", "uniform")
    assert (curve.dtype, curve.backend, curve.device, curve.scope, curve.lab) == (
        "bfloat16",
        "gloo",
        "cpu",
        "loopback",
        "",
    )
    assert (curve.ranks, curve.nodes, curve.params) == (4, 1, {})
    assert [point.bytes for point in curve.points] == SIZES
    point = curve.points[3]
    assert point.latency_us == pytest.approx(25 + 8192 / 4e3)
    assert point.busbw_gb_s == pytest.approx(0.75 * 8192 / point.latency_us / 1e3)
    assert point.row.row_id == 12
    assert (point.n, point.settled, point.share_of_bound) == (20, True, 0.5)
    assert point.fit_us == pytest.approx(point.latency_us)
    assert point.fit_residual == pytest.approx(0, abs=1e-6)
    (segment,) = curve.fit.segments
    assert segment.alpha_us == pytest.approx(25)
    assert segment.beta_gb_s == pytest.approx(4)
    assert curve.fit.worst_relative_residual < 1e-6
    assert curve.base_latency_us == curve.points[0].latency_us
    assert curve.peak_busbw_gb_s == curve.points[-1].busbw_gb_s


def test_residuals_are_of_the_points() -> None:
    rows = sweep(SIZES, alpha_us=25, beta_gb_s=4)
    rows[0].value = 50.0
    curve = only_curve(rows)
    residuals = [point.fit_residual for point in curve.points]
    assert residuals[0] == pytest.approx(-0.5, abs=0.02)
    assert curve.fit.worst_relative_residual == pytest.approx(max(abs(residual) for residual in residuals))
    for point in curve.points:
        assert point.fit_residual == pytest.approx(point.fit_us / point.latency_us - 1, abs=1e-5)


def test_every_parameter_parts_curves_and_unknown_ones_are_kept() -> None:
    rows = [
        made
        for params in ({}, {"ranks": 2}, {"dtype": "float32"}, {"lab": "nodes=2"}, {"zipf": 1.2}, {"zipf": 1.4})
        for made in sweep(SIZES[:3], 10, 1, params=params)
    ]
    curves = build_profile(rows, [run_record()]).collectives
    assert len(curves) == 6
    assert sorted(curve.params.get("zipf", 0) for curve in curves) == [0, 0, 0, 0, 1.2, 1.4]
    assert sorted(curve.lab for curve in curves) == ["", "", "", "", "", "nodes=2"]


def test_what_follows_from_the_size_parts_no_curve() -> None:
    params = {"op": "all_gather", "ranks": 2, "dtype": "bfloat16", **PLACE}
    rows = [
        row("allgather_latency", {**params, "bytes": size, "bytes_per_rank": size // 2}, "latency", 10 + size / 1e3)
        for size in SIZES[:4]
    ]
    curve = only_curve(rows)
    assert [point.bytes for point in curve.points] == SIZES[:4]
    assert "bytes_per_rank" not in curve.params


def test_suite_without_bandwidth_gives_a_curve_of_latency_alone() -> None:
    params = {"op": "all_gather", "ranks": 2, "bytes": 1024, "dtype": "uint8", **PLACE}
    curve = only_curve([row("allgather_latency", params, "latency", 12.0)])
    assert (curve.suite, curve.peak_busbw_gb_s, curve.points[0].busbw_gb_s) == ("allgather_latency", None, None)


@pytest.mark.parametrize("count", [1, 2])
def test_short_curve_says_why_it_has_no_fit(count: int) -> None:
    curve = only_curve(sweep(SIZES[:count], 10, 1))
    assert curve.fit is None
    assert curve.fit_absent_reason == f"{count} size(s) measured; a fit needs 3"
    assert curve.points[0].fit_us is None
    assert curve.points[0].fit_residual is None


def test_only_ok_rows_make_points() -> None:
    rows = sweep(SIZES[:4], 10, 1)
    for made in rows[4:8]:
        made.status, made.reason, made.value = "timeout", "rank 3 did not answer", None
    rows[10].status, rows[10].reason, rows[10].value = "invalid", "above the link", None
    profile = build_profile(rows, [run_record()])
    points = profile.collectives[0].points
    assert [point.bytes for point in points] == [SIZES[0], SIZES[2], SIZES[3]]
    assert points[1].busbw_gb_s is None
    assert [(f.suite, f.status, f.reason, f.metrics) for f in profile.failures] == [
        ("collectives", "timeout", "rank 3 did not answer", ("latency", "algbw", "busbw", "share_of_bound")),
        ("collectives", "invalid", "above the link", ("busbw",)),
    ]
    assert profile.failures[0].case == rows[4].case
    assert profile.failures[0].row.row_id == 4


def test_metric_that_is_unknown_here_is_no_failure_but_a_skipped_case_is() -> None:
    rows = collective(1024, 10.0)
    rows[3].status, rows[3].reason, rows[3].value = "skipped", "share_of_bound is not known for this case here", None
    rows.append(
        row("memory", {"kernel": "copy", "device": "cpu"}, "bandwidth", None, status="skipped", reason="no memory")
    )
    profile = build_profile(rows, [run_record()])
    assert [(failure.suite, failure.status) for failure in profile.failures] == [("memory", "skipped")]
    assert profile.collectives[0].points[0].share_of_bound is None


def test_latency_of_zero_is_invalid_not_a_crash() -> None:
    profile = build_profile(
        [*collective(1024, 10.0), row("alltoall", {"ranks": 2, "bytes": 1}, "latency", 0.0)], [run_record()]
    )
    assert len(profile.collectives) == 1
    assert [(failure.suite, failure.status) for failure in profile.failures] == [("alltoall", "invalid")]


def test_later_row_of_a_resumed_run_wins() -> None:
    failed = collective(1024, 10.0)
    for made in failed:
        made.status, made.reason, made.value = "failed", "rank 1 died", None
    profile = build_profile([*failed, *collective(1024, 30.0, row_id=10)], [run_record()])
    assert profile.collectives[0].points[0].latency_us == 30.0
    assert profile.failures == ()
    assert profile.superseded == 4


@pytest.mark.parametrize(
    ("first", "second", "winner"),
    [
        ("converged", "converged", 2.0),
        ("converged", "max_time", 1.0),
        ("max_time", "noise_stable", 2.0),
        ("max_samples", "", 2.0),
    ],
)
def test_of_two_runs_the_settled_then_the_newer_counts(first: str, second: str, winner: float) -> None:
    rows = collective(1024, 1.0, stop_reason=first)
    rows += collective(1024, 2.0, stop_reason=second, run_id=LATER, started_at="2026-01-02T00:00:00.000+00:00")
    profile = build_profile(rows, [run_record(), run_record(LATER)])
    (point,) = profile.collectives[0].points
    assert point.latency_us == winner
    assert point.busbw_gb_s == pytest.approx(0.75 * 1.024 / winner)
    assert profile.superseded == 4
    assert profile.run_ids == (RUN, LATER)


def test_failed_repetition_does_not_hide_the_measurement() -> None:
    again = collective(1024, 1.0, run_id=LATER, started_at="2026-01-02T00:00:00.000+00:00")
    for made in again:
        made.status, made.reason, made.value = "failed", "rank 1 died", None
    profile = build_profile([*collective(1024, 9.0), *again], [run_record(), run_record(LATER)])
    assert profile.collectives[0].points[0].latency_us == 9.0
    assert profile.failures == ()


def test_older_method_version_never_counts() -> None:
    rows = sweep(SIZES[:3], 10, 1) + sweep(SIZES[1:3], 99, 1, method_version=2, run_id=LATER)
    profile = build_profile(rows, [run_record(), run_record(LATER)])
    assert [point.bytes for point in profile.collectives[0].points] == SIZES[1:3]
    assert profile.methods["collectives"].method_version == 2
    assert profile.superseded == 12


@settings(max_examples=30, deadline=None)
@given(st.randoms(use_true_random=False))
def test_order_of_rows_and_runs_does_not_matter(shuffler: random.Random) -> None:
    rows = sweep(SIZES[:5], 10, 1) + sweep(SIZES[2:7], 11, 1, run_id=LATER, stop_reason="max_time")
    rows += collective(SIZES[0], 77.0, row_id=50)
    rows += [
        row(
            "matmul_peak",
            {"dtype": "float32", "device": "cpu", "threads": 2, "m": m},
            "throughput",
            m / 1e4,
            row_id=99 + m,
        )
        for m in (512, 1024, 4096)
    ]
    expected = content(build_profile(rows, [run_record(), run_record(LATER)]))
    assert expected["collectives"][0]["points"][0]["latency_us"] == 77.0
    shuffler.shuffle(rows)
    assert content(build_profile(rows, [run_record(LATER), run_record()])) == expected


def test_noisy_falling_points_are_kept_as_measured() -> None:
    rows = [
        made for size, value in zip(SIZES, range(100, 40, -5), strict=True) for made in collective(size, float(value))
    ]
    curve = only_curve(rows)
    assert [point.latency_us for point in curve.points] == list(range(100, 40, -5))
    assert curve.base_latency_us == 45
    assert all(segment.alpha_us >= 0 for segment in curve.fit.segments)


def test_peaks_by_dtype_and_kernel() -> None:
    measured = [
        ("float32", 1, 512, 0.05),
        ("float32", 1, 2048, 0.07),
        ("float32", 2, 512, 0.11),
        ("bfloat16", 2, 8, 0.4),
    ]
    rows = [
        row("matmul_peak", {"dtype": dtype, "device": "cpu", "threads": threads, "m": m}, "throughput", tflop_s)
        for dtype, threads, m, tflop_s in measured
    ]
    rows += [
        row("memory", {"kernel": kernel, "device": "cpu", "bytes": size}, "bandwidth", value, stop_reason=stop)
        for kernel, size, value, stop in [
            ("copy", 1 << 28, 14.0, "converged"),
            ("copy", 1 << 30, 15.0, "max_time"),
            ("triad", 1 << 28, 12.0, "converged"),
        ]
    ]
    profile = build_profile(rows, [run_record()])
    assert [(p.dtype, p.threads, p.best_tflop_s, p.best_params["m"], len(p.points)) for p in profile.matmul_peak] == [
        ("bfloat16", 2, 0.4, 8, 1),
        ("float32", 1, 0.07, 2048, 2),
        ("float32", 2, 0.11, 512, 1),
    ]
    assert [(m.kernel, m.threads, m.best_gb_s, m.settled) for m in profile.memory] == [
        ("copy", None, 15.0, False),
        ("triad", None, 12.0, True),
    ]
    assert profile.unsettled == 1
    assert profile.collectives == ()


def test_tables_keep_all_parameters() -> None:
    attention = {"model": "llama", "kind": "gqa", "sequence": 512, "direction": "forward", "causal": True, "scale": 0.5}
    rows = [row("attention", attention, "throughput", 0.3, stop_reason="max_samples")]
    rows += [
        row("expert_gemm", {"model": "mixtral", "method": method, "tokens": tokens}, "throughput", value)
        for method, tokens, value in [
            ("looped", 256, 2.0),
            ("grouped", 256, 1.0),
            ("looped", 1024, 1.0),
            ("grouped", 1024, 2.0),
        ]
    ]
    rows += [row("codec", {"scheme": "huffman", "bytes": 1 << 20, "ranks": 1}, "latency", 40.0)]
    rows += [row("third_party", {"knob": 3}, "throughput", 1.5)]
    profile = build_profile(rows, [run_record()])
    assert profile.attention[0].params == attention
    assert (profile.attention[0].values, profile.attention[0].settled) == ({"throughput": 0.3}, False)
    assert [r.params["tokens"] for r in profile.expert_gemm.rows] == [256, 1024, 256, 1024]
    assert [(b.outcome, b.tokens) for b in profile.expert_gemm.break_even] == [("crossing", pytest.approx(512))]
    assert profile.codec[0].values == {"latency": 40.0}
    assert profile.collectives == ()
    assert profile.other["third_party"][0].params == {"knob": 3}
    assert profile.unsettled == 1
    assert profile.methods["attention"].metrics["throughput"].unit == "TFLOP/s"
    assert profile.methods["attention"].metrics["throughput"].definition == "throughput/matmul-flops-v1"


def test_identity_comes_with_a_digest_that_follows_its_content() -> None:
    profile = build_profile(collective(1024, 1.0), [run_record(nics=["eth0"])])
    assert profile.identity == {"cpu": {"model": "Test CPU", "usable_logical_cpus": 2}, "nics": ["eth0"]}
    assert profile.identity_digest != build_profile(collective(1024, 1.0), [run_record(nics=["eth1"])]).identity_digest
    assert "temperature" not in profile.model_dump_json()


@pytest.mark.parametrize(
    ("gpus", "name"),
    [([], "node7: Test CPU"), ([{"count": 8, "model": "Test GPU", "driver": "1"}], "node7: 8 x Test GPU")],
)
def test_name_is_host_and_the_model_that_computes(gpus: list[dict[str, Any]], name: str) -> None:
    assert build_profile([], [run_record(gpus=gpus)]).name == name


def test_real_fingerprint_is_taken() -> None:
    run = run_record()
    run.fingerprint = dict(fingerprint())
    profile = build_profile(collective(1024, 1.0), [run])
    assert profile.identity == run.fingerprint["identity"]
    assert profile.identity_digest == identity_digest(run.fingerprint)
    assert run.fingerprint["volatile"]["host"] in profile.name


def test_run_of_another_tool_without_fingerprint_is_taken() -> None:
    run = run_record()
    run.fingerprint = {}
    profile = build_profile(collective(1024, 1.0), [run])
    assert (profile.identity, profile.name) == ({}, "unnamed host: unknown processor")


def test_machines_are_never_mixed() -> None:
    with pytest.raises(UsageError, match=rf"{RUN} and {LATER} .*\(nics: \['eth0'\] and \['eth1'\]\)"):
        build_profile([], [run_record(nics=["eth0"]), run_record(LATER, nics=["eth1"])])


def test_rows_need_their_run() -> None:
    with pytest.raises(UsageError, match=f"rows of run {LATER}, but not its record"):
        build_profile(collective(1024, 1.0, run_id=LATER), [run_record()])
    with pytest.raises(UsageError, match="at least one run"):
        build_profile([], [])


def test_no_rows_make_an_empty_profile_that_can_be_saved(tmp_path: Path) -> None:
    profile = build_profile([], [run_record()])
    profile.save(tmp_path / "profile.json")
    assert PlatformProfile.load(tmp_path / "profile.json") == profile
    assert (profile.collectives, profile.failures, profile.unsettled, profile.superseded) == ((), (), 0, 0)


@pytest.mark.alone
def test_sweep_up_to_4096_ranks_builds_in_two_seconds() -> None:
    sizes = [1 << exponent for exponent in range(10, 31)]
    rows = [
        made
        for op in ("all_to_all", "all_gather", "reduce_scatter", "all_reduce", "broadcast", "send_recv")
        for exponent in range(1, 13)
        for made in sweep(sizes, 20 << exponent, 50, params={"op": op, "ranks": 1 << exponent})
    ]
    begin = time.process_time()
    profile = build_profile(rows, [run_record()])
    assert time.process_time() - begin < 2
    assert len(profile.collectives) == 72
