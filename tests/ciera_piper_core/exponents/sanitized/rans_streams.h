/* Symbols of many kinds and what the rANS coder makes of them, for the drivers of its C functions. */
#ifndef RANS_STREAMS_H
#define RANS_STREAMS_H

#include "guarded.h"

#include "rans.h"

enum { MOST_SYMBOLS = (1 << 18) + 40001, MOST_CHUNKS = 2 };
enum data { GAUSSIAN, DIFFERENCES, TWO, RARE_FIRST, FLAT, WIDE, DATA };

/* One coded run of symbols. */
struct stream {
    size_t n, table_bytes, coded_bytes, directory_bytes;
    uint64_t escape_count;
    uint8_t table[RANS_TABLE_BYTES], directory[RANS_DIRECTORY_BYTES * MOST_CHUNKS];
    uint8_t coded[2 * MOST_SYMBOLS + 4096], escapes[MOST_SYMBOLS + RANS_PAD], symbols[MOST_SYMBOLS];
};

static uint8_t drawn_symbol(enum data data, size_t at, uint64_t *seed)
{
    uint64_t random = drawn(seed);
    switch (data) {
    case GAUSSIAN: /* exponents of normal values fall off by a half a step, and have a long tail below */
        return (uint8_t)(124 - (random ? __builtin_ctzll(random) : 64));
    case DIFFERENCES:
        return random % 400 ? 0 : random >> 40 & 1 ? 1 : 255;
    case TWO:
        return random >> 20 & 1 ? 17 : 16;
    case RARE_FIRST:
        return at ? 3 : 200;
    case FLAT:
        return (uint8_t)((random >> 30) % 12);
    default:
        return (uint8_t)(random >> 30);
    }
}

/* Fills `symbols`, and the table: of their own counts, or, where those give none or `foreign`, of other data's. */
static void make_symbols(struct stream *stream, enum data data, size_t n, uint64_t seed, int foreign)
{
    uint64_t counts[256] = {0};
    stream->n = n;
    for (size_t at = 0; at < n; ++at)
        stream->symbols[at] = drawn_symbol(data, at, &seed);
    if (!foreign)
        ciera_rans_count(stream->symbols, n, n, n, counts);
    stream->table_bytes = ciera_rans_build_table(counts, 1, stream->table);
    if (!stream->table_bytes) {
        for (size_t at = 0; at < 5000; ++at)
            ++counts[drawn_symbol(GAUSSIAN, at, &seed)];
        stream->table_bytes = ciera_rans_build_table(counts, 1, stream->table);
    }
    REQUIRE(stream->table_bytes > 0 && stream->table_bytes <= RANS_TABLE_BYTES, "%zu bytes of table",
            stream->table_bytes);
    stream->directory_bytes = (n + RANS_CHUNK - 1) / RANS_CHUNK * RANS_DIRECTORY_BYTES;
}

#endif
