"""The coder through nvCOMP: on a stand-in everywhere, on the real one where there is a GPU."""

from __future__ import annotations

import math
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ciera_piper_core.exponents import nvcomp
from ciera_piper_core.exponents.coding import CodedDataError
from ciera_piper_core.exponents.nvcomp import ANS, CONSTANT, RAW, SPARSE, NvcompCoder
from tests.ciera_piper_core.exponents import nvcomp_stand_in

if TYPE_CHECKING:
    from collections.abc import Callable

GUARD = 0xA5


def coder() -> NvcompCoder:
    return NvcompCoder(nvcomp_stand_in)


def encoded(symbols: torch.Tensor, symbol_bits: int, by: NvcompCoder | None = None) -> torch.Tensor:
    """Coded bytes, checked: the input is unchanged, nothing is written behind them, the bound holds."""
    by = by or coder()
    before, bound = symbols.clone(), by.bound(symbols.numel(), symbol_bits)
    room = torch.full((bound + 32,), GUARD, dtype=torch.uint8, device=symbols.device)
    size = by.encode(symbols, symbol_bits, room[:bound])
    assert torch.equal(symbols, before)
    assert size <= bound
    assert bool((room[size:] == GUARD).all())
    return room[:size].clone()


def decoded(coded: torch.Tensor, symbol_bits: int, n: int, by: NvcompCoder | None = None) -> torch.Tensor:
    """Symbols, checked: nothing around them is written."""
    room = torch.full((n + 32,), GUARD, dtype=torch.uint8, device=coded.device)
    try:
        (by or coder()).decode(coded, symbol_bits, room[16 : 16 + n])
    finally:
        assert bool((room[:16] == GUARD).all())
        assert bool((room[16 + n :] == GUARD).all())
    return room[16 : 16 + n]


def gaussian(n: int, symbol_bits: int) -> torch.Tensor:
    values = torch.randn(n, generator=torch.Generator().manual_seed(n)) * 0.02
    if symbol_bits == 8:
        return ((values.bfloat16().view(torch.int16) >> 7) & 0xFF).to(torch.uint8)
    return ((values.half().view(torch.int16) >> 10) & 31).to(torch.uint8)


def differences(n: int, rate: float, symbol_bits: int = 8) -> torch.Tensor:
    """Nearly all 0, else 1 or -1, as between two steps of training."""
    generator = torch.Generator().manual_seed(7)
    changed = torch.rand(n, generator=generator) < rate
    up = torch.rand(n, generator=generator) < 0.5
    return torch.where(changed, torch.where(up, 1, 2**symbol_bits - 1), 0).to(torch.uint8)


@pytest.mark.parametrize("symbol_bits", [8, 5])
def test_every_length(symbol_bits: int) -> None:
    by = coder()
    data = gaussian(300, symbol_bits)
    for n in [*range(300), 1100, 27266]:
        symbols = data[:n] if n <= 300 else gaussian(n, symbol_bits)
        coded = encoded(symbols, symbol_bits, by)
        assert torch.equal(decoded(coded, symbol_bits, n, by), symbols), n


@pytest.mark.parametrize("symbol_bits", [8, 5])
@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (lambda bits: torch.full((27266,), 2**bits - 1, dtype=torch.uint8), CONSTANT),
        (lambda bits: torch.zeros(64, dtype=torch.uint8), CONSTANT),
        (lambda bits: torch.zeros(63, dtype=torch.uint8), RAW),
        (lambda bits: gaussian(100_000, bits), ANS),
        (lambda bits: torch.arange(100_000).remainder(2**bits).to(torch.uint8), RAW),
        (lambda bits: torch.randint(2**bits, (99_999,), generator=torch.Generator().manual_seed(1)).byte(), RAW),
        (lambda bits: differences(100_000, 0.005, bits), SPARSE),
        (lambda bits: torch.cat([torch.ones(1), torch.zeros(1_000_000)]).byte(), SPARSE),
        (lambda bits: torch.cat([torch.zeros(1_000_000), torch.ones(1)]).byte(), SPARSE),
    ],
    ids=["same", "same64", "tiny", "gaussian", "ramp", "random", "differences", "rare first", "rare last"],
)
def test_each_kind_of_data_takes_its_kind(made: Callable[[int], torch.Tensor], kind: int, symbol_bits: int) -> None:
    symbols = made(symbol_bits)
    coded = encoded(symbols, symbol_bits)
    assert coded[0] == kind
    assert torch.equal(decoded(coded, symbol_bits, symbols.numel()), symbols)


def test_coded_sizes() -> None:
    assert encoded(torch.full((2**20,), 77, dtype=torch.uint8), 8).numel() == 2
    # The target of differences at 0.5 % is 0.015 bytes a symbol.
    assert encoded(differences(2**20, 0.005), 8).numel() <= 0.013 * 2**20
    assert encoded(differences(2**20, 0.0004), 8).numel() <= 0.0015 * 2**20
    # A symbol of a fair die costs what it costs, and a byte for all of them.
    assert encoded(torch.randint(256, (2**16,), generator=torch.Generator().manual_seed(0)).byte(), 8).numel() == (
        2**16 + 1
    )


