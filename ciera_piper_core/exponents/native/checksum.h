/* Planes to values with the checksum of the values from the same pass, with any level's lanes. */
#ifndef CIERA_CHECKSUM_H
#define CIERA_CHECKSUM_H

#include "prefetch.h"

/* What `count` of at most 8 values, of which `raw` has the words, add to the sum of their block. */
LANES uint64_t check_tail(const int type, const uint64_t *raw, size_t count, const uint64_t *restrict keys)
{
    uint64_t sum = 0;
    for (size_t j = 0; j * 8 < count * value_bytes(type); j++)
        sum += check_word(raw[j], keys[j]);
    return sum;
}

/* What block number `number` adds to the checksum. */
LANES uint64_t check_block(uint64_t sum, uint64_t number)
{
    return mix(sum + (number + 1) * GAMMA);
}

LANES uint64_t merge_checked(const int type, const int stream, const uint8_t *restrict exponents,
                             const uint8_t *restrict first, const uint8_t *restrict second, size_t n, size_t block,
                             uint64_t first_block, const block_tables *restrict tables, uint8_t *restrict values)
{
    const size_t width = value_bytes(type);
    uint64_t checksum = 0;
    for (size_t start = 0; start < n; start += block, first_block++) {
        size_t end = n - start < block ? n : start + block, at = start;
        tally sums = no_tally();
        for (; at + GROUP <= end; at += GROUP) {
            prefetch_planes(type, exponents, first, second, at, GROUP);
            group g;
            g.symbols = get_symbols(type, exponents, at);
            get_rest(type, &g, first, second, at);
            join(type, &g);
            put_values(type, stream, &g, values + at * width);
            sums = check_step(type, sums, &g, tables->keys + (at - start) * width / 8);
        }
        uint64_t sum = check_sum(sums);
        for (; at < end; at += 8) {
            size_t count = end - at < 8 ? end - at : 8;
            word_parts w;
            w.symbols = word_get_symbols(type, exponents, at, count);
            word_get_rest(type, &w, first, second, at, count);
            word_join(type, &w);
            memcpy(values + at * width, w.raw, count * width);
            sum += check_tail(type, w.raw, count, tables->keys + (at - start) * width / 8);
        }
        checksum += check_block(sum, first_block);
    }
    stream_end(stream);
    return checksum;
}

#endif
