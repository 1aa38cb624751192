"""Each stage of the exponent codec, and whole tensors beside other people's compressors."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from bench.suite import Axis, Metric, Suite
from suites.codec_peers import PEERS, peer_reason
from suites.coding_metrics import CODED_OVER_ENTROPY, CODED_RATIO, ORIGINAL_THROUGHPUT, RATIO_TO_MEMCPY
from suites.communication import KIB, MIB
from suites.compute import DTYPES, ROTATED_BYTES, THREADS, threads_of, threads_reason
from suites.tensors import ITEM_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.suite import Case, Context, Preset, Site, Value, Workload

KERNEL_STAGES = ("split", "merge", "hash", "split_hash")
CODER_STAGES = ("encode", "decode")
TENSOR_STAGES = ("compress", "decompress")
STAGES = (*KERNEL_STAGES, *CODER_STAGES, *TENSOR_STAGES)
SIZED = ("encode", "compress")
"""Stages whose rows have the coded size."""

STAGES_OF = {
    "reference": STAGES,
    "native": STAGES,
    "triton": KERNEL_STAGES,
    "nvcomp": (*CODER_STAGES, *TENSOR_STAGES),
    **dict.fromkeys(PEERS, TENSOR_STAGES),
}
"""What is measured of each backend and peer. Triton has no coder of its own, and nvCOMP's kernels are Triton's."""

DATA = ("gaussian", "real", "trained", "delta", "uniform", "constant", "skewed")
ISAS = ("none", "scalar", "avx2", "avx512")
NO_ENTROPY = ("constant", "skewed")
"""Data whose entropy is next to nothing, so that nothing can be said of a size over it."""

SLOW_BYTES = MIB
"""The reference is slow; more than this would take minutes."""

LEAST_PLACES = 3
TENSORS_IN_PLACE = 3
"""Most tensors of a case's size that lie in each of the places that calls rotate through: in, out, and the copy's."""

WORKING_TENSORS = 12
"""Further memory while data is made and checked, in tensors of the case's size."""


