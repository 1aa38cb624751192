"""Tests of platforms from measured profiles: a real one of two cores, and what makes a profile useless."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.platform_profile import PlatformProfile
from ciera_piper_core.models import catalogue
from ciera_piper_core.platforms import load_platform, shapes

if TYPE_CHECKING:
    from collections.abc import Callable

    from ciera_piper_core.platforms import Platform

PROFILE = Path(__file__).parents[2] / "data" / "platform_profile_cpu.json"
MEASURED = load_platform(str(PROFILE))
RANKS = 4
"""Most ranks on its node; each has a quarter of it."""

MLA = "deepseek-v2-lite"


@pytest.fixture
def profile() -> dict[str, Any]:
    """The real profile's content, to be changed."""
    content: dict[str, Any] = json.loads(PROFILE.read_text())
    return content


@pytest.fixture
def loaded(tmp_path: Path) -> Callable[[dict[str, Any]], Platform]:
    """Writes a profile and loads it."""

    def write_and_load(content: dict[str, Any]) -> Platform:
        path = tmp_path / "profile.json"
        path.write_text(json.dumps(content))
        return load_platform(str(path))

    return write_and_load


def on_accelerators(content: dict[str, Any], count: int = 8) -> dict[str, Any]:
    """The same numbers as if eight GPUs had them."""
    text = json.dumps(content).replace('"device": "cpu"', '"device": "cuda"')
    changed: dict[str, Any] = json.loads(text)
    changed["identity"]["gpus"] = [{"count": count, "model": "NVIDIA H200", "memory_gib": 140}]
    for entry in (*changed["matmul_peak"], *changed["memory"]):
        entry["threads"] = None
    rows = (*changed["attention"], *changed["expert_gemm"]["rows"])
    for row in rows:
        row["params"]["threads"] = 0
    return changed


def over_nodes(content: dict[str, Any], seconds_a_gb: float = 1.0) -> dict[str, Any]:
    """With an all-to-all of four ranks on two nodes, whose time is all bandwidth."""
    inside = next(
        c for c in content["collectives"] if (c["suite"], c["ranks"], c["traffic"]) == ("alltoall", 4, "uniform")
    )
    between = json.loads(json.dumps(inside)) | {"nodes": 2, "scope": "lab", "lab": "nodes=2"}
    for point in between["points"]:
        point["latency_us"] = point["bytes"] * seconds_a_gb / 1e3
    content["collectives"].append(between)
    return content


def test_the_file_is_what_the_harness_writes() -> None:
    assert PlatformProfile.load(PROFILE).schema_version == 1


def test_the_node_is_shared_out_among_its_ranks(profile: dict[str, Any]) -> None:
    best = next(peak for peak in profile["matmul_peak"] if peak["dtype"] == "bfloat16")
    assert MEASURED.gpus_per_node == MEASURED.max_gpus == RANKS
    assert MEASURED.peak * RANKS == pytest.approx(best["best_tflop_s"] * 1e12)
    fastest = max(memory["best_gb_s"] for memory in profile["memory"])
    assert MEASURED.memory_bandwidth_bytes_s * RANKS == pytest.approx(fastest * 1e9)
    # The fingerprint counts GiB, and everything else in the file is decimal.
    assert MEASURED.memory_bytes * RANKS == 24 * 2**30


def test_the_peak_is_the_largest_matmul_and_says_so() -> None:
    assert MEASURED.peak_source.startswith(
        "measured, not settled (1 of 1): largest bfloat16 product, 8192 x 1024 x 1024: 0.4185 TFLOP/s"
    )


def test_every_term_says_how_it_is_known() -> None:
    assert {"peak", "memory_bandwidth", "matmul", "experts", "attention", "intra_node"} <= MEASURED.measured
    # The quick preset measures experts forward only, and nothing measures these others.
    assert {"experts_backward", "overhead", "inter_node", "topology"}.isdisjoint(MEASURED.measured)
    assert "qwen3-30b-a3b with 8 experts" in MEASURED.terms["experts"].text


