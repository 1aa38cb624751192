"""Interleaved rANS coding of exponents: the format, its pure reference, and what its coders have in common.

A coded stream of n symbols of b bits (8 or 5) begins with a byte that says what follows:

0. **raw**: the symbols, packed to b bits, as planes are (``layout``).
1. **constant**: one byte, the symbol that all n are.
2. **rANS**: a frequency table, a directory of chunks, the chunks, and the escaped symbols as a stream of their own.
3. **sparse**: one byte, the usual symbol; 4 bytes, the size of the next stream; a stream of ceil(n / 8)
   symbols of 8 bits, in which bit i % 8 of symbol i // 8 is set if symbol i is not the usual one; then
   those that are not, as a stream of b bits. A stream of no symbols takes no bytes.

Numbers are little endian. Streams lie in each other at most ``stream.MOST_DEPTH`` deep.

**Table**: one byte K (1 to 15); K pairs of bytes, a symbol and its slots (at least 1). 64 slots are dealt out in
that order; those that are left belong to the escape, which stands for every symbol that has no entry. Escaped
symbols are collected and coded again, so no symbol is ever without a code, and rare ones lose nothing to the coarse
slots: a symbol has an entry only if at least one in 128 is it.

**Chunks** of 2**18 symbols (the last may be short) are coded alone, with L states: 8 below 2**15 symbols,
64 below 2**17, else 256. A directory entry is two numbers of 4 bytes: the chunk's coded bytes, and its escaped
symbols. A chunk is its coded bytes, then its L states, 2 bytes each.

**States** lie in [2**8, 2**16); all begin at 2**8. Symbol i of a chunk belongs to state i % L. To code a symbol
whose entry has ``share`` slots from ``start``, from the last symbol of the chunk to the first::

    if x >= share << 10:  put out the byte x & 255;  x = x >> 8
    x = (x // share << 6) + start + x % share

The decoder goes forward, takes bytes from the last to the first, and ends with all states at 2**8, all bytes and all
escaped symbols used, or the stream is not what an encoder wrote. To let a processor work on 64 states at once,
the bytes (and the escaped symbols) of one step over all states lie in this order: states 192 to 255, 128 to 191, 64 to
127, 0 to 63, each run upwards. Escaped symbols lie chunk after chunk.

The states are short, bytes are put out often, and slots are few, so that a state, a product and a table fit
words and registers. For exponents of weights that costs 0.02 % (short states) and 0.2 % (few slots) over the entropy,
and the states of a chunk hold some 380 bytes more than they say (0.5 %). Data that is nearly constant, for which 64
slots are too coarse, is sparse: there the bits are coded, eight at a time.

Interleaving is after F. Giesen, "Interleaved entropy coders" (2014); rANS after J. Duda, "Asymmetric numeral
systems" (2009).
"""