def places_of(size: int) -> int:
    """In how many places the data lies, so that together they are more than a cache holds."""
    return max(LEAST_PLACES, -(-ROTATED_BYTES // (2 * size)))


class CodecSuite(Suite):
    """A stage of a backend on one kind of data, against memcpy of the same bytes in the same process."""

    name: ClassVar[str] = "codec"
    summary: ClassVar[str] = "exponent codec: throughput of each stage against memcpy, coded size, peers"
    method_version: ClassVar[int] = 1
    characterizes: ClassVar[bool] = True
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("throughput", ORIGINAL_THROUGHPUT),
        Metric("ratio_to_memcpy", RATIO_TO_MEMCPY),
        Metric("coded_over_entropy", CODED_OVER_ENTROPY),
        Metric("coded_ratio", CODED_RATIO),
    )
    axes: ClassVar[tuple[Axis, ...]] = (
        Axis("dtype", "str", "type of the values", DTYPES),
        Axis("bytes", "bytes", "original bytes: of the values; of encode and decode of their exponents", minimum=64),
        Axis(
            "data",
            "str",
            "gaussian: N(0, 0.02); real: a model that is installed (BENCH_WEIGHTS names a .safetensors file); trained: "
            "a small model trained here; delta: differences of exponents, 0.5 % of them not 0; uniform: random bits; "
            "constant; skewed: one exponent but for one in a million. Kernels are measured on gaussian alone",
            DATA,
        ),
        Axis(
            "stage",
            "str",
            "split, merge: values to planes and back; hash: block hashes; split_hash: split, hash and compare in one "
            "pass; encode, decode: exponents, with a table that is ready; compress, decompress: whole tensors, cold",
            STAGES,
        ),
        Axis("backend", "str", "ours, or a peer (whole tensors alone)", tuple(STAGES_OF)),
        Axis("isa", "str", "instruction level of native; none for all others", ISAS),
        THREADS,
    )
    presets: ClassVar[Mapping[Preset, Mapping[str, Sequence[Value]]]] = {
        "quick": {
            "dtype": ("bfloat16",),
            "bytes": (64 * MIB,),
            "data": ("gaussian", "delta"),
            "stage": STAGES,
            "backend": ("native", *PEERS),
            "isa": ("none", "avx512", "avx2"),
            "threads": (1,),
        },
        "standard": {
            "dtype": ("bfloat16", "float16"),
            "bytes": (64 * MIB,),
            "data": ("gaussian", "real", "trained", "delta"),
            "stage": STAGES,
            "backend": ("native", "triton", "nvcomp", *PEERS),
            "isa": ISAS,
            "threads": (1, 2),
        },
        "full": {
            "dtype": DTYPES,
            "bytes": (64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB),
            "data": DATA,
            "stage": STAGES,
            "backend": ("reference", "native", "triton", "nvcomp", *PEERS),
            "isa": ISAS,
            "threads": (1, 2, 0),
        },
    }

    def keeps(self, case: Case) -> bool:
        stage, data = case["stage"], case["data"]
        if stage not in STAGES_OF[case["backend"]] or (case["backend"] == "native") == (case["isa"] == "none"):
            return False
        if data == "delta":
            return stage in CODER_STAGES
        return data == "gaussian" or stage not in KERNEL_STAGES

    def metrics_for(self, case: Case) -> tuple[Metric, ...]:
        """Coded sizes where something is coded."""
        if case["stage"] not in SIZED:
            return self.metrics[:2]
        return tuple(
            metric for metric in self.metrics if case["data"] not in NO_ENTROPY or metric.name != "coded_over_entropy"
        )

    def placed_params(self, case: Case, site: Site) -> Mapping[str, Value]:
        """The true number of threads, and whose weights real ones are."""
        placed: dict[str, Value] = {"threads": threads_of(case, site)}
        if case["data"] == "real":
            from suites.model_file import find_model_file

            found = find_model_file()
            placed["weights"] = found.name if found else "none"
        return placed

    def skip_reason(self, case: Case, site: Site) -> str | None:
        backend = case["backend"]
        if case["bytes"] % ITEM_BYTES[case["dtype"]]:
            return f"{case['bytes']} bytes are no whole number of {case['dtype']} values"
        on_gpu = backend in ("triton", "nvcomp")
        if on_gpu != (site.device == "cuda"):
            return f"{backend} runs on a {'GPU' if on_gpu else 'CPU'}"
        if backend == "reference" and case["bytes"] > SLOW_BYTES:
            return "the reference takes minutes for so much; use at most 1MiB"
        return threads_reason(case, site) or _backend_reason(backend, case["isa"]) or _data_reason(case["data"])

    def memory_bytes(self, case: Case, site: Site) -> int:
        size = int(case["bytes"])
        return size * (TENSORS_IN_PLACE * places_of(size) + WORKING_TENSORS)

    def setup(self, case: Case, context: Context) -> Workload:
        from suites.codec_workload import CodecWorkload

        return CodecWorkload(case, context, places_of(int(case["bytes"])))


def _backend_reason(backend: str, isa: str) -> str | None:
    """Why the backend or the peer cannot be measured here, or None."""
    if backend in PEERS:
        return peer_reason(backend)
    if backend == "native":
        from ciera_piper_core.exponents.native.library import NativeUnavailableError, chosen_isa

        try:
            chosen_isa(isa)
        except (NativeUnavailableError, ValueError) as error:
            return str(error)
    if backend in ("triton", "nvcomp"):
        from ciera_piper_core.exponents.backend import available

        return available()[backend] or None
    return None


def _data_reason(data: str) -> str | None:
    """Why the data is not to be had here, or None."""
    if data != "real":
        return None
    from suites.model_file import FILE_VARIABLE, INSTALL, find_model_file

    if find_model_file() is None:
        return f"no real weights are installed: {INSTALL}, or name a .safetensors file in {FILE_VARIABLE}"
    return None
