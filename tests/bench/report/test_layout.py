"""What is drawn against what: the rules, and the inference for suites without one."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from bench.definitions import LATENCY, MEMORY_BANDWIDTH
from bench.report.cases import gather, varying_names
from bench.report.layout import MAX_SERIES, View, metric_order, suite_order, telling, views
from tests.bench.report.sample_rows import row, sample_rows

if TYPE_CHECKING:
    from bench.report.cases import SuiteResults


def suite_of(**axes: tuple[Any, ...]) -> SuiteResults:
    """A suite that no rule knows, with every combination of the values."""
    points = itertools.product(*axes.values())
    return gather([row(dict(zip(axes, point, strict=True)), "rate", MEMORY_BANDWIDTH, value=1.0) for point in points])[
        0
    ]


SAMPLE = {suite.name: suite for suite in gather(sample_rows())}


def test_collectives_are_curves_over_bytes_a_plot_an_operation_and_place() -> None:
    [view] = views(SAMPLE["collectives"])
    assert view == View("curves", "bytes", (), True, ("op", "scope", "lab"), ("ranks",))
    assert metric_order(SAMPLE["collectives"]) == ["busbw", "latency", "algbw", "share_of_bound"]


def test_gemm_and_attention_are_heat_maps_and_curves() -> None:
    heat, curves = views(SAMPLE["expert_gemm"])
    assert heat == View("heat", "tokens", ("distribution", "method"), panels=("model",))
    assert curves == View("curves", "tokens", (), True, ("model",), ("method", "distribution"))
    heat, curves = views(SAMPLE["attention"])
    assert heat == View("heat", "sequence", ("model", "heads"), panels=("direction",))
    assert curves.series == ("model", "heads")


def test_memory_has_a_bar_a_kernel() -> None:
    assert views(SAMPLE["memory"]) == [View("bars", "kernel", (), False, (), ("threads",))]


def test_suites_with_rules_come_first() -> None:
    ordered = [suite.name for suite in suite_order(list(SAMPLE.values())[::-1])]
    assert ordered == [
        "collectives",
        "alltoall",
        "allgather_latency",
        "attention",
        "expert_gemm",
        "matmul_peak",
        "memory",
        "example_codec",
    ]


def test_numeric_parameter_with_most_values_is_the_axis() -> None:
    [view] = views(suite_of(batch=(1, 2, 3), length=(1, 2, 4, 8, 16), kind=("a", "b")))
    assert (view.kind, view.x, view.log_x, view.series) == ("curves", "length", True, ("batch", "kind"))


def test_sizes_win_a_tie() -> None:
    [view] = views(suite_of(batch=(1, 2, 3), bytes=(10, 20, 30), kind=("a", "b")))
    assert (view.x, view.log_x) == ("bytes", False)


def test_two_parameters_span_a_heat_map_too() -> None:
    heat, curves = views(suite_of(level=("fast", "normal", "small"), batch=(1, 2, 4)))
    assert heat == View("heat", "batch", ("level",))
    assert (curves.x, curves.series) == ("batch", ("level",))
    assert views(suite_of(level=("a", "b", "c"), library=("x", "y", "z")))[0].kind == "heat"


def test_categories_alone_are_bars() -> None:
    assert views(suite_of(library=("a", "b"), ranks=(2, 4), pinned=(True, False))) == [
        View("bars", "library", (), False, (), ("ranks", "pinned"))
    ]


def test_nothing_to_compare_is_nothing_to_draw() -> None:
    assert views(suite_of(bytes=(1024,))) == []
    failed = [row({"bytes": size}, "latency", LATENCY, status="failed", reason="raised") for size in (1, 2, 3)]
    assert views(gather(failed)[0]) == []
    apart = [row({"metric": name}, name, LATENCY, value=1.0) for name in ("load", "save", "query")]
    assert views(gather(apart)[0]) == []


def test_too_many_series_move_to_plots_of_their_own() -> None:
    axes = {"bytes": tuple(1 << e for e in range(10)), "ranks": (2, 4), "dtype": ("a", "b", "c"), "kind": ("x", "y")}
    [view] = views(suite_of(**axes))
    assert view.series == ("ranks", "dtype")
    assert view.panels == ("kind",)


def test_the_emulated_cluster_never_shares_a_plot() -> None:
    rows = [
        row({"bytes": size, "scope": scope} | ({"lab": "n"} if scope == "lab" else {}), "latency", LATENCY, value=1.0)
        for size, scope in itertools.product((1, 2, 4, 8), ("node", "lab"))
    ]
    assert all({"scope", "lab"} <= set(view.panels) for view in views(gather(rows)[0]))


def test_parameters_that_follow_from_others_tell_nothing() -> None:
    shapes = {"square": (1, 1), "deep": (1, 4), "wide": (4, 1)}
    rows = [
        row({"shape": shape, "m": m * size, "k": k * size, "size": size}, "rate", MEMORY_BANDWIDTH, value=1.0)
        for (shape, (m, k)), size in itertools.product(shapes.items(), (1, 2, 3))
    ]
    assert telling("third_party", gather(rows)[0].cases) == ["shape", "m"]
    assert telling("matmul_peak", SAMPLE["matmul_peak"].cases) == ["dtype", "shape"]


@given(
    st.dictionaries(
        st.sampled_from(["bytes", "depth", "kind", "scope", "lab", "flag", "alpha"]),
        st.lists(st.one_of(st.integers(1, 50), st.sampled_from(["a", "b"]), st.booleans()), min_size=1, max_size=6),
        max_size=4,
    ),
    st.integers(1, 12),
)
def test_any_rows_get_views_that_fit_together(axes: dict[str, list[Any]], step: int) -> None:
    points = [dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values())][::step]
    # Some cases lack a parameter, as lab does outside of the lab.
    for point in points[1::3]:
        point.pop(next(iter(point), ""), None)
    [suite] = gather([row(point, "rate", MEMORY_BANDWIDTH, value=1.0) for point in points])
    for view in views(suite):
        names = [view.x, *view.y, *view.panels, *view.series]
        assert len(set(names)) == len(names)
        assert set(names) <= set(varying_names(suite.cases))
        combinations = {tuple(case.params.get(name) for name in view.series) for case in suite.cases}
        assert len(combinations) <= MAX_SERIES
