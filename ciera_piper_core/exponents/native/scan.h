/* Split, compare and checksum in one pass over the values, with any level's lanes: what a sender does first. */
#ifndef CIERA_SCAN_H
#define CIERA_SCAN_H

#include "checksum.h"
#include "hash.h"
#include "prefetch.h"

/* With exact, compares exponents with the plane `old`, and `new` is not used; else hashes with hashes. */
LANES uint64_t scan(const int type, const int stream, const int exact, const uint8_t *restrict values, size_t n,
                    size_t block, uint64_t first_block, const block_tables *restrict tables,
                    const uint8_t *restrict old, uint8_t *restrict new, uint8_t *restrict first,
                    uint8_t *restrict second, uint8_t *restrict changed)
{
    const size_t width = value_bytes(type);
    uint64_t checksum = 0;
    for (size_t start = 0, number = 0; start < n; start += block, number++) {
        size_t end = n - start < block ? n : start + block, at = start;
        vec differences = no_difference();
        tally sums = no_tally(), a = no_tally(), b = no_tally();
        for (; at + GROUP <= end; at += GROUP) {
            prefetch(values + at * width, GROUP * width);
            group g;
            take(type, values + at * width, &g);
            put_rest(type, stream, &g, first, second, at);
            sums = check_step(type, sums, &g, tables->keys + (at - start) * width / 8);
            if (exact) {
                differences = add_difference(differences, g.symbols, get_symbols(type, old, at));
            } else {
                a = hash_step(a, g.symbols, tables->places[0] + (at - start) / 8);
                b = hash_step(b, g.symbols, tables->places[1] + (at - start) / 8);
            }
        }
        uint64_t sum = check_sum(sums), hashed[2];
        int differs = exact && any(differences);
        if (!exact)
            hash_sums(a, b, hashed);
        for (; at < end; at += 8) {
            size_t count = end - at < 8 ? end - at : 8;
            word_parts w = word_take(type, values + at * width, count);
            word_put_rest(type, &w, first, second, at, count);
            sum += check_tail(type, w.raw, count, tables->keys + (at - start) * width / 8);
            if (exact)
                differs |= w.symbols != word_get_symbols(type, old, at, count);
            else
                hash_word(hashed, w.symbols, (at - start) / 8);
        }
        if (!exact) {
            hash_finish(hashed, end - start);
            differs = memcmp(hashed, old + number * 16, 16) != 0;
            memcpy(new + number * 16, hashed, 16);
        }
        changed[number] = (uint8_t)differs;
        checksum += check_block(sum, first_block + number);
    }
    stream_end(stream);
    return checksum;
}

#endif
