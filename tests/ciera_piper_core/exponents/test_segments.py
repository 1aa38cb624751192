"""Whole shards: in one call or one segment after the other, they make the same payload and refuse the same ones."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ciera_piper_core.allgather.agreement import PayloadShape
from ciera_piper_core.allgather.plan import GatherPlan, Segment
from ciera_piper_core.exponents.coding import CodedDataError
from ciera_piper_core.exponents.kernels import BLOCKS
from ciera_piper_core.exponents.layout import BF16, LAYOUTS, FloatLayout
from ciera_piper_core.exponents.payload import CODINGS, HEADER_BYTES, RECORD_BYTES, SegmentRecord, aligned
from ciera_piper_core.exponents.segment import CodingSettings, Mode, SegmentStateError
from ciera_piper_core.exponents.segments import FOUND, Received, SegmentFaultError, receiver, sender
from ciera_piper_core.exponents.workspace import Workspace
from tests.ciera_piper_core.exponents.backends import build
from tests.ciera_piper_core.exponents.samples import IDS, random_bits, stepped, weights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ciera_piper_core.exponents.backend import Backend

CPU = torch.device("cpu")
WAYS = ("reference", "native-scalar", "native-avx2", "native-avx512", "native-apart")
"""Backends; the last one is native, one segment after the other."""

MIXED = ((700, True), (0, True), (9, False), (3001, True), (0, False), (65, True), (1, True))
"""Values of segments, and whether they are coded."""


def way(name: str) -> Backend:
    return replace(build("native"), whole_shards=False) if name == "native-apart" else build(name)


class Shard:
    """One shard's sender, and the receiver that follows it."""

    def __init__(
        self,
        backend: Backend,
        layout: FloatLayout = BF16,
        mode: str = "auto",
        block: int = 64,
        sizes: Sequence[tuple[int, bool]] = MIXED,
    ) -> None:
        segments, first = [], 0
        for number, (values, coded) in enumerate(sizes):
            segments.append(Segment(f"s{number}", first, values, compressed=coded))
            first += values
        self.values, self.layout = first, layout
        coding = CodingSettings(mode, block)  # type: ignore[arg-type]
        plan = GatherPlan(tuple(segments), layout.dtype, coding)
        shape = PayloadShape.of(plan, lambda n: backend.coder.bound(n, layout.exponent_bits))
        self.places = shape.places
        workspace = Workspace()
        self.sender = sender(self.places, layout, coding, backend, CPU, workspace)
        self.receiver = receiver(self.places, layout, block, backend, CPU, workspace)
        self.payload = torch.zeros(self.places.payload_bytes, dtype=torch.uint8)
        self.out = torch.empty(first, dtype=layout.bits_dtype)

    def refresh(self, values: torch.Tensor) -> None:
        self.sender.refresh(values)
        self.receiver.refresh(values)

    def encode(self, values: torch.Tensor) -> tuple[list[list[int]], bytes]:
        """What was found, and the payload without header."""
        before = values.clone()
        found, variable = self.sender.encode(values, self.payload)
        assert torch.equal(values, before)
        self.variable_bytes = variable
        return found.tolist(), self.payload[HEADER_BYTES : self.places.fixed_bytes + variable].numpy().tobytes()

    def decode(self, payload: torch.Tensor | None = None, cut: int | None = None) -> torch.Tensor:
        payload = self.payload if payload is None else payload
        cut = payload.numel() if cut is None else cut
        received = Received(payload[:cut], payload[cut:].clone())
        self.out.fill_(0x5A)
        self.receiver.decode(self.variable_bytes, received, self.out)
        return self.out


