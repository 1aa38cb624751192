"""The gain model of a platform profile file: what of it counts, and what makes it useless."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.platform_profile import PlatformProfile
from ciera_piper_core.allgather.profile_model import ModelChoice, load_gain_model
from tests.ciera_piper_core.allgather.test_kernel_times import RATES, row

PROFILE = Path(__file__).parents[2] / "data" / "platform_profile_cpu.json"
MIB = 1 << 20


def content_with_codec(**params: Any) -> dict[str, Any]:
    """The real profile's content with codec rows beside it; its schema is the harness's."""
    content: dict[str, Any] = json.loads(PROFILE.read_text())
    rest = {"n": 10, "settled": True, "row": {"run_id": "x", "row_id": 0}}
    content["codec"] = [{**row(stage, rate, **params), **rest} for stage, rate in RATES.items()]
    return content


def written(content: Any, folder: Path) -> Path:
    path = folder / "profile.json"
    path.write_text(json.dumps(content))
    return path


def test_codec_rows_are_within_the_schema(tmp_path: Path) -> None:
    path = written(content_with_codec(), tmp_path)
    assert len(PlatformProfile.load(path).codec) == len(RATES)


def test_a_file_and_its_folder_are_the_same(tmp_path: Path) -> None:
    path = written(content_with_codec(), tmp_path)
    by_file, by_folder = (load_gain_model(place, "bfloat16", ModelChoice(2)) for place in (path, tmp_path))
    assert by_file.comm.source == by_folder.comm.source == "allgather_latency, 2 ranks on 1 node(s), loopback"
    assert by_file.world == 2
    assert float(by_file.kernels.decode.seconds(MIB, 0.0, 0.0)) == pytest.approx(MIB / 9e9)


def test_ranks_that_share_cores_count_as_slower(tmp_path: Path) -> None:
    content = content_with_codec()
    for entry in content["collectives"]:
        if entry["op"] == "all_gather":
            entry["ranks"] = 8
    path = written(content, tmp_path)
    # Eight ranks on the two cores of the profile.
    shared = load_gain_model(path, "bfloat16", ModelChoice(8))
    assert float(shared.kernels.decode.seconds(MIB, 0.0, 0.0)) == pytest.approx(4 * MIB / 9e9)
    content["identity"]["gpus"] = [{"count": 8, "model": "x", "memory_gib": 80}]
    alone = load_gain_model(written(content, tmp_path), "bfloat16", ModelChoice(8))
    assert float(alone.kernels.decode.seconds(MIB, 0.0, 0.0)) == pytest.approx(MIB / 9e9)


def test_all_nodes_of_a_lab_share_one_host(tmp_path: Path) -> None:
    content = content_with_codec()
    for entry in content["collectives"]:
        if entry["op"] == "all_gather":
            entry.update(ranks=4, nodes=4, scope="lab", lab="nodes=4")
    lab = load_gain_model(written(content, tmp_path), "bfloat16", ModelChoice(4))
    assert float(lab.kernels.decode.seconds(MIB, 0.0, 0.0)) == pytest.approx(2 * MIB / 9e9)
    for entry in content["collectives"]:
        if entry["op"] == "all_gather":
            entry.update(scope="cluster", lab="")
    real = load_gain_model(written(content, tmp_path), "bfloat16", ModelChoice(4))
    assert float(real.kernels.decode.seconds(MIB, 0.0, 0.0)) == pytest.approx(MIB / 9e9)


def test_options_reach_the_model(tmp_path: Path) -> None:
    path = written(content_with_codec(isa="avx2"), tmp_path)
    chosen = load_gain_model(path, "bfloat16", ModelChoice(2, isa="avx2", pipelined=True, margin=0.25))
    assert (chosen.pipelined, chosen.margin) == (True, 0.25)
    assert "avx2" in chosen.kernels.source
    with pytest.raises(ValueError, match="no codec rows of bfloat16 avx512"):
        load_gain_model(path, "bfloat16", ModelChoice(2, isa="avx512"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"codec": []}, "no codec rows of bfloat16"),
        ({"collectives": []}, "no all_gather of 2 ranks"),
        ({"collectives": [{"op": "all_gather"}]}, "lacks 'suite'"),
        ({"codec": [{"params": {}}]}, "no codec rows|lacks"),
        ({"codec": 5}, "not as its schema says"),
        ({"schema_version": 99}, "schema version 99"),
    ],
)
def test_a_useless_profile_is_refused_by_name(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = written({**content_with_codec(), **change}, tmp_path)
    with pytest.raises(ValueError, match=message) as caught:
        load_gain_model(path, "bfloat16", ModelChoice(2))
    assert "profile.json" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("section", ["identity", "collectives", "codec"])
def test_a_missing_section_is_named(tmp_path: Path, section: str) -> None:
    content = content_with_codec()
    del content[section]
    with pytest.raises(ValueError, match=f"lacks '{section}'"):
        load_gain_model(written(content, tmp_path), "bfloat16", ModelChoice(2))


def test_a_profile_without_tables_that_a_plan_needs_is_enough(tmp_path: Path) -> None:
    content = content_with_codec()
    content.update(matmul_peak=[], attention=[], memory=[])
    assert load_gain_model(written(content, tmp_path), "bfloat16", ModelChoice(2)).world == 2
