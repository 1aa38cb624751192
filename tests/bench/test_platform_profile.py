"""The platform profile file: schema, round trip, refusals, interpolation."""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from bench.errors import StoreError, UsageError
from bench.platform_profile import (
    SCHEMA_PATH,
    AlphaBetaFit,
    Curve,
    CurvePoint,
    ExpertGemm,
    PlatformProfile,
    RowRef,
    Segment,
    schema_text,
)

if TYPE_CHECKING:
    from pathlib import Path

SIZES = [1 << exponent for exponent in range(10, 20)]


def make_curve(latencies_us: dict[int, float], segments: tuple[Segment, ...] = ()) -> Curve:
    """A curve through the latencies by bytes, with a fit of the segments if there are any."""
    residuals = {"worst_relative_residual": 0.0, "median_relative_residual": 0.0}
    counts = {"points": len(latencies_us), "unsettled_points": 0}
    point: dict[str, Any] = dict.fromkeys(CurvePoint.model_fields) | {"n": 9, "settled": True}
    point["row"] = RowRef(run_id="r", row_id=0)
    text = dict.fromkeys(("op", "algorithm", "traffic", "dtype", "backend", "device", "scope", "lab"), "")
    return Curve(
        suite="collectives",
        **text,
        ranks=4,
        nodes=1,
        params={"zipf": 1.5},
        points=tuple(CurvePoint(**{**point, "bytes": size, "latency_us": us}) for size, us in latencies_us.items()),
        base_latency_us=min(latencies_us.values()),
        peak_busbw_gb_s=None,
        fit=AlphaBetaFit(model="alpha-beta", segments=segments, **residuals, **counts) if segments else None,
        fit_absent_reason="" if segments else "not tried",
    )


@pytest.fixture(scope="module")
def curve() -> Curve:
    eager = Segment(min_bytes=SIZES[0], max_bytes=SIZES[4], alpha_us=20, beta_gb_s=None)
    rendezvous = Segment(min_bytes=SIZES[4], max_bytes=SIZES[-1], alpha_us=30, beta_gb_s=2)
    return make_curve({size: 20 + size / 2e3 for size in SIZES}, (eager, rendezvous))


@pytest.fixture(scope="module")
def profile(curve: Curve) -> PlatformProfile:
    sections = ("run_ids", "matmul_peak", "memory", "attention", "codec", "failures")
    return PlatformProfile(
        schema_version=1,
        created_at="2026-01-01T00:00:00.000+00:00",
        harness_version="0.1.0",
        name="node7: Test CPU",
        preset="quick",
        identity={"cpu": {"model": "Test CPU", "flags": ["avx2"]}, "gpu": None},
        identity_digest="sha256:0",
        methods={},
        collectives=(curve,),
        expert_gemm=ExpertGemm(rows=(), break_even=()),
        other={},
        unsettled=0,
        superseded=0,
        **dict.fromkeys(sections, ()),
    )


def edited(profile: PlatformProfile, path: Path, *keys: Any, value: Any) -> Path:
    """The saved file with the value at ``keys`` replaced."""
    record = json.loads(profile.model_dump_json())
    place = record
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    path.write_text(json.dumps(record))
    return path


def test_shipped_schema_is_that_of_the_models() -> None:
    assert SCHEMA_PATH.read_text() == schema_text(), "write schema_text() to bench/platform_profile.schema.json"


def test_schema_requires_every_key_and_refuses_others() -> None:
    schema = json.loads(schema_text())
    objects = [schema, *(part for part in schema["$defs"].values() if part.get("type") == "object")]
    assert len(objects) > 10
    for part in objects:
        assert sorted(part["required"]) == sorted(part["properties"]), part["title"]
        assert part["additionalProperties"] is False, part["title"]