@pytest.mark.parametrize("sequence", [512, 1024])
@pytest.mark.parametrize("backward", [False, True])
def test_a_measured_attention_shape_gives_its_own_rate(profile: dict[str, Any], sequence: int, backward: bool) -> None:
    architecture = catalogue.load(MLA)
    rows = {
        row["params"]["direction"]: row["values"]["throughput"] * 1e12 / RANKS
        for row in profile["attention"]
        if (row["params"]["model"], row["params"]["sequence"]) == (MLA, sequence)
    }
    expected = rows["forward"]
    if backward:
        expected = 2 / (3 / rows["forward_backward"] - 1 / rows["forward"])
    rate = MEASURED.attention_flops_s(
        architecture.attention, architecture.hidden, sequence, tensor_parallel=8, backward=backward
    )
    assert rate == pytest.approx(expected)


def test_parts_of_attention_add_up_to_the_block() -> None:
    architecture = catalogue.load(MLA)
    parts = MEASURED.rates.attention(architecture.attention, architecture.hidden, 1024, 2048, 8)
    seconds = sum(float(part.forward) for part in parts.values())
    flops = 2048 * float(shapes.block_flops(architecture.attention, architecture.hidden, 1024, 8))
    rate = MEASURED.attention_flops_s(architecture.attention, architecture.hidden, 1024, tensor_parallel=8)
    assert flops / seconds == pytest.approx(rate)


def test_experts_at_measured_tokens_have_the_faster_methods_rate(profile: dict[str, Any]) -> None:
    for tokens in (256, 1024, 2048):
        best = max(
            row["values"]["throughput"]
            for row in profile["expert_gemm"]["rows"]
            if (row["params"]["tokens"], row["params"]["distribution"]) == (tokens, "uniform")
        )
        rate = MEASURED.expert_flops_s(tokens / 8, 2048, 768, experts=8)
        assert float(rate) == pytest.approx(best * 1e12 / RANKS)


def test_notes_say_what_is_measured_and_what_is_beyond() -> None:
    experts = MEASURED.rates.experts_note
    assert experts(64, 2048, 768, 3) == "measured at this shape (qwen3-30b-a3b with 8 experts)"
    assert experts(64, 7168, 2048, 3).startswith("between measured experts, nearest qwen3-30b-a3b")
    assert experts(2, 2048, 768, 3).startswith("extrapolated: 2 tokens an expert")
    architecture = catalogue.load(MLA)
    attention = MEASURED.rates.attention_note
    assert attention(architecture.attention, architecture.hidden, 600, 8).startswith("measured at this shape")
    assert attention(architecture.attention, architecture.hidden, 600, 4).startswith("between measured mla")
    assert attention(architecture.attention, architecture.hidden, 4096, 8).startswith("extrapolated: sequence 4096")


@given(st.integers(1, 20_000), st.integers(1, 20_000), st.integers(1, 20_000))
def test_no_rate_is_above_the_peak(m: int, n: int, k: int) -> None:
    most = MEASURED.peak * (1 + 1e-9)
    assert 0 < float(MEASURED.matmul_flops_s(m, n, k)) <= most
    assert 0 < float(MEASURED.expert_flops_s(m, n, k)) <= most
    assert 0 < float(MEASURED.expert_flops_s(m, n, k, backward=True)) <= most


@given(st.lists(st.floats(0.5, 1e5), min_size=2, max_size=6), st.sampled_from([768, 1024, 2048]))
def test_more_tokens_are_never_faster(tokens: list[float], ffn: int) -> None:
    passes = MEASURED.rates.experts(np.sort(tokens), 8, 2048, ffn, 3)
    products = MEASURED.rates.products(np.sort(tokens), 2048, ffn)
    for seconds in (passes.forward, passes.backward, products.forward):
        assert (seconds > 0).all()
        assert (np.diff(seconds) >= -1e-9 * seconds[1:]).all()


def test_tensor_parallel_degrees_may_be_arrays() -> None:
    attention = catalogue.load("mixtral-8x7b").attention
    degrees = np.array([[1, 8], [4, 1]])
    together = MEASURED.rates.attention(attention, 4096, 1024, 4096, degrees)["attention_scores"].forward
    alone = [
        [float(MEASURED.rates.attention(attention, 4096, 1024, 4096, int(d))["attention_scores"].forward) for d in row]
        for row in degrees
    ]
    np.testing.assert_allclose(together, alone)


