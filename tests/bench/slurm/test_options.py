"""What --slurm takes, and what it refuses in one line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.errors import UsageError
from bench.slurm.options import KEYS, JobOptions


def test_all_that_jobs_usually_need() -> None:
    options = JobOptions.parse(
        ["nodes=2,ranks-per-node=4,time=0:30:00", "partition=gpu, account=me,exclusive,gpus-per-node=h100:4,mem=64G"]
    )
    assert options.world == 8
    assert list(options.directives()) == [
        "--nodes=2",
        "--ntasks-per-node=4",
        "--time=0:30:00",
        "--partition=gpu",
        "--account=me",
        "--exclusive",
        "--gpus-per-node=h100:4",
        "--mem=64G",
    ]


def test_one_rank_unless_more_are_asked_for() -> None:
    assert JobOptions.parse(["time=5"]).world == 1


def test_commas_within_lists() -> None:
    options = JobOptions.parse(["nodelist=n[1,3-4],n7,exclusive,partition=a,b,gres=gpu:2,nvme"])
    assert options.others == (
        ("nodelist", "n[1,3-4],n7"),
        ("exclusive", ""),
        ("partition", "a,b"),
        ("gres", "gpu:2,nvme"),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("partion=gpu", "unknown --slurm key 'partion'; did you mean partition"),
        ("ntasks-per-node=4", "unknown --slurm key 'ntasks-per-node'; did you mean ranks-per-node?"),
        ("frobnicate=4", "unknown --slurm key 'frobnicate'; known: account, "),
        ("nodes=2,now", "unknown --slurm key 'now'"),
        ("", "unknown --slurm key ''"),
        ("nodes=2,nodes=3", "--slurm nodes is given twice"),
        ("nodes=", "--slurm nodes needs a value: nodes=..."),
        ("nodes", "--slurm nodes needs a value: nodes=..."),
        ("nodes=0", "--slurm nodes needs a whole number from 1 to 1000000, not '0'"),
        ("nodes=two", "--slurm nodes needs a whole number from 1 to 1000000, not 'two'"),
        ("cpus-per-rank=99999999999999999999", "--slurm cpus-per-rank needs a whole number"),
        ("exclusive=yes", "--slurm exclusive takes no value; leave 'yes' out"),
        ("time=30m", "--slurm time='30m' is no time; write minutes, hours:minutes:seconds or days-hours"),
        ("time=1:2:3:4", "is no time"),
        ("time=-5", "is no time"),
        ("time=99:99:99", "is no time"),
        ("time=10:60", "is no time"),
        ("time=2-24", "is no time"),
        ("mem=lots", "--slurm mem='lots' is no memory; write MiB, or a number with K, M, G or T"),
        ("mem=64 G", "is no memory"),
        ("partition=a b", "--slurm partition='a b' has what a batch script cannot hold"),
        ("name=a\n#SBATCH --uid=0", "has what a batch script cannot hold"),
    ],
)
def test_mistakes_are_named(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        JobOptions.parse([text])
    assert message in str(caught.value)


@pytest.mark.parametrize("time", ["30", "30:15", "1:30:00", "2-12", "2-12:30", "2-12:30:15"])
def test_times_as_slurm_reads_them(time: str) -> None:
    assert JobOptions.parse([f"time={time}"]).get("time") == time


@pytest.mark.parametrize("memory", ["0", "4096", "64G", "1T"])
def test_memory_as_slurm_reads_it(memory: str) -> None:
    assert JobOptions.parse([f"mem={memory}"]).get("mem") == memory


def test_made_without_parsing_it_is_checked_too() -> None:
    with pytest.raises(UsageError, match="nodes needs"):
        JobOptions(nodes=0)
    with pytest.raises(UsageError, match="is no time"):
        JobOptions(others=(("time", "soon"),))


@given(st.lists(st.tuples(st.sampled_from(["", *KEYS, "x"]), st.text(max_size=12)), max_size=4))
def test_whatever_is_typed_is_refused_or_one_line_each(parts: list[tuple[str, str]]) -> None:
    text = ",".join(f"{key}={value}" if value else key for key, value in parts)
    options, message = JobOptions(), ""
    try:
        options = JobOptions.parse([text])
    except UsageError as error:
        message = str(error)
    assert "\n" not in message
    for directive in options.directives():
        assert directive.isascii()
        assert directive.isprintable()
        assert not set(" \"'#%\\") & set(directive)
