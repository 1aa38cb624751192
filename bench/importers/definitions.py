"""Definitions of what other tools report, as those tools define it. None of these numbers is computed here."""

from __future__ import annotations

from bench.definitions import Definition, define

NCCL_TESTS_LATENCY = define(
    Definition(
        "latency/nccl-tests-mean-v1",
        "us",
        "lower",
        "Imported: nccl-tests' time, the mean over iterations back to back and, unless -a says otherwise, over ranks.",
    )
)
NCCL_TESTS_CPU_TIME = define(
    Definition(
        "cpu_time/nccl-tests-v1",
        "us",
        "lower",
        "Imported: nccl-tests' cputime (-C 1), the time that the CPU needs to enqueue an iteration.",
    )
)
NCCL_TESTS_ALGBW = define(
    Definition(
        "algbw/nccl-tests-mean-v1",
        "GB/s",
        "higher",
        "Imported: nccl-tests' algbw, its bytes over its mean time.",
    )
)
NCCL_TESTS_BUSBW = define(
    Definition(
        "busbw/nccl-tests-mean-v1",
        "GB/s",
        "higher",
        "Imported: nccl-tests' busbw, its algbw times the factor of the operation.",
    )
)
NCCL_TESTS_ITERATION = define(
    Definition(
        "latency/nccl-tests-iteration-v1",
        "us",
        "lower",
        "Imported: nccl-tests' time of each iteration by device events (-I 1), the maximum over processes; the "
        "value is the median.",
    )
)
NCCL_TESTS_P99 = define(
    Definition(
        "latency/nccl-tests-p99-v1",
        "us",
        "lower",
        "Imported: nccl-tests' i_p99 (-I 1), the 99th percentile of the iterations.",
    )
)
OSU_LATENCY = define(
    Definition(
        "latency/osu-mean-v1",
        "us",
        "lower",
        "Imported: OSU's latency, the mean over iterations. Of two ranks it is half the round trip; of a "
        "collective the mean over ranks, with each rank's own mean in rank_min and rank_max.",
    )
)
OSU_PERCENTILE = define(
    Definition(
        "latency/osu-percentile-v1",
        "us",
        "lower",
        "Imported: a percentile of OSU's latency over iterations, named by the parameter percentile.",
    )
)
OSU_OVERALL = define(
    Definition(
        "latency/osu-overall-v1",
        "us",
        "lower",
        "Imported: OSU's time of a non-blocking operation together with the computation beside it.",
    )
)
OSU_COMMUNICATION = define(
    Definition(
        "latency/osu-communication-v1",
        "us",
        "lower",
        "Imported: OSU's time of a non-blocking operation without computation beside it.",
    )
)
OSU_OVERLAP = define(
    Definition(
        "overlap/osu-v1",
        "ratio",
        "higher",
        "Imported: the share of OSU's pure communication time that the computation beside it hid, 0 to 1.",
    )
)
OSU_BANDWIDTH = define(
    Definition(
        "bandwidth/osu-v1",
        "GB/s",
        "higher",
        "Imported: OSU's bandwidth, of all pairs together; its MB/s are 1e6 bytes a second.",
    )
)
OSU_MESSAGE_RATE = define(
    Definition(
        "message_rate/osu-v1",
        "1/s",
        "higher",
        "Imported: OSU's messages a second, of all pairs together.",
    )
)
GOOGLE_REAL_TIME = define(
    Definition(
        "real_time/google-benchmark-v1",
        "ns",
        "lower",
        "Imported: google/benchmark's real time an iteration. A sample is a repetition, the mean over its iterations.",
    )
)
GOOGLE_CPU_TIME = define(
    Definition(
        "cpu_time/google-benchmark-v1",
        "ns",
        "lower",
        "Imported: google/benchmark's CPU time an iteration. A sample is a repetition, the mean over its iterations.",
    )
)
GOOGLE_BYTES = define(
    Definition(
        "bandwidth/google-benchmark-v1",
        "GB/s",
        "higher",
        "Imported: google/benchmark's bytes_per_second, which the benchmark itself counts.",
    )
)
GOOGLE_ITEMS = define(
    Definition(
        "items_rate/google-benchmark-v1",
        "1/s",
        "higher",
        "Imported: google/benchmark's items_per_second, which the benchmark itself counts.",
    )
)
GOOGLE_MEMORY = define(
    Definition(
        "memory/google-benchmark-v1",
        "B",
        "lower",
        "Imported: google/benchmark's memory in use at most, in all, or grown (max_bytes_used, "
        "total_allocated_bytes, net_heap_growth).",
    )
)
GOOGLE_ALLOCATIONS = define(
    Definition(
        "allocations/google-benchmark-v1",
        "count",
        "lower",
        "Imported: google/benchmark's number of allocations an iteration.",
    )
)
NVBENCH_MEDIAN = define(
    Definition(
        "time/nvbench-median-v1",
        "s",
        "lower",
        "Imported: nvbench's time of a kernel launch, the median over samples.",
    )
)
NVBENCH_MEAN = define(
    Definition(
        "time/nvbench-mean-v1",
        "s",
        "lower",
        "Imported: nvbench's time of a kernel launch, the mean over samples; of a batch, the mean over launches "
        "back to back.",
    )
)
NVBENCH_BANDWIDTH = define(
    Definition(
        "bandwidth/nvbench-v1",
        "GB/s",
        "higher",
        "Imported: nvbench's rate of bytes that the benchmark declares.",
    )
)
NVBENCH_SHARE = define(
    Definition(
        "bandwidth_share/nvbench-v1",
        "ratio",
        "higher",
        "Imported: nvbench's memory bandwidth as a share of the device's peak.",
    )
)
NVBENCH_ITEMS = define(
    Definition(
        "items_rate/nvbench-v1",
        "1/s",
        "higher",
        "Imported: nvbench's rate of elements that the benchmark declares.",
    )
)
PYTEST_DURATION = define(
    Definition(
        "duration/pytest-benchmark-v1",
        "s",
        "lower",
        "Imported: pytest-benchmark's time of a call, the median over rounds; a round is the mean over its iterations.",
    )
)
ASV_TIME = define(
    Definition(
        "duration/asv-v1",
        "s",
        "lower",
        "Imported: asv's time of a call, the median over samples.",
    )
)
ASV_MEMORY = define(
    Definition(
        "memory/asv-v1",
        "B",
        "lower",
        "Imported: asv's size of an object (mem) or peak memory of the process (peakmem).",
    )
)
HYPERFINE_DURATION = define(
    Definition(
        "duration/hyperfine-v1",
        "s",
        "lower",
        "Imported: hyperfine's wall time of a command with the shell's start taken off, the median over runs.",
    )
)
HYPERFINE_MEAN = define(
    Definition(
        "duration/hyperfine-mean-v1",
        "s",
        "lower",
        "Imported: hyperfine's wall time of a command where the file has the mean over runs only.",
    )
)
HYPERFINE_CPU = define(
    Definition(
        "cpu_time/hyperfine-v1",
        "s",
        "lower",
        "Imported: hyperfine's CPU time of a command in user mode or in the kernel, the mean over runs.",
    )
)
HYPERFINE_MEMORY = define(
    Definition(
        "memory/hyperfine-v1",
        "B",
        "lower",
        "Imported: hyperfine's peak memory of a command, the median over runs.",
    )
)
OTHER_VALUE = define(
    Definition(
        "value/imported-v1",
        "count",
        "unknown",
        "Imported: any other number of a tool (a counter, asv's track), in the unit that the parameter unit names,"
        " if any. Which direction is better is unknown unless the user says it.",
    )
)