def test_an_accelerator_has_its_tables_to_itself(
    profile: dict[str, Any], loaded: Callable[[dict[str, Any]], Platform]
) -> None:
    platform = loaded(on_accelerators(profile))
    assert (platform.gpus_per_node, platform.max_gpus, platform.device) == (8, 8, "NVIDIA H200")
    assert platform.memory_bytes == 140 * 2**30
    assert platform.overhead_bytes == 2 * 10**9
    assert platform.peak == pytest.approx(MEASURED.peak * RANKS)
    assert float(platform.expert_flops_s(128, 2048, 768, experts=8)) == pytest.approx(
        RANKS * float(MEASURED.expert_flops_s(128, 2048, 768, experts=8))
    )


def test_one_accelerator_needs_no_exchange(
    profile: dict[str, Any], loaded: Callable[[dict[str, Any]], Platform]
) -> None:
    alone = on_accelerators(profile, count=1) | {"collectives": []}
    assert loaded(alone).max_gpus == 1


def test_a_network_that_was_measured_goes_on(
    profile: dict[str, Any], loaded: Callable[[dict[str, Any]], Platform]
) -> None:
    platform = loaded(over_nodes(profile))
    assert platform.max_gpus > 1000
    assert "emulated" in platform.terms["inter_node"].text
    # 1 GB/s a rank, two thirds of what leaves a rank crosses, two ranks a node.
    assert platform.link("all_to_all", crosses=True).bytes_s == pytest.approx(1e9 * 3 / 4 * 2 / 3 * 2)


def test_unknown_models_of_a_newer_profile_are_passed_over(
    profile: dict[str, Any], loaded: Callable[[dict[str, Any]], Platform]
) -> None:
    for row in profile["attention"]:
        if row["params"]["model"] == "olmoe-1b-7b":
            row["params"]["model"] = "a-later-model"
    assert "olmoe" not in loaded(profile).terms["attention"].text


def test_a_backward_pass_without_time_is_noise(
    profile: dict[str, Any], loaded: Callable[[dict[str, Any]], Platform]
) -> None:
    """Both directions together in the time of forward alone: then both are taken as equally fast."""
    forward = {
        (row["params"]["model"], row["params"]["sequence"]): row["values"]["throughput"]
        for row in profile["attention"]
        if row["params"]["direction"] == "forward"
    }
    for row in profile["attention"]:
        if row["params"]["direction"] == "forward_backward":
            key = row["params"]["model"], row["params"]["sequence"]
            row["values"]["throughput"] = min(3 * forward[key], 0.4)
    architecture = catalogue.load("olmoe-1b-7b")
    platform = loaded(profile)
    rate = platform.attention_flops_s(
        architecture.attention, architecture.hidden, 512, tensor_parallel=8, backward=True
    )
    both = 3 * forward["olmoe-1b-7b", 512] * 1e12 / RANKS
    assert rate == pytest.approx(both)