def walk(layout: FloatLayout, values: int, steps: int) -> list[torch.Tensor]:
    """Weights that change little, not at all, and altogether."""
    states = [weights(layout, values, 1)]
    for step in range(steps):
        now = states[-1]
        states.append(
            now.clone() if step % 3 == 1 else stepped(now, layout, 1.0 if step % 4 == 3 else 0.004, seed=step)
        )
    return states


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("mode", get_args(Mode))
@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
def test_every_way_makes_the_same_payload_and_rebuilds_it(layout: FloatLayout, mode: Mode, name: str) -> None:
    used, oracle = Shard(way(name), layout, mode), Shard(way("reference"), layout, mode)
    first, *states = walk(layout, used.values, 7)
    for shard in (used, oracle):
        shard.refresh(first)
    for before, now in pairwise([first, *states]):
        assert used.encode(now) == oracle.encode(now)
        # Cut anywhere in the variable area, as where a payload overflows.
        places = range(used.places.fixed_bytes, used.places.fixed_bytes + used.variable_bytes + 1, 16)
        for cut in {places[0], places[len(places) // 2], places[-1]}:
            used.receiver.refresh(before)
            assert torch.equal(used.decode(cut=cut), now)
        assert torch.equal(oracle.decode(used.payload), now)
        for shard in (used, oracle):
            shard.sender.commit()


@settings(max_examples=25, deadline=None)
@given(
    layout=st.sampled_from(LAYOUTS),
    mode=st.sampled_from(get_args(Mode)),
    block=st.sampled_from(BLOCKS),
    sizes=st.lists(st.tuples(st.integers(0, 1500), st.booleans()), max_size=6),
    rate=st.sampled_from([0.0, 0.002, 0.3, 1.0]),
    seed=st.integers(0, 2**31),
)
def test_they_agree_whatever_the_segments(
    layout: FloatLayout, mode: str, block: int, sizes: list[tuple[int, bool]], rate: float, seed: int
) -> None:
    shards = [Shard(way(name), layout, mode, block, sizes) for name in ("reference", "native")]
    before = random_bits(layout, shards[0].values, seed)
    now = stepped(before, layout, rate, seed)
    made = []
    for shard in shards:
        shard.refresh(before)
        made.append(shard.encode(now))
        assert torch.equal(shard.decode(), now)
        shard.sender.commit()
        # What was committed is the base of both sides.
        again, _ = shard.encode(now)
        assert not any(row[1] for row in again)
        assert torch.equal(shard.decode(), now)
    assert made[0] == made[1]


@pytest.mark.parametrize("name", ["reference", "native"])
@pytest.mark.parametrize("mode", get_args(Mode))
def test_what_is_aborted_never_was(mode: str, name: str) -> None:
    shard = Shard(way(name), mode=mode)
    first, second, third = weights(BF16, shard.values, 1), *(weights(BF16, shard.values, seed) for seed in (2, 3))
    shard.refresh(first)
    expected = shard.encode(second)
    shard.sender.abort()
    shard.encode(third)
    shard.sender.abort()
    found, payload = shard.encode(second)
    assert found == expected[0]
    assert len(payload) == len(expected[1])
    assert torch.equal(shard.decode(), second)


@pytest.mark.parametrize("name", ["reference", "native"])
def test_nothing_is_coded_against_what_is_not_known(name: str) -> None:
    shard = Shard(way(name))
    values = weights(BF16, shard.values)
    shard.variable_bytes = 0
    for act in (lambda: shard.encode(values), shard.sender.commit, shard.decode):
        with pytest.raises(SegmentStateError):
            act()
    shard.refresh(values)
    shard.encode(values)
    with pytest.raises(SegmentStateError, match="neither committed nor aborted"):
        shard.encode(values)
    shard.sender.reset()
    shard.receiver.reset()
    for act in (lambda: shard.encode(values), shard.decode):
        with pytest.raises(SegmentStateError, match="no base"):
            act()


@pytest.mark.parametrize("wrong", ["short", "of floats", "in pieces"])
def test_a_shard_that_is_none_is_refused_before_anything_happens(wrong: str) -> None:
    shard = Shard(way("native"))
    values = weights(BF16, shard.values)
    shard.refresh(values)
    bad = {
        "short": values[:-1],
        "of floats": values.view(torch.bfloat16),
        "in pieces": weights(BF16, 2 * shard.values)[::2],
    }[wrong]
    with pytest.raises(ValueError, match=r"contiguous values of torch\.int16"):
        shard.encode(bad)
    with pytest.raises(ValueError, match=r"bytes, .* may be needed"):
        shard.sender.encode(values, shard.payload[:-1])
    shard.encode(values)
    assert torch.equal(shard.decode(), values)


def test_state_is_the_exponents_or_the_hashes() -> None:
    values = sum(count for count, coded in MIXED if coded)
    planes = sum(aligned(count) for count, coded in MIXED if coded)
    for name in ("reference", "native"):
        shard = Shard(way(name), mode="delta")
        for side in (shard.sender, shard.receiver):
            assert values <= side.state_bytes <= planes + 64 * len(MIXED)


def changed(shard: Shard, at: int, by: int) -> torch.Tensor:
    payload = shard.payload.clone()
    payload[at] ^= by
    return payload


def recorded(shard: Shard, number: int, **fields: Any) -> torch.Tensor:
    """The payload with another record, whose check is right."""
    payload = shard.payload.clone()
    place = slice(HEADER_BYTES + number * RECORD_BYTES, HEADER_BYTES + (number + 1) * RECORD_BYTES)
    record = replace(SegmentRecord.from_bytes(payload[place].numpy().tobytes()), **fields)
    payload[place] = torch.frombuffer(bytearray(record.to_bytes()), dtype=torch.uint8)
    return payload


FAULTS: dict[str, tuple[Any, int | None, str]] = {
    "record": (lambda s: changed(s, HEADER_BYTES + 3, 1), None, "record was changed on the way"),
    "size": (lambda s: recorded(s, 0, variable_bytes=5000), None, "segment 0 claims 5000 coded bytes; 701 are"),
    "total": (lambda s: recorded(s, 0, variable_bytes=0), None, "coded bytes make [0-9]+, the header says"),
    "blocks": (lambda s: recorded(s, 2, changed_blocks=3), 2, "the bitmap marks [0-9]+ blocks, the record 3"),
    "no block": (lambda s: changed(s, s.places.coded[0][0].offset + 1, 128), 0, "marks a block that there is not"),
    "code": (lambda s: changed(s, s.places.fixed_bytes, 255), 0, "coded|are not what|begin with"),
    "values": (lambda s: changed(s, s.places.coded[0][0].offset + 20, 1), 0, "rebuilt values have checksum"),
    "checksum": (lambda s: recorded(s, 3, checksum=7), 3, "checksum [0-9a-f]+, the sender's have 0+7$"),
}
"""By what is wrong: a payload that is, the segment that is named, what is said."""


@pytest.mark.parametrize("name", ["reference", "native"])
@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_is_named_and_leaves_no_base(fault: str, name: str) -> None:
    shard = Shard(way(name))
    first, now = weights(BF16, shard.values), stepped(weights(BF16, shard.values), BF16, 0.05)
    shard.refresh(first)
    shard.encode(now)
    make, segment, said = FAULTS[fault]
    with pytest.raises(CodedDataError) as caught:
        shard.decode(make(shard))
    assert re.search(said, str(caught.value))
    assert getattr(caught.value, "segment", None) == segment
    assert isinstance(caught.value, SegmentFaultError) == (segment is not None)
    with pytest.raises(SegmentStateError):
        shard.decode()
    shard.receiver.refresh(first)
    assert torch.equal(shard.decode(), now)


@pytest.mark.parametrize("seed", range(3))
def test_changed_payloads_are_refused_or_change_nothing(seed: int) -> None:
    """Both ways must say the same of any payload; plain segments have no check, so only coded ones are looked at."""
    chance = random.Random(seed)
    shards = [Shard(way(name), sizes=[(700, True), (3001, True), (65, True)]) for name in ("reference", "native")]
    first = weights(BF16, shards[0].values)
    now = stepped(first, BF16, 0.03, seed)
    for shard in shards:
        shard.refresh(first)
        shard.encode(now)
    whole = shards[0].places.fixed_bytes + shards[0].variable_bytes
    refused = 0
    for _ in range(60):
        payload = shards[0].payload.clone()
        for _ in range(chance.randint(1, 3)):
            payload[chance.randrange(HEADER_BYTES, whole)] ^= 1 << chance.randrange(8)
        verdicts = []
        for shard in shards:
            shard.receiver.refresh(first)
            try:
                assert torch.equal(shard.decode(payload), now)
                verdicts.append((True, None))
            except CodedDataError as error:
                verdicts.append((False, getattr(error, "segment", None)))
        assert verdicts[0] == verdicts[1]
        refused += not verdicts[0][0]
    assert refused > 50


def test_columns_are_those_of_a_record() -> None:
    shard = Shard(way("native"), sizes=[(200, True), (100, False), (64, True)])
    first = weights(BF16, shard.values)
    shard.refresh(first)
    now = first.clone()
    now[:64] = weights(BF16, 64, seed=9)
    found, _ = shard.encode(now)
    assert FOUND == ("coding", "changed_blocks", "symbols", "coded_bytes")
    record = SegmentRecord.from_bytes(shard.payload[HEADER_BYTES : HEADER_BYTES + RECORD_BYTES].numpy().tobytes())
    assert found[0] == [CODINGS.index(record.mode), 1, 64, record.variable_bytes]
    assert found[1] == [CODINGS.index("delta"), 0, 0, 0]
