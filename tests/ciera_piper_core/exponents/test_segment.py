"""Segments: what is decoded is what was encoded, or an error; state advances on commit and never before."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ciera_piper_core.exponents.backend import Backend, default_backend
from ciera_piper_core.exponents.coding import CodedDataError
from ciera_piper_core.exponents.kernels import BLOCKS
from ciera_piper_core.exponents.layout import BF16, LAYOUTS, FloatLayout
from ciera_piper_core.exponents.payload import SegmentRecord
from ciera_piper_core.exponents.segment import CodingSettings, Mode, SegmentDecoder, SegmentEncoder, SegmentStateError
from ciera_piper_core.exponents.workspace import Workspace
from tests.ciera_piper_core.exponents.samples import IDS, every_pattern, random_bits, stepped, weights

if TYPE_CHECKING:
    from collections.abc import Callable

    from ciera_piper_core.exponents.coding import Coder

MODES: tuple[Mode, ...] = get_args(Mode)
NOTHING_CHANGED = SegmentRecord("block", 0, 0, 0, 0)
LENGTHS = (0, 1, 63, 64, 511, 512, 513, 1024, 1537, 5000)


class Wire:
    """An encoder, a decoder and what lies between them, with guard bytes behind each area."""

    def __init__(
        self,
        values: int,
        layout: FloatLayout = BF16,
        mode: Mode = "auto",
        block: int = 512,
        used: Backend | None = None,
    ) -> None:
        self.layout = layout
        backend = used or default_backend()
        self.encoder = SegmentEncoder(values, layout, CodingSettings(mode, block), backend)
        self.decoder = SegmentDecoder(values, layout, block, backend)
        self.fixed = torch.full((self.encoder.fixed_bytes + 64,), 165, dtype=torch.uint8)
        self.variable = torch.full((self.encoder.variable_bound + 64,), 165, dtype=torch.uint8)

    def refresh(self, bits: torch.Tensor) -> None:
        self.encoder.refresh(bits)
        self.decoder.refresh(bits)

    def encode(self, bits: torch.Tensor) -> SegmentRecord:
        before = bits.clone()
        record = self.encoder.encode(bits, self.fixed[:-64], self.variable[:-64])
        assert torch.equal(bits, before)
        assert (self.fixed[-64:] == 165).all()
        assert (self.variable[-64:] == 165).all()
        assert record.variable_bytes <= self.encoder.variable_bound
        return record

    def decode(self, record: SegmentRecord) -> torch.Tensor:
        out = torch.full((self.encoder.values + 64,), 85, dtype=self.layout.bits_dtype)
        self.decoder.decode(record, self.fixed[:-64], self.variable[: record.variable_bytes], out[:-64])
        assert (out[-64:] == 85).all()
        return out[:-64]

    def pass_on(self, bits: torch.Tensor) -> SegmentRecord:
        """Encode, decode, compare, commit."""
        record = self.encode(bits)
        assert torch.equal(self.decode(record), bits)
        self.encoder.commit()
        return record


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("values", LENGTHS)
def test_a_walk_of_values_arrives_bit_for_bit(layout: FloatLayout, mode: Mode, values: int) -> None:
    wire = Wire(values, layout, mode)
    bits = weights(layout, values)
    wire.refresh(bits)
    for step, rate in enumerate((0.0, 0.004, 0.2, 1.0, 0.0)):
        bits = stepped(bits, layout, rate, seed=step)
        record = wire.pass_on(bits)
        if rate == 0:
            assert (record.changed_blocks, record.symbols, record.variable_bytes) == (0, 0, 0)


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("block", BLOCKS)
def test_every_pattern_arrives_bit_for_bit(layout: FloatLayout, mode: Mode, block: int) -> None:
    patterns = every_pattern(layout)
    wire = Wire(patterns.numel(), layout, mode, block)
    wire.refresh(patterns)
    wire.pass_on(patterns.flip(0))
    wire.pass_on(patterns.roll(12345))
    wire.pass_on(patterns)


@pytest.mark.parametrize("mode", MODES)
def test_signs_and_mantissas_of_unchanged_blocks_arrive(mode: Mode) -> None:
    """-0.0 and 0.0 have the same exponent; so have all NaNs and infinities."""
    wire = Wire(512, BF16, mode)
    zeros = torch.zeros(512, dtype=torch.int16)
    wire.refresh(zeros)
    assert wire.pass_on(torch.full_like(zeros, -(2**15))).changed_blocks == 0
    infinite = torch.full_like(zeros, 0x7F80)
    assert wire.pass_on(infinite).changed_blocks == 1
    assert wire.pass_on(infinite | torch.arange(512).to(torch.int16) % 128).changed_blocks == 0


@pytest.mark.parametrize("mode", MODES)
def test_the_same_values_give_the_same_bytes_whatever_the_buffers_held(mode: Mode) -> None:
    bits = weights(BF16, 3000)
    found = []
    for filling in (0, 255):
        wire = Wire(3000, BF16, mode, 64)
        wire.refresh(bits)
        wire.fixed.fill_(filling)
        wire.variable.fill_(filling)
        wire.fixed[-64:] = wire.variable[-64:] = 165
        record = wire.encode(stepped(bits, BF16, 0.01))
        found.append((record, wire.fixed[:-64].tolist(), wire.variable[: record.variable_bytes].tolist()))
    assert found[0] == found[1]


@pytest.mark.parametrize("mode", MODES)
def test_an_aborted_encode_leaves_the_base_where_it_was(mode: Mode) -> None:
    """Thrice what a failed gather does: the retry is coded against what the receiver has."""
    wire = Wire(2000, BF16, mode, 64)
    bits = weights(BF16, 2000)
    wire.refresh(bits)
    for step in range(3):
        lost = stepped(bits, BF16, 0.5, seed=step)
        wire.encode(lost)
        wire.encoder.abort()
    wire.pass_on(stepped(bits, BF16, 0.01))


@pytest.mark.parametrize("mode", MODES)
def test_a_receiver_that_missed_a_committed_gather_never_hands_out_wrong_values(mode: Mode) -> None:
    wire = Wire(2000, BF16, mode, 64)
    bits = weights(BF16, 2000)
    wire.refresh(bits)
    bits = stepped(bits, BF16, 0.2)
    wire.encode(bits)
    wire.encoder.commit()
    with pytest.raises(CodedDataError, match="checksum"):
        wire.decode(wire.encode(bits))
    # Its cache is of no use until it is refreshed.
    with pytest.raises(SegmentStateError, match="no base to decode against"):
        wire.decode(NOTHING_CHANGED)
    wire.refresh(bits)
    wire.pass_on(stepped(bits, BF16, 0.2, seed=1))


def test_acts_out_of_order_are_refused() -> None:
    wire = Wire(100)
    bits = weights(BF16, 100)
    with pytest.raises(SegmentStateError, match="no base to code against"):
        wire.encode(bits)
    with pytest.raises(SegmentStateError, match="no base to decode against"):
        wire.decode(NOTHING_CHANGED)
    wire.refresh(bits)
    with pytest.raises(SegmentStateError, match="commit: nothing was encoded"):
        wire.encoder.commit()
    wire.encoder.abort()
    wire.encode(bits)
    with pytest.raises(SegmentStateError, match="neither committed nor aborted"):
        wire.encode(bits)
    wire.encoder.commit()
    with pytest.raises(SegmentStateError, match="commit: nothing was encoded"):
        wire.encoder.commit()
    wire.encode(bits)
    wire.encoder.reset()
    wire.decoder.reset()
    assert not wire.encoder.valid
    assert not wire.decoder.valid
    with pytest.raises(SegmentStateError, match="no base"):
        wire.encode(bits)
    wire.refresh(bits)
    wire.pass_on(bits)


def test_wrong_tensors_are_refused_and_change_nothing() -> None:
    wire = Wire(1000)
    bits = weights(BF16, 1000)
    wire.refresh(bits)
    with pytest.raises(ValueError, match="999 values, where the segment has 1000"):
        wire.encode(bits[1:])
    with pytest.raises(ValueError, match="fixed area has"):
        wire.encoder.encode(bits, wire.fixed, wire.variable)
    with pytest.raises(ValueError, match="variable area has 10 bytes"):
        wire.encoder.encode(bits, wire.fixed[:-64], wire.variable[:10])
    with pytest.raises(ValueError, match=r"torch\.float32"):
        wire.encoder.encode(torch.zeros(1000), wire.fixed[:-64], wire.variable)
    record = wire.encode(stepped(bits, BF16, 0.1))
    with pytest.raises(ValueError, match="fixed area has"):
        wire.decoder.decode(record, wire.fixed, wire.variable, torch.empty(1000, dtype=torch.bfloat16))
    assert torch.equal(wire.decode(record), stepped(bits, BF16, 0.1))


@pytest.mark.parametrize("mode", ["block", "delta"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"checksum": 1}, "checksum"),
        ({"changed_blocks": 1}, "the bitmap marks"),
        ({"symbols": 3}, "counts 3 symbols"),
        ({"variable_bytes": 2**30}, "announced"),
    ],
)
def test_a_record_that_does_not_fit_its_areas_is_an_error(mode: Mode, change: dict[str, int], message: str) -> None:
    wire = Wire(1000, BF16, mode, 64)
    bits = weights(BF16, 1000)
    wire.refresh(bits)
    record = wire.encode(stepped(bits, BF16, 0.5))
    out = torch.empty(1000, dtype=torch.int16)
    with pytest.raises(CodedDataError, match=message):
        wire.decoder.decode(replace(record, **change), wire.fixed[:-64], wire.variable, out)
    assert not wire.decoder.valid


def test_a_record_of_the_other_mode_is_an_error() -> None:
    wire = Wire(1000, BF16, "delta", 64)
    bits = weights(BF16, 1000)
    wire.refresh(bits)
    record = wire.encode(stepped(bits, BF16, 0.5))
    with pytest.raises(CodedDataError, match="checksum"):
        wire.decode(replace(record, mode="block"))


def test_coded_bytes_for_no_changed_block_are_an_error() -> None:
    wire = Wire(1000)
    bits = weights(BF16, 1000)
    wire.refresh(bits)
    record = replace(wire.encode(bits), variable_bytes=4)
    with pytest.raises(CodedDataError, match="4 coded bytes for no changed block"):
        wire.decode(record)


@settings(max_examples=150, deadline=None)
@given(
    layout=st.sampled_from(LAYOUTS),
    mode=st.sampled_from(MODES),
    place=st.floats(0, 1, exclude_max=True),
    flip=st.integers(1, 255),
    in_fixed=st.booleans(),
    cut=st.integers(0, 40),
    seed=st.integers(0, 1000),
)
def test_changed_or_cut_payloads_are_an_error_or_the_right_values(
    layout: FloatLayout, mode: Mode, place: float, flip: int, in_fixed: bool, cut: int, seed: int
) -> None:
    """Padding and, in coders, unused bits may change without harm; nothing else may."""
    wire = Wire(1500, layout, mode, 64)
    bits = weights(layout, 1500, seed)
    wire.refresh(bits)
    bits = stepped(bits, layout, 0.02, seed)
    record = wire.encode(bits)
    size = wire.encoder.fixed_bytes if in_fixed else record.variable_bytes
    area = wire.fixed if in_fixed else wire.variable
    if size:
        area[int(place * size)] ^= flip
    if cut and not in_fixed:
        record = replace(record, variable_bytes=max(record.variable_bytes - cut, 0))
    try:
        decoded = wire.decode(record)
    except CodedDataError:
        assert not wire.decoder.valid
    else:
        assert torch.equal(decoded, bits)
        assert wire.decoder.valid


ACTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["pass", "fail before commit", "lose the payload", "corrupt", "reset sender", "reset receiver"]
        ),
        st.sampled_from([0.0, 0.001, 0.05, 1.0]),
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(layout=st.sampled_from(LAYOUTS), mode=st.sampled_from(MODES), values=st.integers(0, 800), acts=ACTS)
def test_whatever_fails_in_between_values_are_never_wrong(
    layout: FloatLayout, mode: Mode, values: int, acts: list[tuple[str, float]]
) -> None:
    """A gather protocol in small: where sender and receiver do not share a base, plain values follow."""
    wire = Wire(values, layout, mode, 64)
    bits = random_bits(layout, values)
    for step, (act, rate) in enumerate(acts):
        bits = stepped(bits, layout, rate, seed=step)
        if not (wire.encoder.valid and wire.decoder.valid):
            wire.refresh(bits)
            continue
        record = wire.encode(bits)
        if act == "lose the payload":
            wire.encoder.abort()
        elif act == "fail before commit":
            # The receiver has it, the sender does not know: it must not trust either base again.
            assert torch.equal(wire.decode(record), bits)
            wire.encoder.reset()
        elif act == "corrupt":
            with pytest.raises(CodedDataError):
                wire.decode(replace(record, checksum=record.checksum ^ 1))
            wire.encoder.abort()
        else:
            assert torch.equal(wire.decode(record), bits)
            wire.encoder.commit()
            if act == "reset sender":
                wire.encoder.reset()
            if act == "reset receiver":
                wire.decoder.reset()


class BrokenCoder:
    """A coder that fails when told to."""

    def __init__(self, inner: Coder) -> None:
        self.inner = inner
        self.name, self.code = "broken", 200
        self.fails = False

    def bound(self, symbols: int, symbol_bits: int) -> int:
        return self.inner.bound(symbols, symbol_bits)

    def encode(self, symbols: torch.Tensor, symbol_bits: int, out: torch.Tensor, table_key: object = None) -> int:
        if self.fails:
            raise MemoryError("no room")
        return self.inner.encode(symbols, symbol_bits, out, table_key)

    def decode(self, coded: torch.Tensor, symbol_bits: int, symbols: torch.Tensor) -> None:
        self.inner.decode(coded, symbol_bits, symbols)


@pytest.mark.parametrize("mode", MODES)
def test_an_encoder_that_fails_half_way_can_be_used_again(mode: Mode) -> None:
    usual = default_backend()
    coder = BrokenCoder(usual.coder)
    wire = Wire(2000, BF16, mode, 64, Backend("broken", usual.kernels, coder))
    bits = weights(BF16, 2000)
    wire.refresh(bits)
    coder.fails = True
    with pytest.raises(MemoryError):
        wire.encode(stepped(bits, BF16, 0.3))
    coder.fails = False
    wire.pass_on(stepped(bits, BF16, 0.3, seed=2))


def test_state_is_what_the_specification_says() -> None:
    blocks = 10
    for layout in LAYOUTS:
        hashes = SegmentEncoder(512 * blocks, layout, CodingSettings("block"), default_backend())
        assert hashes.state_bytes == 2 * 16 * blocks
        for mode in ("delta", "auto"):
            kept = SegmentEncoder(512 * blocks, layout, CodingSettings(mode), default_backend())
            assert kept.state_bytes == layout.exponent_bytes(512 * blocks)
        decoder = SegmentDecoder(512 * blocks, layout, 512, default_backend())
        assert decoder.state_bytes == layout.exponent_bytes(512 * blocks)


@pytest.mark.parametrize("mode", MODES)
def test_scratch_goes_back_to_a_shared_workspace(mode: Mode) -> None:
    workspace = Workspace()
    encoders = [SegmentEncoder(4096, BF16, CodingSettings(mode), default_backend(), "cpu", workspace) for _ in range(3)]
    fixed = torch.empty(encoders[0].fixed_bytes, dtype=torch.uint8)
    variable = torch.empty(encoders[0].variable_bound, dtype=torch.uint8)
    bits = weights(BF16, 4096)
    kept = []
    for step in range(6):
        for encoder in encoders:
            encoder.refresh(bits)
            encoder.encode(stepped(bits, BF16, 0.5, seed=step), fixed, variable)
        for encoder in encoders:
            encoder.commit() if step % 2 else encoder.abort()
        kept.append(workspace.free_bytes)
    assert kept[-1] == kept[1] <= 3 * (4096 + 4096) + 4096


@pytest.mark.parametrize("build", [lambda: CodingSettings("best"), lambda: CodingSettings("auto", 100)])  # type: ignore[arg-type]
def test_settings_refuse_what_there_is_not(build: Callable[[], CodingSettings]) -> None:
    with pytest.raises(ValueError, match=r"unknown coding mode 'best'|blocks of 100 values"):
        build()
