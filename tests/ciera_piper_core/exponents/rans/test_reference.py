"""The reference coder is the format that rans/__init__.py describes: pinned bytes, sizes near entropy, errors named."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from ciera_piper_core.exponents.coding import CodedDataError
from ciera_piper_core.exponents.rans import stream
from ciera_piper_core.exponents.rans.plan import Kind
from ciera_piper_core.exponents.rans.reference import ReferenceCoder
from tests.ciera_piper_core.exponents.rans.symbol_samples import KINDS, symbols_of_kind
from tests.ciera_piper_core.exponents.samples import entropy_bytes

if TYPE_CHECKING:
    from collections.abc import Hashable

CODER = ReferenceCoder()


def coded(symbols: torch.Tensor, bits: int = 8, coder: ReferenceCoder = CODER, key: Hashable = None) -> torch.Tensor:
    out = torch.zeros(coder.bound(symbols.numel(), bits), dtype=torch.uint8)
    return out[: coder.encode(symbols, bits, out, key)]


def decoded(code: torch.Tensor, n: int, bits: int = 8) -> torch.Tensor:
    symbols = torch.full((n,), 77, dtype=torch.uint8)
    CODER.decode(code, bits, symbols)
    return symbols


def test_a_stream_decodes_by_the_text_alone() -> None:
    """A decoder written from the description, one state after the other, for one chunk and no escapes."""
    symbols = symbols_of_kind("flat", 1001)
    code = coded(symbols).tolist()
    assert code[0] == 2
    entries, at = code[1], 2
    slots = [symbol for pair in range(entries) for symbol in [code[at + 2 * pair]] * code[at + 2 * pair + 1]]
    assert len(slots) == 64
    at += 2 * entries
    size, escaped = (int.from_bytes(bytes(code[at + 4 * i : at + 4 * i + 4]), "little") for i in (0, 1))
    assert escaped == 0
    payload = code[at + 8 :]
    states = [payload[size + 2 * i] | payload[size + 2 * i + 1] << 8 for i in range(8)]
    assert len(payload) == size + 16
    found = []
    bytes_left = payload[:size]
    for first in range(0, 1001, 8):
        step: list[int] = []
        for i in reversed(range(min(8, 1001 - first))):
            symbol = slots[states[i] % 64]
            start, share = slots.index(symbol), slots.count(symbol)
            states[i] = share * (states[i] >> 6) + states[i] % 64 - start
            if states[i] < 256:
                states[i] = states[i] << 8 | bytes_left.pop()
            step.insert(0, symbol)
        found += step
    assert not bytes_left
    assert states == [256] * 8
    assert found == symbols.tolist()


def test_the_bytes_of_a_stream_never_change() -> None:
    """A change here is a new format: it needs a new coder code, since payloads of old versions would decode wrong."""
    digest = hashlib.sha256()
    for n in (1, 40, 3000, 40_000, 2**18 + 1000):
        for kind in ("normal", "differences", "flat", "random"):
            made = np.random.Generator(np.random.PCG64(n)).integers(0, 2**32, n, dtype=np.uint32)
            if kind == "normal":
                made = 120 - np.log2(made & -made.astype(np.int64) | 1 << 31).astype(np.uint32)
            elif kind == "differences":
                made = np.where(made % 211 == 0, made >> 20, 0)
            elif kind == "flat":
                made = (made >> 8) % 12
            symbols = torch.from_numpy((made & 255).astype(np.uint8))
            digest.update(coded(symbols).numpy().tobytes())
            digest.update(coded(symbols & 31, 5).numpy().tobytes())
    assert digest.hexdigest() == "f6b9b9f5cd8fcec834098b3d89cb9e974cf31d756084ecd55cbd9a82199f7958"


@pytest.mark.parametrize("n", range(0, 1101, 25))
def test_every_kind_of_every_length_comes_back(n: int) -> None:
    for kind in ("normal", "differences", "random", "five_bits"):
        bits = 5 if kind == "five_bits" else 8
        symbols = symbols_of_kind(kind, n, seed=n)
        assert torch.equal(decoded(coded(symbols, bits), n, bits), symbols)


@pytest.mark.parametrize(
    "n", [2**15 - 1, 2**15, 2**15 + 65, 2**17 - 1, 2**17, 2**18 - 1, 2**18, 2**18 + 1, 2**18 + 2**15]
)
def test_lengths_around_chunks_and_their_states_come_back(n: int) -> None:
    symbols = symbols_of_kind("normal", n)
    assert torch.equal(decoded(coded(symbols), n), symbols)


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_are_near_entropy(kind: str) -> None:
    """256 states hold 384 bytes more than they say, and there are some of them: allowed for beside 2 %."""
    n = 2**18
    symbols = symbols_of_kind(kind, n)
    code = coded(symbols)
    assert torch.equal(decoded(code, n), symbols)
    assert code.numel() <= 1.02 * entropy_bytes(symbols) + 400
    assert code.numel() <= CODER.bound(n, 8)


def test_small_codes() -> None:
    assert coded(torch.empty(0, dtype=torch.uint8)).numel() == 0
    assert coded(torch.tensor([9], dtype=torch.uint8)).tolist() == [Kind.CONSTANT, 9]
    assert coded(torch.full((10**6,), 200, dtype=torch.uint8)).tolist() == [Kind.CONSTANT, 200]
    assert coded(torch.tensor([9, 8], dtype=torch.uint8)).tolist() == [Kind.RAW, 9, 8]
    assert coded(torch.tensor([1, 31, 2], dtype=torch.uint8), 5).tolist() == [Kind.RAW, 0b11100001, 0b01011]
    assert coded(symbols_of_kind("rare_first", 10**6)).numel() < 64


def test_tables_are_kept_by_key_and_number_of_bits_and_renewed() -> None:
    coder = ReferenceCoder()
    normal = symbols_of_kind("five_bits", 20_000)
    first = coded(normal, 8, coder, "a")
    again = coded(symbols_of_kind("five_bits", 20_000, seed=1), 8, coder, "a")
    table_end = 2 + 2 * int(first[1])
    assert torch.equal(first[:table_end], again[:table_end])
    assert torch.equal(coded(normal, 5, coder, "a"), coded(normal, 5))
    drifted = normal + 40
    assert torch.equal(coded(drifted, 8, coder, "a"), coded(drifted))
    assert not torch.equal(coded(drifted, 8, coder, "a")[:table_end], first[:table_end])


def test_old_keys_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MOST_KEYS", 3)
    coder = ReferenceCoder()
    for key in range(10):
        coded(symbols_of_kind("normal", 200), 8, coder, key)
    assert len(coder._plans) == 3


def test_a_sampled_table_that_misses_a_symbol_is_made_again() -> None:
    """Long streams are counted in pieces; a symbol between them needs the escape, which was left out at first."""
    symbols = symbols_of_kind("two", 2**18 + 1000)
    symbols[20_000] = 250
    code = coded(symbols)
    assert code.numel() < 0.13 * symbols.numel()
    assert torch.equal(decoded(code, symbols.numel()), symbols)


def test_streams_in_streams_end() -> None:
    symbols = torch.zeros(64, dtype=torch.uint8)
    inner = torch.tensor([Kind.RAW, *[0] * 8], dtype=torch.uint8)
    for _ in range(stream.MOST_DEPTH + 1):
        size = int(inner.numel())
        inner = torch.cat([torch.tensor([Kind.SPARSE, 0, size & 255, size >> 8, 0, 0], dtype=torch.uint8), inner])
    with pytest.raises(CodedDataError):
        CODER.decode(inner, 8, symbols)


def test_changed_coded_bytes_are_noticed() -> None:
    """Chance would have to bring every state back to where it began: any byte of a chunk may be changed."""
    n = 5000
    code = coded(symbols_of_kind("normal", n))
    generator = np.random.default_rng(0)
    begin = 2 + 2 * int(code[1]) + 8
    for place in generator.integers(begin, begin + 1500, 60).tolist():
        wrong = code.clone()
        wrong[place] ^= int(generator.integers(1, 256))
        with pytest.raises(CodedDataError):
            decoded(wrong, n)


def test_wrong_arguments_are_named() -> None:
    symbols = symbols_of_kind("normal", 100)
    out = torch.zeros(CODER.bound(100, 8), dtype=torch.uint8)
    with pytest.raises(ValueError, match="symbols of 7 bits"):
        CODER.encode(symbols, 7, out)
    with pytest.raises(ValueError, match="out has 100 bytes; 100 symbols may take 101"):
        CODER.encode(symbols, 8, out[:100])
    with pytest.raises(ValueError, match=r"symbols is torch\.int16"):
        CODER.encode(symbols.to(torch.int16), 8, out)
    with pytest.raises(ValueError, match="contiguous"):
        CODER.encode(symbols[::2], 8, out)
    for wide in (symbols, torch.full((9,), 32, dtype=torch.uint8), torch.tensor([3, 99], dtype=torch.uint8)):
        with pytest.raises(ValueError, match="more than 5 bits"):
            CODER.encode(wide, 5, out)
