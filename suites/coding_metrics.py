"""What the numbers of the coding suites mean: of codecs, and of gathers that compress."""

from __future__ import annotations

from bench.definitions import Definition, define

ORIGINAL_THROUGHPUT = define(
    Definition(
        "throughput/original-bytes-v1",
        "GB/s",
        "higher",
        "Bytes of the data before coding over the duration, whatever else is read or written: the values; of encode "
        "and decode the plane of their exponents.",
        lambda seconds, work: work.bytes / seconds / 1e9,
    )
)
RATIO_TO_MEMCPY = define(
    Definition(
        "ratio_to_memcpy/interleaved-v1",
        "ratio",
        "higher",
        "Time of a plain copy of the same original bytes over the duration: memcpy with as many threads on a CPU, a "
        "device copy on a GPU. The two take turns in one process, on buffers that come from memory, not from a cache.",
        against_baseline=lambda seconds, baseline, work: baseline / seconds,
    )
)
CODED_OVER_ENTROPY = define(
    Definition(
        "coded_over_entropy/order-0-v1",
        "ratio",
        "lower",
        "Coded bytes, framing and tables included, over what the exponents' order-0 entropy asks for; of whole tensors "
        "over that and the plane of sign and mantissa as it is.",
    )
)
CODED_RATIO = define(
    Definition(
        "coded_ratio/original-bytes-v1",
        "ratio",
        "lower",
        "Coded bytes, framing and tables included, over the original bytes: of the values, or of the plane of their "
        "exponents (5 bits each in float16).",
    )
)
SPEEDUP_OVER_PLAIN = define(
    Definition(
        "speedup_over_plain/interleaved-v1",
        "ratio",
        "higher",
        "Duration of the library's all-gather of the same shards over that of the gather, each the slowest rank's. The "
        "two take turns in the same ranks, over the same links, into buffers that are kept.",
        against_baseline=lambda seconds, baseline, work: baseline / seconds,
    )
)
BYTE_RATIO = define(
    Definition(
        "byte_ratio/contributed-v1",
        "ratio",
        "lower",
        "Bytes that a rank contributes to the collectives of a gather (headers, padding and second collectives "
        "included) over the bytes of its shard; the median over gathers.",
    )
)