def test_gaps_of_every_size() -> None:
    for width, gaps in (
        (1, [0, 1, 253, 254, 255, 256, 509, 510, 511, 0, 0, 765]),
        (2, [5000, 65534, 0, 65535, 65536, 1, 131069, 131070, 131071, 4000, 3000, 0]),
    ):
        parts = [torch.cat([torch.full((gap,), 9), torch.tensor([17 + i])]) for i, gap in enumerate(gaps)]
        symbols = torch.cat(parts)
        for tail in (0, 1, 254, 255, 256):
            check_gaps(torch.cat([symbols, torch.full((tail,), 9)]).byte(), width)


def check_gaps(symbols: torch.Tensor, width: int) -> None:
    coded = encoded(symbols, 8)
    assert (coded[0], coded[2]) == (SPARSE, width)
    assert torch.equal(decoded(coded, 8, symbols.numel()), symbols)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), symbol_bits=st.sampled_from([8, 5]))
def test_any_symbols(data: st.DataObject, symbol_bits: int) -> None:
    alphabet = st.lists(st.integers(0, 2**symbol_bits - 1), min_size=1, max_size=6)
    letters = data.draw(alphabet)
    drawn = data.draw(st.lists(st.sampled_from(letters), max_size=700))
    symbols = torch.tensor(drawn, dtype=torch.uint8)
    coded = encoded(symbols, symbol_bits)
    assert torch.equal(decoded(coded, symbol_bits, len(drawn)), symbols)


def test_views_at_any_offset() -> None:
    data = gaussian(70_000, 8)
    for offset in (0, 1, 3, 8, 15):
        symbols = data[offset : offset + 65_000]
        coded = encoded(symbols, 8)
        shifted = torch.empty(coded.numel() + offset, dtype=torch.uint8)[offset:].copy_(coded)
        assert torch.equal(decoded(shifted, 8, symbols.numel()), symbols)


def test_what_is_no_flat_bytes_is_refused() -> None:
    symbols = torch.zeros(100, dtype=torch.uint8)
    with pytest.raises(ValueError, match="symbols: flat contiguous uint8"):
        coder().encode(symbols[::2], 8, torch.zeros(200, dtype=torch.uint8))
    with pytest.raises(ValueError, match="100 bytes; 101 may be needed"):
        coder().encode(symbols, 8, torch.zeros(100, dtype=torch.uint8))


SAMPLES = {
    "raw": lambda: torch.arange(256).byte(),
    "constant": lambda: torch.full((500,), 3).byte(),
    "ans": lambda: gaussian(5000, 8),
    "sparse": lambda: differences(5000, 0.01),
}


@pytest.mark.parametrize("sample", SAMPLES)
def test_cut_or_lengthened_bytes_are_refused(sample: str) -> None:
    symbols = SAMPLES[sample]()
    coded, n = encoded(symbols, 8), symbols.numel()
    sizes = {*range(min(40, coded.numel())), *range(0, coded.numel(), 97), coded.numel() - 5, coded.numel() - 1}
    for size in sizes - {-3}:
        # nvCOMP's last bytes may be undefined ones that nobody reads.
        if coded[0] == ANS and size >= coded.numel() - 4:
            continue
        with pytest.raises(CodedDataError):
            decoded(coded[:size], 8, n)
    if coded[0] != ANS:
        with pytest.raises(CodedDataError):
            decoded(torch.cat([coded, coded[:1]]), 8, n)


@pytest.mark.parametrize("sample", SAMPLES)
def test_bytes_of_another_number_of_symbols_are_refused(sample: str) -> None:
    symbols = SAMPLES[sample]()
    coded, n = encoded(symbols, 8), symbols.numel()
    # One symbol is any number of times itself, and a tail of common symbols costs nothing: as said in coding.py,
    # the number of symbols is not part of the coded bytes.
    if sample in ("raw", "ans"):
        for other in (1, n - 1, n + 1, 2 * n):
            with pytest.raises(CodedDataError):
                decoded(coded, 8, other)
    with pytest.raises(CodedDataError):
        decoded(coded, 8, 0)
    with pytest.raises(CodedDataError):
        decoded(coded[:0], 8, n)


@settings(max_examples=300, deadline=None)
@given(sample=st.sampled_from(sorted(SAMPLES)), place=st.integers(0, 2**16), byte=st.integers(0, 255))
def test_changed_bytes_end_in_symbols_or_an_error(sample: str, place: int, byte: int) -> None:
    symbols = SAMPLES[sample]()
    coded = encoded(symbols, 8)
    coded[place % min(coded.numel(), 600)] = byte
    try:
        decoded(coded, 8, symbols.numel())
    except CodedDataError:
        return


