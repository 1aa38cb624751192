/* Coded streams of the rANS coder, read. Whatever the bytes hold, nothing outside of the arrays given is touched. */
#include <stdlib.h>
#include <string.h>

#include "rans.h"

static int decode_stream(int isa, const uint8_t *coded, size_t bytes, unsigned symbol_bits, uint8_t *symbols, size_t n,
                         unsigned depth);

static int decode_rans(int isa, const uint8_t *coded, size_t bytes, unsigned symbol_bits, uint8_t *symbols, size_t n,
                       unsigned depth)
{
    size_t chunks = (n + RANS_CHUNK - 1) / RANS_CHUNK, table_bytes = 1 + 2 * (size_t)coded[1];
    if (bytes < 1 + table_bytes || (bytes - 1 - table_bytes) / RANS_DIRECTORY_BYTES < chunks)
        return RANS_WRONG;
    const uint8_t *directory = coded + 1 + table_bytes;
    size_t begin = 1 + table_bytes + RANS_DIRECTORY_BYTES * chunks;
    uint64_t size = 0, escaped = 0; /* at most 2^32 times 2^17 chunks */
    for (size_t chunk = 0; chunk < chunks; ++chunk) {
        size_t left = n - chunk * RANS_CHUNK;
        size += 2 * rans_lanes(left < RANS_CHUNK ? left : RANS_CHUNK);
        size += rans_read32(directory + RANS_DIRECTORY_BYTES * chunk);
        escaped += rans_read32(directory + RANS_DIRECTORY_BYTES * chunk + 4);
    }
    if (size > bytes - begin || escaped > n)
        return RANS_WRONG;
    uint8_t *escapes = malloc(escaped + 2 * RANS_PAD);
    if (!escapes)
        return RANS_NO_MEMORY;
    int failed = decode_stream(isa, coded + begin + size, bytes - begin - size, symbol_bits, escapes + RANS_PAD,
                               escaped, depth + 1);
    if (!failed)
        failed = ciera_rans_decode(isa, coded + 1, table_bytes, symbol_bits, coded + begin, size, begin, directory,
                                   escapes + RANS_PAD, escaped, symbols, n);
    free(escapes);
    return failed;
}

/* How many bits of bytes [0, n) are set; without the processor's instruction, which not all have. */
static size_t set_bits(const uint8_t *bytes, size_t n)
{
    size_t count = 0;
    for (size_t at = 0; at < n; at += 8) {
        uint64_t word = 0;
        memcpy(&word, bytes + at, n - at < 8 ? n - at : 8);
        word -= word >> 1 & 0x5555555555555555u;
        word = (word & 0x3333333333333333u) + (word >> 2 & 0x3333333333333333u);
        word = (word + (word >> 4)) & 0x0f0f0f0f0f0f0f0fu;
        count += word * 0x0101010101010101u >> 56;
    }
    return count;
}

static int decode_sparse(int isa, const uint8_t *coded, size_t bytes, unsigned symbol_bits, uint8_t *symbols, size_t n,
                         unsigned depth)
{
    size_t bits_bytes = (n + 7) / 8;
    if (bytes < RANS_SPARSE_BYTES || coded[1] >> symbol_bits)
        return RANS_WRONG;
    size_t inner = rans_read32(coded + 2);
    if (inner > bytes - RANS_SPARSE_BYTES)
        return RANS_WRONG;
    uint8_t *bits = malloc(bits_bytes), *others = NULL;
    int failed = bits ? decode_stream(isa, coded + RANS_SPARSE_BYTES, inner, 8, bits, bits_bytes, depth + 1)
                      : RANS_NO_MEMORY;
    if (!failed) {
        size_t count = set_bits(bits, bits_bytes);
        /* Unused bits may be set, so there may be more than n. */
        others = count > n ? NULL : malloc(count + RANS_PAD);
        failed = count > n ? RANS_WRONG : others ? 0 : RANS_NO_MEMORY;
        if (!failed)
            failed = decode_stream(isa, coded + RANS_SPARSE_BYTES + inner, bytes - RANS_SPARSE_BYTES - inner,
                                   symbol_bits, others, count, depth + 1);
        if (!failed)
            failed = ciera_rans_merge_sparse(isa, bits, n, coded[1], others, count, symbols);
    }
    free(bits);
    free(others);
    return failed;
}

static int decode_stream(int isa, const uint8_t *coded, size_t bytes, unsigned symbol_bits, uint8_t *symbols, size_t n,
                         unsigned depth)
{
    if (!n)
        return bytes ? RANS_WRONG : 0;
    if (bytes < 2)
        return RANS_WRONG;
    switch (coded[0]) {
    case RANS_KIND_RAW:
        if (bytes != rans_bound(n, symbol_bits))
            return RANS_WRONG;
        if (symbol_bits != 8)
            return ciera_rans_unpack5(coded + 1, n, symbols) ? RANS_WRONG : 0;
        for (size_t at = 0; at < n; ++at)
            symbols[at] = coded[1 + at];
        return 0;
    case RANS_KIND_CONSTANT:
        if (bytes != 2 || coded[1] >> symbol_bits)
            return RANS_WRONG;
        for (size_t at = 0; at < n; ++at)
            symbols[at] = coded[1];
        return 0;
    case RANS_KIND_RANS:
        return depth < RANS_MOST_DEPTH ? decode_rans(isa, coded, bytes, symbol_bits, symbols, n, depth) : RANS_WRONG;
    case RANS_KIND_SPARSE:
        return depth < RANS_MOST_DEPTH ? decode_sparse(isa, coded, bytes, symbol_bits, symbols, n, depth) : RANS_WRONG;
    default:
        return RANS_WRONG;
    }
}

/* Decodes a stream of n symbols. Reads coded [0, bytes), writes symbols [0, n). 0; RANS_WRONG: nobody coded this;
 * RANS_NO_MEMORY. `depth`: streams around this one. */
int ciera_rans_decode_stream(int isa, const uint8_t *coded, size_t bytes, unsigned symbol_bits, uint8_t *symbols,
                             size_t n, unsigned depth)
{
    return decode_stream(isa, coded, bytes, symbol_bits, symbols, n, depth);
}
