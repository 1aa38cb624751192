"""The C coder writes the reference's bytes at every level and on threads, touches nothing else, survives any bytes."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ciera_piper_core.exponents.coding import CodedDataError
from ciera_piper_core.exponents.native.library import available_isas
from ciera_piper_core.exponents.native.rans import NativeCoder, NativePrimitives
from ciera_piper_core.exponents.rans.plan import Kind
from ciera_piper_core.exponents.rans.reference import ReferenceCoder, ReferencePrimitives
from tests.ciera_piper_core.exponents.native.guarded import Guarded
from tests.ciera_piper_core.exponents.rans.symbol_samples import KINDS, symbols_of_kind
from tests.ciera_piper_core.exponents.samples import entropy_bytes

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ciera_piper_core.exponents.rans.stream import StreamCoder

ISAS = available_isas()
REFERENCE, PRIMITIVES = ReferenceCoder(), ReferencePrimitives()

pytestmark = pytest.mark.skipif(not ISAS, reason="the native kernels were not built")
each_isa = pytest.mark.parametrize("isa", ISAS)
each_kind = pytest.mark.parametrize("kind", KINDS)


def coded(coder: StreamCoder, symbols: torch.Tensor, bits: int = 8, key: Hashable = None) -> torch.Tensor:
    out = torch.zeros(coder.bound(symbols.numel(), bits), dtype=torch.uint8)
    return out[: coder.encode(symbols, bits, out, key)].clone()


@cache
def reference_code(kind: str, n: int, bits: int = 8) -> torch.Tensor:
    """The reference's bytes of the symbols of this kind, their low bits."""
    return coded(REFERENCE, symbols_of_kind(kind, n) & (2**bits - 1), bits)


def decoded(coder: StreamCoder, code: torch.Tensor, n: int, bits: int = 8) -> torch.Tensor:
    symbols = torch.full((n,), 77, dtype=torch.uint8)
    coder.decode(code, bits, symbols)
    return symbols


@each_isa
@each_kind
def test_the_bytes_are_the_references(isa: str, kind: str) -> None:
    coder = NativeCoder(isa)
    for n in (1, 9, 100, 1000, 2**15 + 63, 2**17 + 255, 2**18 + 2**15 + 1):
        symbols = symbols_of_kind(kind, n)
        code = coded(coder, symbols)
        assert torch.equal(code, reference_code(kind, n)), n
        assert torch.equal(decoded(coder, code, n), symbols), n
        if n < 2**16:
            assert torch.equal(coded(coder, symbols & 31, 5), reference_code(kind, n, 5)), n


@each_isa
def test_every_short_length_comes_back_and_the_reference_reads_it(isa: str) -> None:
    coder = NativeCoder(isa)
    for n in range(1101):
        for kind in ("normal", "differences", "five_bits"):
            symbols = symbols_of_kind(kind, 1100)[:n]
            bits = 5 if kind == "five_bits" else 8
            code = coded(coder, symbols, bits)
            assert torch.equal(decoded(coder, code, n, bits), symbols)
            if n % 100 == 1:
                assert torch.equal(decoded(REFERENCE, code, n, bits), symbols)


@each_isa
@pytest.mark.parametrize("lanes", [64, 256])
def test_every_remainder_of_a_step_comes_back(isa: str, lanes: int) -> None:
    coder = NativeCoder(isa)
    first = 2**15 if lanes == 64 else 2**17
    symbols = symbols_of_kind("normal", first + lanes)
    for rest in range(0, lanes, 1 if lanes == 64 else 7):
        part = symbols[: first + rest]
        assert torch.equal(decoded(coder, coded(coder, part), part.numel()), part)