@settings(max_examples=200, deadline=None)
@given(head=st.sampled_from(range(6)), body=st.binary(max_size=80), n=st.integers(0, 300))
def test_noise_ends_in_symbols_or_an_error(head: int, body: bytes, n: int) -> None:
    try:
        found = decoded(torch.tensor([head, *body], dtype=torch.uint8), 5, n)
    except CodedDataError:
        return
    assert bool((found < 32).all())


def test_a_size_that_lies_is_no_allocation() -> None:
    coded = encoded(gaussian(5000, 8), 8)
    assert coded[0] == ANS
    coded[20:28] = 255
    with pytest.raises(CodedDataError, match="hold 18446744073709551615 symbols, where 5000 are expected"):
        decoded(coded, 8, 5000)


def test_each_thread_has_its_own_codec() -> None:
    by = coder()
    symbols = gaussian(20_000, 8)

    def round_trip(_: int) -> bool:
        return torch.equal(decoded(encoded(symbols, 8, by), 8, symbols.numel(), by), symbols)

    before = nvcomp_stand_in.Codec.built
    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(round_trip, range(12)))
    assert nvcomp_stand_in.Codec.built - before <= 3


def test_without_nvcomp_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvidia.nvcomp", None)
    with pytest.raises(ImportError, match=r"pip install 'ciera-piper-bench\[gpu\]'"):
        NvcompCoder()


def test_a_codec_that_cannot_be_built_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_codec(**_options: object) -> None:
        raise RuntimeError("CUDA driver version is insufficient")

    monkeypatch.setattr(nvcomp_stand_in, "Codec", no_codec)
    with pytest.raises(nvcomp.NvcompUnavailableError, match="no codec here: CUDA driver version is insufficient"):
        coder()


def test_a_library_that_loses_symbols_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(_self: object, array: nvcomp_stand_in.Array, data_type: str = "") -> nvcomp_stand_in.Array:
        return nvcomp_stand_in.Array(torch.zeros(nvcomp.CHECKED, dtype=torch.int8))

    monkeypatch.setattr(nvcomp_stand_in.Codec, "decode", wrong)
    with pytest.raises(nvcomp.NvcompUnavailableError, match="does not work here: it does not give back what it coded"):
        coder()


def test_a_library_of_another_interface_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(nvcomp_stand_in.Codec, "get_uncomp_buffer_size")
    with pytest.raises(nvcomp.NvcompUnavailableError, match=r"get_uncomp_buffer_size'; known to: 6\.0"):
        coder()


def test_the_real_library_takes_the_same_options() -> None:
    """Without a GPU, nvCOMP still tells an option that it does not know from a device that it does not find."""
    library = pytest.importorskip("nvidia.nvcomp", reason="nvidia-nvcomp-cu13 is not installed")
    with pytest.raises(ValueError, match="Unsupported argument"):
        library.Codec(algorithm="ANS", nonsense=1)
    for name in ("encode", "decode", "get_uncomp_buffer_size"):
        assert callable(getattr(library.Codec, name))
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="CUDA"):
            library.Codec(algorithm="ANS", data_type="|u1", device_id=0, cuda_stream=1)
        with pytest.raises(nvcomp.NvcompUnavailableError, match="no codec here: CUDA"):
            NvcompCoder()


@pytest.mark.gpu
@pytest.mark.parametrize("symbol_bits", [8, 5])
def test_on_a_gpu(symbol_bits: int) -> None:
    try:
        by = NvcompCoder()
    except (ImportError, RuntimeError) as error:
        pytest.skip(str(error))
    random = torch.randint(2**symbol_bits, (99_999,), generator=torch.Generator().manual_seed(1)).byte()
    for data in (
        gaussian(2**22 + 3, symbol_bits),
        gaussian(65536, symbol_bits),
        gaussian(1000, symbol_bits),
        differences(2**20, 0.005, symbol_bits),
        differences(2**20, 0.1, symbol_bits),
        random,
    ):
        symbols = data.cuda()
        coded = encoded(symbols, symbol_bits, by)
        assert torch.equal(decoded(coded, symbol_bits, symbols.numel(), by), symbols)
        counts = torch.bincount(data).double()
        share = counts[counts > 0] / data.numel()
        entropy_bytes = -float((share * share.log2()).sum()) * data.numel() / 8
        if coded[0] == ANS and data.numel() > 65536:
            assert coded.numel() <= 1.05 * entropy_bytes + data.numel() / 16
        assert math.isfinite(entropy_bytes)
    ans = encoded(gaussian(2**20, symbol_bits).cuda(), symbol_bits, by)
    assert ans[0] == ANS
    for size in (HEADER_AND_LITTLE, ans.numel() // 2):
        with pytest.raises(CodedDataError):
            decoded(ans[:size].clone(), symbol_bits, 2**20, by)


HEADER_AND_LITTLE = nvcomp.HEADER + 40
