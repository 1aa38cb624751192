"""From the words of the command line to the list of cases."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from bench.errors import UsageError
from bench.suite import Axis
from bench.sweep import Request, make_sweep, rotated
from tests.faulty_suite import FaultySuite, SoloSuite

FAULTY = "tests.faulty_suite:FaultySuite"
SOLO = "tests.faulty_suite:SoloSuite"


def numbers(request: Request, **options: int) -> list[int]:
    return [job.case["number"] for job in make_sweep(request, **options)]


def test_a_preset_gives_the_product_of_its_axes() -> None:
    assert numbers(Request((FAULTY,))) == [0, 1, 2]


def test_set_replaces_and_select_keeps() -> None:
    request = Request((FAULTY,), overrides=("number=1,2,8",), select=("number=2:8",))
    assert numbers(request) == [2, 8]
    jobs = make_sweep(Request((FAULTY,), overrides=("fault=kill,stop,hang",), select=("fault=*i*,st*", "number=0")))
    assert [job.case["fault"] for job in jobs] == ["kill", "stop"]


def test_worlds_go_up_and_the_order_within_is_rotated() -> None:
    request = Request((FAULTY, SOLO), ranks=(4, 2))
    jobs = rotated(make_sweep(request), start_at=1)
    assert [job.world for job in jobs] == [1, 1, 1, 2, 2, 2, 4, 4, 4]
    assert [job.case["number"] for job in jobs] == [1, 2, 0] * 3


def test_a_lab_sets_the_world_of_multi_rank_suites_alone() -> None:
    jobs = make_sweep(Request((FAULTY, SOLO), lab="nodes=3,ranks-per-node=2,rate=1gbit"), lab_world=6)
    assert {(job.suite.name, job.world) for job in jobs} == {("faulty", 6), ("faulty_solo", 1)}


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request((FAULTY,), overrides=("nmber=1",)), "unknown parameter.*'nmber'.*number"),
        (Request((FAULTY,), overrides=("number",)), "PARAMETER=VALUES"),
        (Request((FAULTY,), overrides=("fault=explode",)), "unknown value 'explode' of fault"),
        (Request((FAULTY,), overrides=("number=x",)), "not a number"),
        (Request((FAULTY,), select=("number=77",)), "no case is left"),
        (Request((SOLO,), ranks=(4,)), "--ranks is for multi-rank suites"),
        (Request((SOLO,), lab="nodes=2,rate=1gbit"), "--lab is for multi-rank suites"),
        (Request(("colectives",)), "unknown suite 'colectives'; did you mean collectives"),
        (Request(("no.such:Suite",)), "cannot be loaded"),
        (Request(("bench.suite:Case",)), "not a suite"),
    ],
)
def test_mistakes_are_named(request_: Request, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_sweep(request_)


def test_an_axis_is_not_named_like_what_the_place_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("device", "nodes", "scope", "backend", "lab"):
        axes = (*FaultySuite.axes, Axis(name, "str", "taken"))
        monkeypatch.setattr(FaultySuite, "axes", axes)
        with pytest.raises(UsageError, match=rf"the parameter '{name}' is set by the place it runs in; rename"):
            make_sweep(Request((FAULTY,)))
        monkeypatch.undo()


def test_one_process_has_no_backend_of_a_group() -> None:
    (job,) = make_sweep(Request((f"{__name__}:CodecLike",)))
    assert job.case["backend"] == "native"


class CodecLike(SoloSuite):
    """A suite of one process whose own parameter is named like one of a group's."""

    name: ClassVar[str] = "codec_like"
    axes: ClassVar[tuple[Axis, ...]] = (Axis("backend", "str", "of the kernels"),)
    presets: ClassVar[Any] = {"quick": {"backend": ("native",)}}


@pytest.mark.parametrize(
    "words", [{"preset": "slow"}, {"ranks": (0,)}, {"ranks": (2, -1)}, {"max_time_s": 0.0}, {"timeout_s": -1.0}]
)
def test_impossible_requests_are_refused(words: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Request((FAULTY,), **words)  # type: ignore[arg-type]


def test_a_request_survives_the_store() -> None:
    request = Request((FAULTY,), "full", ("number=1",), ("fault=none",), (2, 4), seed=7, max_time_s=0.5)
    assert (
        Request.from_dict({name: list(v) if isinstance(v, tuple) else v for name, v in request.to_dict().items()})
        == request
    )
    with pytest.raises(UsageError, match="cannot be resumed"):
        Request.from_dict({"suites": [FAULTY], "colour": "red"})