@each_isa
@each_kind
def test_threads_write_the_same_bytes(isa: str, kind: str) -> None:
    one, many = NativeCoder(isa), NativeCoder(isa, threads=3)
    for n in (2**18, 2**18 + 1, 4 * 2**18 + 12_345):
        symbols = symbols_of_kind(kind, n)
        code = coded(one, symbols)
        assert torch.equal(coded(many, symbols), code)
        assert torch.equal(decoded(many, code, n), symbols)
        if code[0] in (Kind.RANS, Kind.SPARSE):
            for wrong in (code[:-1], torch.cat([code, code[:1]]), code[: code.numel() // 2]):
                with pytest.raises(CodedDataError):
                    decoded(many, wrong, n)


@each_isa
def test_kept_tables_are_the_references(isa: str) -> None:
    """What is kept and when it is renewed decides about bytes, so both must decide alike."""
    native, shared, reference = NativeCoder(isa), NativeCoder(isa, threads=2), ReferenceCoder()
    sequence = ["normal", "normal", "steps", "two", "two", "differences", "differences", "random", "flat", "normal"]
    for step, kind in enumerate(sequence):
        n = 270_000 if step in (0, 4, 6) else 3000 + step
        symbols = symbols_of_kind(kind, n, seed=step)
        if kind == "two" and step % 2:
            symbols[7] = 200
        expected = coded(reference, symbols, key="k")
        assert torch.equal(coded(native, symbols, key="k"), expected), step
        assert torch.equal(coded(shared, symbols, key="k"), expected), step
        assert native._plans == reference._plans == shared._plans


@each_isa
@pytest.mark.parametrize("offset", [0, 1, 63])
def test_nothing_else_is_touched(isa: str, offset: int) -> None:
    coder = NativeCoder(isa)
    for kind in ("normal", "differences", "wide", "random"):
        for n in (1, 70, 4099, 2**15 + 77, 2**17 + 300):
            symbols = Guarded(torch.uint8, n, offset, symbols_of_kind(kind, n))
            out = Guarded(torch.uint8, coder.bound(n, 8), offset)
            size = coder.encode(symbols.tensor, 8, out.tensor)
            code = Guarded(torch.uint8, size, offset, out.tensor[:size])
            back = Guarded(torch.uint8, n, offset)
            coder.decode(code.tensor, 8, back.tensor)
            assert torch.equal(back.tensor, symbols.tensor)
            for buffer in (symbols, out, code, back):
                buffer.check()


@each_isa
@each_kind
def test_changed_and_cut_streams_do_no_harm(isa: str, kind: str) -> None:
    """Long enough for the vector loops: an error, or symbols (where a literal was changed); never anything else."""
    coder = NativeCoder(isa)
    generator = np.random.default_rng(5)
    for n in (3000, 2**15 + 100, 2**17 + 50):
        symbols = symbols_of_kind(kind, n)
        code = coded(coder, symbols)
        for trial in range(25):
            wrong = code.clone()
            # Half of the changes are where sizes, tables and directories are.
            most = code.numel() if trial % 2 else min(60, code.numel())
            for place in generator.integers(0, most, 1 + trial % 3):
                wrong[place] ^= int(generator.integers(1, 256))
            if trial % 5 == 0:
                wrong = wrong[: int(generator.integers(0, code.numel()))]
            given_, back = Guarded(torch.uint8, wrong.numel(), 1, wrong), Guarded(torch.uint8, n, 1)
            expected = _outcome(REFERENCE, wrong, n) if n < 2**15 else None
            try:
                coder.decode(given_.tensor, 8, back.tensor)
            except CodedDataError:
                assert expected is None or n >= 2**15
            else:
                assert n >= 2**15 or (expected is not None and torch.equal(expected, back.tensor))
            given_.check()
            back.check()


def _outcome(coder: StreamCoder, code: torch.Tensor, n: int) -> torch.Tensor | None:
    try:
        return decoded(coder, code, n)
    except CodedDataError:
        return None


@each_isa
@settings(max_examples=80, deadline=None)
@given(data=st.binary(min_size=0, max_size=300), n=st.integers(1, 400), bits=st.sampled_from([5, 8]))
def test_any_bytes_decode_as_the_reference_decodes_them(isa: str, data: bytes, n: int, bits: int) -> None:
    code = torch.tensor([data[0] % 5 if data else 0, *data[1:]], dtype=torch.uint8)
    expected, found = [], []
    for coder, outcome in ((REFERENCE, expected), (NativeCoder(isa), found)):
        try:
            outcome.append(decoded(coder, code, n, bits).tolist())
        except CodedDataError:
            outcome.append([])
    assert expected == found


@each_isa
@settings(max_examples=30, deadline=None)
@given(
    shares=st.lists(st.integers(0, 1000), min_size=1, max_size=40),
    first=st.integers(0, 255),
    n=st.integers(0, 3000),
    seed=st.integers(0, 1000),
)
def test_any_distribution_has_the_references_bytes(isa: str, shares: list[int], first: int, n: int, seed: int) -> None:
    weights = torch.tensor(shares, dtype=torch.float) ** 3 + 1e-6
    drawn = torch.multinomial(weights, max(n, 1), replacement=True, generator=torch.Generator().manual_seed(seed))
    symbols = (drawn[:n] * 3 + first).to(torch.uint8)
    code = coded(NativeCoder(isa), symbols)
    assert torch.equal(code, coded(REFERENCE, symbols))
    assert torch.equal(decoded(NativeCoder(isa), code, n), symbols)


@settings(max_examples=40, deadline=None)
@given(
    counted=st.dictionaries(st.integers(0, 255), st.integers(1, 2**40), max_size=60),
    other=st.dictionaries(st.integers(0, 255), st.integers(1, 2**40), max_size=60),
    any_symbol=st.booleans(),
)
def test_tables_and_costs_are_the_references(counted: dict[int, int], other: dict[int, int], any_symbol: bool) -> None:
    native = NativePrimitives(ISAS[0], 1)
    counts, others = np.zeros(256, np.uint64), np.zeros(256, np.uint64)
    counts[list(counted)] = list(counted.values())
    others[list(other)] = list(other.values())
    table = native.build_table(counts, any_symbol)
    assert table == PRIMITIVES.build_table(counts, any_symbol)
    if table:
        assert native.cost(counts, table) == PRIMITIVES.cost(counts, table)
        assert native.cost(others, table) == PRIMITIVES.cost(others, table)


@pytest.mark.parametrize(("piece", "stride"), [(1, 1), (100, 100), (7, 100), (4096, 30011), (64, 63)])
def test_counts_are_the_references(piece: int, stride: int) -> None:
    for n in (0, 1, 7, 8, 99, 70_001):
        symbols = symbols_of_kind("random", n).numpy()
        found = NativePrimitives(ISAS[0], 1).count(symbols, piece, stride)
        assert found.sum() == sum(min(piece, stride, n - at) for at in range(0, n, stride))
        if n:
            assert (found == PRIMITIVES.count(symbols, piece, stride)).all()


def test_no_bytes_are_no_table() -> None:
    """Found by the fuzzer: a table of no bytes was read as one, with whatever lay on the stack."""
    symbols, directory = np.zeros(1, np.uint8), np.zeros((1, 2), np.uint32)
    stream, escapes = np.full(16, 1, np.uint8), np.zeros(512, np.uint8)
    assert not NativePrimitives(ISAS[0], 1).decode_chunks(b"", 8, stream, 0, directory, escapes, symbols)


@each_isa
def test_sizes_are_near_entropy(isa: str) -> None:
    """A histogram that is off decodes right and compresses badly: the size tells."""
    symbols = symbols_of_kind("normal", 2**22)
    assert coded(NativeCoder(isa), symbols).numel() <= 1.01 * entropy_bytes(symbols)
    assert coded(NativeCoder(isa), symbols, key="k").numel() <= 1.01 * entropy_bytes(symbols)
    differences = symbols_of_kind("differences", 2**22)
    assert coded(NativeCoder(isa), differences).numel() <= min(0.015 * 2**22, 1.02 * entropy_bytes(differences))


def test_wide_symbols_of_five_bits_are_an_error() -> None:
    for symbols in (torch.full((40,), 32), torch.arange(100), symbols_of_kind("differences", 10_000)):
        with pytest.raises(ValueError, match="more than 5 bits"):
            coded(NativeCoder(), symbols.to(torch.uint8), 5)


def test_unknown_levels_and_no_threads_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown instruction level"):
        NativeCoder("sse")
    with pytest.raises(ValueError, match="at least 1"):
        NativeCoder(threads=0)