def test_a_folder_stands_for_its_profile(tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_bytes(PROFILE.read_bytes())
    assert load_platform(str(tmp_path)).peak == MEASURED.peak


def test_another_version_is_refused(profile: dict[str, Any], loaded: Callable[[dict[str, Any]], Platform]) -> None:
    message = r"profile .*profile\.json has schema version 2, this program reads 1; run `bench characterize"
    with pytest.raises(ValueError, match=message):
        loaded(profile | {"schema_version": 2})


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_truncated_profile_is_refused(tmp_path: Path, share: float) -> None:
    text = PROFILE.read_text()
    path = tmp_path / "cut.json"
    path.write_text(text[: int(len(text) * share)])
    with pytest.raises(ValueError, match=r"cut\.json is cut off or no JSON .*; run `bench characterize"):
        load_platform(str(path))


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    for content in ("[]", "{}", '"text"'):
        path.write_text(content)
        with pytest.raises(ValueError, match=r"other\.json is no platform profile: .*; run `bench characterize"):
            load_platform(str(path))
    path.write_bytes(b"\x80\x81")
    with pytest.raises(ValueError, match="cut off or no JSON"):
        load_platform(str(path))


@pytest.mark.parametrize(
    ("section", "empty", "what", "suite"),
    [
        ("matmul_peak", [], "rows of matmul_peak", "matmul_peak"),
        ("memory", [], "rows of memory", "memory"),
        ("attention", [], "rows of attention", "attention"),
        ("expert_gemm", {"rows": [], "break_even": []}, "rows of expert_gemm", "expert_gemm"),
        ("collectives", [], "all_to_all among its collectives", "alltoall"),
    ],
)
def test_a_missing_table_is_named_with_what_to_run(
    profile: dict[str, Any],
    loaded: Callable[[dict[str, Any]], Platform],
    section: str,
    empty: object,
    what: str,
    suite: str,
) -> None:
    with pytest.raises(ValueError, match=rf"profile\.json has no {what}; run `bench run {suite}`") as caught:
        loaded(profile | {section: empty})
    assert "\n" not in str(caught.value)
    del profile[section]
    with pytest.raises(ValueError, match=rf"profile\.json lacks '{section}'; run `bench characterize"):
        loaded(profile)


def test_only_skewed_tokens_are_no_table(profile: dict[str, Any], loaded: Callable[[dict[str, Any]], Platform]) -> None:
    rows = profile["expert_gemm"]["rows"]
    profile["expert_gemm"]["rows"] = [row for row in rows if row["params"]["distribution"] != "uniform"]
    with pytest.raises(ValueError, match="has no forward rows of expert_gemm with distribution=uniform"):
        loaded(profile)


def test_a_dtype_that_was_not_measured_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no float32 in all of .*; run `bench characterize .* --set dtype=float32`"):
        load_platform(str(PROFILE), "fp32")


@pytest.mark.parametrize(
    ("section", "key"), [("matmul_peak", "best_tflop_s"), ("memory", "best_gb_s"), ("attention", "params")]
)
def test_a_field_that_is_missing_is_named(
    profile: dict[str, Any], loaded: Callable[[dict[str, Any]], Platform], section: str, key: str
) -> None:
    for entry in profile[section]:
        del entry[key]
    with pytest.raises(ValueError, match=rf"profile\.json lacks '{key}'; run `bench characterize"):
        loaded(profile)


@pytest.mark.parametrize("latency", [0.0, -1.0, float("nan"), float("inf")])
def test_an_impossible_number_is_refused(
    profile: dict[str, Any], loaded: Callable[[dict[str, Any]], Platform], latency: float
) -> None:
    for curve in profile["collectives"]:
        curve["points"][0]["latency_us"] = latency
    with pytest.raises(ValueError, match=r"profile\.json is not as its schema says \(a size and its seconds must be"):
        loaded(profile)


def test_memory_that_is_not_known_is_refused(
    profile: dict[str, Any], loaded: Callable[[dict[str, Any]], Platform]
) -> None:
    profile["identity"]["memory_gib"] = None
    with pytest.raises(ValueError, match="does not say how much memory the node has"):
        loaded(profile)
    accelerated = on_accelerators(profile)
    accelerated["identity"]["gpus"][0]["memory_gib"] = None
    with pytest.raises(ValueError, match="does not say how much memory its accelerators have"):
        loaded(accelerated)


def settled_everywhere(content: dict[str, Any], settled: bool) -> dict[str, Any]:
    text = json.dumps(content).replace('"settled": false', f'"settled": {str(settled).lower()}')
    return dict(json.loads(text))


def test_what_did_not_settle_is_carried_into_terms(
    profile: dict[str, Any], loaded: Callable[[dict[str, Any]], Platform]
) -> None:
    assert str(MEASURED.terms["peak"]).startswith("measured, not settled (1 of 1): largest bfloat16 product")
    assert str(MEASURED.terms["attention"]).startswith("measured, not settled (6 of 6): ")
    counted = sum(term.figures for term in MEASURED.terms.values())
    assert MEASURED.settling == f"{counted} of {counted} measured figures did not settle"
    assert "3 of 3 points not settled" in MEASURED.terms["intra_node"].text
    # An assumption has no figures.
    assert all(term.figures == 0 for term in MEASURED.terms.values() if term.status != "measured")

    calm = loaded(settled_everywhere(profile, True))
    assert calm.settling == ""
    assert str(calm.terms["peak"]).startswith("measured: largest bfloat16 product")
    changed = settled_everywhere(profile, True)
    next(row for row in changed["attention"] if row["params"]["direction"] == "forward")["settled"] = False
    assert loaded(changed).settling.startswith(f"1 of {counted} ")
    assert "(1 of 6)" in str(loaded(changed).terms["attention"])


def test_a_profile_nested_beyond_reading_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text("[" * 200_000)
    with pytest.raises(ValueError, match="nested too deeply"):
        load_platform(str(path))
