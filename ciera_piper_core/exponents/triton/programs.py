"""The device code of the triton kernels: one program works on one tile of whole blocks.

These are plain functions in Triton's language. ``loading.py`` turns them into compiled or interpreted
programs, and gives the names that are only declared here; nothing here runs on its own.

A tile is ``TILE`` values, ``TILE // BLOCK`` blocks. It is loaded as one row, so that a thread's loads
and stores are wide, and seen as groups of 8 (a word of symbols, or a group of packed bits) by
``tl.reshape``, which keeps the order: a group's parts stay in one thread.

All places are 64 bit integers: a tensor of more than 2**31 values is nothing special. Sums of 32 bit
integers never wrap (the interpreter takes that for an error); those of 64 bits do, as they should.

``MANTISSA`` and ``EXPONENT`` are the bits of the layout's mantissa and exponent; ``VALUE_BYTES`` a value's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, TypeAlias

    tl: Any = None
    """``triton.language``."""

    tensor: TypeAlias = Any
    constexpr: TypeAlias = int
    """Triton's types of these names: its compiler looks annotations up."""

    added: Any = None
    """The sum as a reduction's operator: the one that compiler and interpreter both know to be fast."""


def scan(
    values: tensor,
    exponents: tensor,
    rest: tensor,
    previous: tensor,
    old: tensor,
    hashes: tensor,
    changed: tensor,
    keys: tensor,
    sums: tensor,
    n: tensor,
    VALUE_BYTES: constexpr,
    MANTISSA: constexpr,
    EXPONENT: constexpr,
    BLOCK: constexpr,
    TILE: constexpr,
) -> None:
    """Everything that starts from values, in one pass over them; whichever of the outputs is not None.

    Args:
        values: the values' integers, n of them.
        exponents, rest: the planes, written.
        previous: an exponent plane; ``changed`` says which blocks differ from it.
        old: hashes; ``changed`` says which blocks' hashes differ from them.
        hashes: 2 words a block, written.
        keys: of the checksum's words. sums: what each tile adds to the checksum, written.
    """
    tile = tl.program_id(0).to(tl.int64)
    index = tile * TILE + tl.arange(0, TILE)
    inside = index < n
    bits = _unsigned(tl.load(values + index, mask=inside, other=0), VALUE_BYTES)
    symbols = (bits >> MANTISSA) & ((1 << EXPONENT) - 1)
    group = tile * (TILE // 8) + tl.arange(0, TILE // 8)
    block = tile * (TILE // BLOCK) + tl.arange(0, TILE // BLOCK)
    real = block * BLOCK < n
    if exponents is not None:
        if EXPONENT == 8:
            tl.store(exponents + index, symbols.to(tl.uint8), mask=inside)
        else:
            _store_packed(exponents, _words(symbols, TILE // 8, 8, EXPONENT), group, n, EXPONENT)
    if rest is not None:
        _store_rest(rest, bits, index, group, n, VALUE_BYTES, MANTISSA, TILE)
    if hashes is not None:
        words = _words(symbols, TILE // 8, 8, 8)
        first = _block_hash(words, block, n, 0x243F6A8885A308D3, BLOCK, TILE)
        second = _block_hash(words, block, n, 0x13198A2E03707344, BLOCK, TILE)
        tl.store(hashes + block * 2, first.to(tl.int64, bitcast=True), mask=real)
        tl.store(hashes + block * 2 + 1, second.to(tl.int64, bitcast=True), mask=real)
        if old is not None:
            old_first = tl.load(old + block * 2, mask=real, other=0).to(tl.uint64, bitcast=True)
            old_second = tl.load(old + block * 2 + 1, mask=real, other=0).to(tl.uint64, bitcast=True)
            differs = (first != old_first) | (second != old_second)
            tl.store(changed + block, differs.to(tl.uint8), mask=real)
    if previous is not None:
        different = (symbols != _load_symbols(previous, index, inside, EXPONENT)).to(tl.int32)
        in_block = tl.reduce(tl.reshape(different, (TILE // BLOCK, BLOCK)), 1, added)
        tl.store(changed + block, (in_block > 0).to(tl.uint8), mask=real)
    if sums is not None:
        tl.store(sums + tile, _tile_sum(bits, block, n, keys, VALUE_BYTES, BLOCK, TILE))


def merge(
    exponents: tensor,
    rest: tensor,
    values: tensor,
    keys: tensor,
    sums: tensor,
    n: tensor,
    VALUE_BYTES: constexpr,
    MANTISSA: constexpr,
    EXPONENT: constexpr,
    BLOCK: constexpr,
    TILE: constexpr,
) -> None:
    """Planes to values, and what each tile adds to the checksum of the values unless ``sums`` is None."""
    tile = tl.program_id(0).to(tl.int64)
    index = tile * TILE + tl.arange(0, TILE)
    inside = index < n
    symbols = _load_symbols(exponents, index, inside, EXPONENT)
    first = tl.load(rest + index, mask=inside, other=0).to(tl.uint32)
    if EXPONENT == 5:
        top = _load_packed(rest + n, index, inside, 3)
        bits = ((top >> 2) << 15) | (symbols << 10) | ((top & 3) << 8) | first
    elif VALUE_BYTES == 2:
        bits = ((first & 0x80) << 8) | (symbols << 7) | (first & 0x7F)
    else:
        low = tl.load(rest + n + index * 2, mask=inside, other=0).to(tl.uint32)
        high = tl.load(rest + n + index * 2 + 1, mask=inside, other=0).to(tl.uint32)
        bits = ((first & 0x80) << 24) | (symbols << 23) | ((first & 0x7F) << 16) | (high << 8) | low
    if VALUE_BYTES == 2:
        tl.store(values + index, bits.to(tl.uint16).to(tl.int16, bitcast=True), mask=inside)
    else:
        tl.store(values + index, bits.to(tl.int32, bitcast=True), mask=inside)
    if sums is not None:
        block = tile * (TILE // BLOCK) + tl.arange(0, TILE // BLOCK)
        tl.store(sums + tile, _tile_sum(bits, block, n, keys, VALUE_BYTES, BLOCK, TILE))


def collect(
    values: tensor,
    previous: tensor,
    selected: tensor,
    symbols: tensor,
    n: tensor,
    count: tensor,
    VALUE_BYTES: constexpr,
    MANTISSA: constexpr,
    EXPONENT: constexpr,
    BLOCK: constexpr,
    TILE: constexpr,
) -> None:
    """Symbols of the selected blocks, or their differences to an exponent plane unless ``previous`` is None.

    Args:
        selected: ascending numbers of ``count`` blocks; the k-th one's symbols go to ``symbols[k * BLOCK :]``.
            Only the last block of all can be short, and that one comes last.
    """
    row = tl.program_id(0).to(tl.int64) * (TILE // BLOCK) + tl.arange(0, TILE // BLOCK)
    column = tl.arange(0, BLOCK)
    index = tl.load(selected + row, mask=row < count, other=0)[:, None] * BLOCK + column[None, :]
    inside = (row < count)[:, None] & (index < n)
    bits = _unsigned(tl.load(values + index, mask=inside, other=0), VALUE_BYTES)
    found = (bits >> MANTISSA) & ((1 << EXPONENT) - 1)
    if previous is not None:
        found = (found + (1 << EXPONENT) - _load_symbols(previous, index, inside, EXPONENT)) & ((1 << EXPONENT) - 1)
    tl.store(symbols + row[:, None] * BLOCK + column[None, :], found.to(tl.uint8), mask=inside)


def apply(
    symbols: tensor,
    exponents: tensor,
    selected: tensor,
    n: tensor,
    count: tensor,
    DELTA: constexpr,
    EXPONENT: constexpr,
    BLOCK: constexpr,
    TILE: constexpr,
) -> None:
    """The inverse of ``collect``, into an exponent plane: symbols, or if ``DELTA`` differences to what is there."""
    row = tl.program_id(0).to(tl.int64) * (TILE // BLOCK) + tl.arange(0, TILE // BLOCK)
    column = tl.arange(0, BLOCK)
    block = tl.load(selected + row, mask=row < count, other=0)
    index = block[:, None] * BLOCK + column[None, :]
    inside = (row < count)[:, None] & (index < n)
    update = tl.load(symbols + row[:, None] * BLOCK + column[None, :], mask=inside, other=0).to(tl.uint32)
    if DELTA:
        update = update + _load_symbols(exponents, index, inside, EXPONENT)
    update = update & ((1 << EXPONENT) - 1)
    if EXPONENT == 8:
        tl.store(exponents + index, update.to(tl.uint8), mask=inside)
    else:
        # A block is a whole number of groups, so no byte belongs to two blocks. Within one, a group's bytes
        # are stored only after all 8 of its old symbols were loaded, since the stored word is made of them.
        words = _words(tl.reshape(update, (TILE,)), TILE // 8, 8, EXPONENT)
        group = block[:, None] * (BLOCK // 8) + tl.arange(0, BLOCK // 8)[None, :]
        # Rows beyond the last one write nothing: their groups lie behind the plane's end.
        group = tl.where((row < count)[:, None], group, (n + 7) // 8)
        _store_packed(exponents, words, tl.reshape(group, (TILE // 8,)), n, EXPONENT)


def _unsigned(bits: tensor, VALUE_BYTES: constexpr) -> tensor:
    """Values' integers as uint32, without the sign's extension."""
    if VALUE_BYTES == 2:
        bits = bits.to(tl.uint16, bitcast=True)
    return bits.to(tl.uint32, bitcast=VALUE_BYTES == 4)


def _words(parts: tensor, WORDS: constexpr, PARTS: constexpr, WIDTH: constexpr) -> tensor:
    """Little-endian words, uint64 ``[WORDS]``, of ``[WORDS * PARTS]`` parts of WIDTH bits each."""
    places = (tl.arange(0, PARTS) * WIDTH).to(tl.uint64)
    apart = tl.reshape(parts.to(tl.uint64), (WORDS, PARTS)) << places[None, :]
    return tl.reduce(apart, 1, added)


def _store_packed(plane: tensor, words: tensor, group: tensor, n: tensor, WIDTH: constexpr) -> None:
    """Store groups of 8 parts, WIDTH bytes each, into the packed plane of n parts."""
    place = tl.arange(0, 8)
    at = group[:, None] * WIDTH + place[None, :]
    byte = (words[:, None] >> (place * 8).to(tl.uint64)[None, :]) & 0xFF
    mask = (place < WIDTH)[None, :] & (at < (n * WIDTH + 7) // 8)
    tl.store(plane + at, byte.to(tl.uint8), mask=mask)


def _load_packed(plane: tensor, index: tensor, inside: tensor, WIDTH: constexpr) -> tensor:
    """Parts of WIDTH < 8 bits from a packed plane, uint32; never a byte that holds none of a part's bits."""
    bit = index * WIDTH
    shift = (bit & 7).to(tl.uint32)
    low = tl.load(plane + bit // 8, mask=inside, other=0).to(tl.uint32)
    high = tl.load(plane + bit // 8 + 1, mask=inside & (shift + WIDTH > 8), other=0).to(tl.uint32)
    return ((low | (high << 8)) >> shift) & ((1 << WIDTH) - 1)


def _load_symbols(exponents: tensor, index: tensor, inside: tensor, EXPONENT: constexpr) -> tensor:
    """Symbols from an exponent plane, uint32."""
    if EXPONENT == 8:
        symbols = tl.load(exponents + index, mask=inside, other=0).to(tl.uint32)
    else:
        symbols = _load_packed(exponents, index, inside, EXPONENT)
    return symbols


def _store_rest(
    rest: tensor,
    bits: tensor,
    index: tensor,
    group: tensor,
    n: tensor,
    VALUE_BYTES: constexpr,
    MANTISSA: constexpr,
    TILE: constexpr,
) -> None:
    """Sign and mantissa of a tile's values into their plane."""
    inside = index < n
    if MANTISSA == 10:
        first = bits & 0xFF
        three = ((bits >> 15) << 2) | ((bits >> 8) & 3)
        _store_packed(rest + n, _words(three, TILE // 8, 8, 3), group, n, 3)
    elif VALUE_BYTES == 2:
        first = ((bits >> 8) & 0x80) | (bits & 0x7F)
    else:
        first = ((bits >> 24) & 0x80) | ((bits >> 16) & 0x7F)
        place = tl.arange(0, 2)
        byte = (bits[:, None] >> (place * 8).to(tl.uint32)[None, :]) & 0xFF
        # By bytes: rest + n may be an odd address.
        tl.store(rest + n + index[:, None] * 2 + place[None, :], byte.to(tl.uint8), mask=inside[:, None])
    tl.store(rest + index, first.to(tl.uint8), mask=inside)


def _mix(z: tensor) -> tensor:
    """SplitMix64's finalizer."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


def _block_hash(words: tensor, block: tensor, n: tensor, SEED: constexpr, BLOCK: constexpr, TILE: constexpr) -> tensor:
    """One stream of the block hash, uint64 a block, from the tile's words of 8 symbols."""
    word = tl.arange(0, BLOCK // 8)
    salt = (word.to(tl.uint64) + 1) * 0x9E3779B97F4A7C15 + SEED
    mixed = _mix(tl.reshape(words, (TILE // BLOCK, BLOCK // 8)) + salt[None, :])
    inside = (block * BLOCK)[:, None] + (word * 8)[None, :] < n
    total = tl.reduce(tl.where(inside, mixed, 0), 1, added)
    return _mix(total + tl.minimum(n - block * BLOCK, BLOCK).to(tl.uint64))


def _tile_sum(
    bits: tensor, block: tensor, n: tensor, keys: tensor, VALUE_BYTES: constexpr, BLOCK: constexpr, TILE: constexpr
) -> tensor:
    """What a tile's values add to the checksum, int64."""
    word = tl.arange(0, BLOCK * VALUE_BYTES // 8)
    words = _words(bits, TILE * VALUE_BYTES // 8, 8 // VALUE_BYTES, VALUE_BYTES * 8)
    words = tl.reshape(words, (TILE // BLOCK, BLOCK * VALUE_BYTES // 8))
    keyed = words + tl.load(keys + word).to(tl.uint64, bitcast=True)[None, :]
    inside = (block * BLOCK)[:, None] + (word * (8 // VALUE_BYTES))[None, :] < n
    terms = tl.where(inside, (keyed & 0xFFFFFFFF) * (keyed >> 32) + words, 0)
    sums = tl.reduce(terms, 1, added) + (block + 1).to(tl.uint64) * 0x9E3779B97F4A7C15
    return tl.reduce(tl.where(block * BLOCK < n, _mix(sums), 0), 0, added).to(tl.int64, bitcast=True)
