"""Axes, cases and the promises that every registered suite keeps."""

from __future__ import annotations

import re

import pytest

from bench.definitions import LATENCY
from bench.errors import UsageError
from bench.registry import load_suite, suite_names
from bench.suite import PRESETS, Axis, Case, Metric, Site, Workload
from tests.faulty_suite import FaultySuite


def test_axes_read_values_lists_and_ranges() -> None:
    assert Axis("bytes", "bytes", "").parse("1KiB:4KiB,1MB") == [1024, 2048, 4096, 10**6]
    assert Axis("n", "int", "").parse("1:8") == [1, 2, 4, 8]
    assert Axis("x", "float", "").parse("0.5,1") == [0.5, 1.0]
    assert Axis("on", "bool", "").parse("true,false") == [True, False]
    assert Axis("op", "str", "").parse("a:b, c") == ["a:b", "c"]


@pytest.mark.parametrize(
    ("axis", "text"),
    [
        (Axis("bytes", "bytes", ""), "1M"),
        (Axis("n", "int", ""), "one"),
        (Axis("x", "float", ""), "half"),
        (Axis("on", "bool", ""), "yes"),
        (Axis("op", "str", "", ("a", "b")), "c"),
    ],
)
def test_axes_refuse_what_they_cannot_read(axis: Axis, text: str) -> None:
    with pytest.raises(UsageError):
        axis.parse(text)


@pytest.mark.parametrize(
    ("axis", "text", "message"),
    [
        (Axis("experts", "int", "", minimum=1), "0", "experts needs at least 1, not 0"),
        (Axis("threads", "int", "", minimum=0), "0,-1", "threads needs at least 0, not -1"),
        (Axis("bytes", "bytes", "", minimum=1), "0", "bytes needs at least 1, not 0"),
        (Axis("x", "float", "", minimum=0), "-0.5", "x needs at least 0, not -0.5"),
        (Axis("x", "float", "", minimum=0), "nan", "x takes finite numbers, not 'nan'"),
    ],
)
def test_axes_refuse_what_is_below_their_minimum(axis: Axis, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        axis.parse(text)


def test_values_are_shown_in_binary_units() -> None:
    axis = Axis("bytes", "bytes", "")
    assert (axis.format(65536), axis.format(1_000_000)) == ("64KiB", "976.56KiB")
    assert Axis("x", "float", "").format(0.25) == "0.25"


def test_a_cases_id_depends_on_its_values_alone() -> None:
    one, other = Case({"b": 1, "a": True, "c": 0.1}), Case({"c": 0.1, "a": True, "b": 1})
    assert one.id == other.id == "a=true,b=1,c=0.1"
    assert Case({"b": 1}).id != Case({"b": 2}).id


def test_a_metric_may_have_parameters_of_its_own() -> None:
    plain, dispatch = Metric("range_time", LATENCY), Metric("range_time", LATENCY, {"range": "dispatch", "layer": 2})
    assert (plain.key, dispatch.key) == ("range_time", "range_time[layer=2,range=dispatch]")
    case = Case({"ranks": 4})
    assert plain.case_of(case) is case
    assert dispatch.case_of(case).id == "layer=2,range=dispatch,ranks=4"
    same = Metric("range_time", LATENCY, {"layer": 2, "range": "dispatch"})
    assert len({plain, dispatch, same}) == 2
    with pytest.raises(ValueError, match=r"sets range, which its case has"):
        dispatch.case_of(Case({"range": "combine"}))


def test_a_baseline_is_optional_and_may_be_a_method() -> None:
    class Plain(Workload):
        def run(self) -> None:
            pass

        def check(self) -> int:
            return 0

    class Compared(Plain):
        def baseline(self) -> None:
            pass

    assert Plain().baseline is None
    assert callable(Compared().baseline)


def test_overrides_name_their_axis() -> None:
    suite = FaultySuite()
    assert [case["number"] for case in suite.cases("quick", {"number": [5]})] == [5]
    with pytest.raises(UsageError, match=r"'numbr'.*did you mean number"):
        list(suite.cases("quick", {"numbr": [5]}))


def test_ranks_on_a_host_are_all_in_a_lab() -> None:
    assert Site(world=8, ranks_per_node=2, scope="lab").ranks_on_host == 8
    assert Site(world=8, ranks_per_node=2, scope="cluster").ranks_on_host == 2


@pytest.mark.parametrize("name", suite_names())
def test_registered_suites_keep_the_contract(name: str) -> None:
    suite = load_suite(name)
    assert (suite.name, suite.method_version >= 1) == (name, True)
    axes = [axis.name for axis in suite.axes]
    assert len(set(axes)) == len(axes)
    assert all(axis.help for axis in suite.axes)
    assert ("ranks" in axes) == suite.distributed
    for axis in suite.axes:
        if axis.kind in ("int", "bytes", "float"):
            assert axis.minimum is not None, f"{axis.name}: how small may it be?"
            for too_small in {"0", "-1", str(axis.minimum - 1)} - {str(axis.minimum)}:
                with pytest.raises(UsageError):
                    axis.parse(too_small)
    for preset in PRESETS:
        assert sorted(suite.presets[preset]) == sorted(axes)
        cases = list(suite.cases(preset, {}))
        assert cases
        assert len({case.id for case in cases}) == len(cases)
        for case in cases[:50]:
            metrics = suite.metrics_for(case)
            assert metrics
            assert set(metrics) <= set(suite.metrics)
            assert len({metric.key for metric in metrics}) == len(metrics)
            assert not any(metric.params.keys() & case.params.keys() for metric in metrics)
            for axis in suite.axes:
                axis.require(case[axis.name])


def test_the_suites_of_this_repository_characterize_and_the_harness_itself_does_not() -> None:
    characterize = {name for name in suite_names() if load_suite(name).characterizes}
    assert characterize >= {"alltoall", "allgather_latency", "attention", "collectives", "expert_gemm"}
    assert characterize >= {"matmul_peak", "memory"}
    assert "self" not in characterize