def test_round_trip(profile: PlatformProfile, tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "profile.json"
    profile.save(path)
    assert PlatformProfile.load(path) == profile
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert os.listdir(path.parent) == ["profile.json"]


def test_save_replaces_whole_file(profile: PlatformProfile, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text("x" * 1_000_000)
    profile.save(path)
    assert PlatformProfile.load(path) == profile


def test_save_to_a_place_that_is_no_folder(profile: PlatformProfile, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot write the platform profile"):
        profile.save(tmp_path / "file" / "profile.json")


def test_failed_save_leaves_nothing_behind(profile: PlatformProfile, tmp_path: Path) -> None:
    (tmp_path / "profile.json").mkdir()
    with pytest.raises(StoreError):
        profile.save(tmp_path / "profile.json")
    assert os.listdir(tmp_path) == ["profile.json"]


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("surprise",), 1, "surprise: Extra inputs"),
        (("collectives", 0, "surprise"), 1, "surprise: Extra inputs"),
        (("collectives", 0, "ranks"), "4", r"ranks: Input should be a valid integer"),
        (("collectives", 0, "base_latency_us"), -1.0, "base_latency_us: Input should be greater than 0"),
        (("collectives", 0, "points"), [], "points: Tuple should have at least 1 item"),
        (("collectives", 0, "fit_absent_reason"), "none", "either a fit or a reason"),
        (("schema_version",), 2, "has profile schema 2, this program reads 1"),
        (("schema_version",), "1", "has no schema_version"),
    ],
)
def test_load_refuses_in_one_line(
    profile: PlatformProfile, tmp_path: Path, keys: tuple[Any, ...], value: Any, message: str
) -> None:
    with pytest.raises(StoreError, match=message) as caught:
        PlatformProfile.load(edited(profile, tmp_path / "profile.json", *keys, value=value))
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "profile.json") in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\xff", '{"schema_version": true}'])
def test_load_refuses_other_files(tmp_path: Path, text: str) -> None:
    path = tmp_path / "profile.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(StoreError, match="is not a platform profile"):
        PlatformProfile.load(path)


def test_load_of_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file"):
        PlatformProfile.load(tmp_path / "profile.json")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_finite_number_is_refused(profile: PlatformProfile, tmp_path: Path, value: float) -> None:
    path = edited(profile, tmp_path / "p.json", "collectives", 0, "points", 0, "share_of_bound", value=value)
    with pytest.raises(StoreError, match="share_of_bound"):
        PlatformProfile.load(path)


def test_points_must_ascend(curve: Curve) -> None:
    with pytest.raises(ValidationError, match="points must ascend"):
        Curve(**{**dict(curve), "points": curve.points[::-1]})


def test_interpolation_passes_through_the_points(curve: Curve) -> None:
    assert [curve.latency_us_at(point.bytes) for point in curve.points] == [p.latency_us for p in curve.points]


@settings(deadline=None)
@given(st.floats(SIZES[0], SIZES[-1]), st.lists(st.floats(0.1, 1e6), min_size=len(SIZES), max_size=len(SIZES)))
def test_interpolation_stays_between_the_neighbours(size: float, latencies_us: list[float]) -> None:
    points = dict(zip(SIZES, latencies_us, strict=True))
    low = max(known for known in SIZES if known <= size)
    high = min(known for known in SIZES if known >= size)
    least, most = sorted((points[low], points[high]))
    assert least * (1 - 1e-12) <= make_curve(points).latency_us_at(size) <= most * (1 + 1e-12)


def test_interpolation_is_linear_in_logarithms() -> None:
    assert make_curve({1024: 1.0, 4096: 4.0}).latency_us_at(2048) == pytest.approx(2.0)


def test_fit_takes_the_segment_of_the_size(curve: Curve) -> None:
    assert curve.fit is not None
    assert curve.fit.latency_us_at(SIZES[4]) == 20
    assert curve.fit.latency_us_at(SIZES[4] + 1) == pytest.approx(30 + (SIZES[4] + 1) / 2e3)
    assert (curve.fit.min_bytes, curve.fit.max_bytes) == (SIZES[0], SIZES[-1])


@pytest.mark.parametrize("size", [0, 1023, (1 << 19) + 1])
def test_nothing_is_extrapolated(curve: Curve, size: int) -> None:
    assert curve.fit is not None
    for predictor in (curve, curve.fit):
        with pytest.raises(UsageError, match=r"outside the measured range 1024\.\.524288"):
            predictor.latency_us_at(size)
