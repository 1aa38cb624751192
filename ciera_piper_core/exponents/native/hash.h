/* Block hashes straight from values, with any level's lanes. */
#ifndef CIERA_HASH_H
#define CIERA_HASH_H

#include "prefetch.h"

/* Adds word `index` of a block to its two sums. */
LANES void hash_word(uint64_t sums[2], uint64_t symbols, size_t index)
{
    sums[0] += mix(symbols + SEED_0 + (index + 1) * GAMMA);
    sums[1] += mix(symbols + SEED_1 + (index + 1) * GAMMA);
}

/* The hash of a block of `count` values from its sums. */
LANES void hash_finish(uint64_t sums[2], size_t count)
{
    sums[0] = mix(sums[0] + count);
    sums[1] = mix(sums[1] + count);
}

LANES void hash(const int type, const uint8_t *restrict values, size_t n, size_t block,
                const block_tables *restrict tables, uint8_t *restrict hashes)
{
    const size_t width = value_bytes(type);
    for (size_t start = 0; start < n; start += block, hashes += 16) {
        size_t end = n - start < block ? n : start + block, at = start;
        tally a = no_tally(), b = no_tally();
        for (; at + GROUP <= end; at += GROUP) {
            prefetch(values + at * width, GROUP * width);
            group g;
            take(type, values + at * width, &g);
            a = hash_step(a, g.symbols, tables->places[0] + (at - start) / 8);
            b = hash_step(b, g.symbols, tables->places[1] + (at - start) / 8);
        }
        uint64_t sums[2];
        hash_sums(a, b, sums);
        for (; at < end; at += 8) {
            word_parts w = word_take(type, values + at * width, end - at < 8 ? end - at : 8);
            hash_word(sums, w.symbols, (at - start) / 8);
        }
        hash_finish(sums, end - start);
        memcpy(hashes, sums, 16);
    }
}

#endif
