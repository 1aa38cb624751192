/* Values to planes and back, with any level's lanes (planes_*.c include those first). */
#ifndef CIERA_SPLIT_H
#define CIERA_SPLIT_H

#include "prefetch.h"

LANES void split(const int type, const int stream, const uint8_t *restrict values, size_t n,
                 uint8_t *restrict exponents, uint8_t *restrict first, uint8_t *restrict second)
{
    const size_t width = value_bytes(type);
    size_t at = 0;
    for (; at + GROUP <= n; at += GROUP) {
        prefetch(values + at * width, GROUP * width);
        group g;
        take(type, values + at * width, &g);
        put_symbols(type, stream, g.symbols, exponents, at);
        put_rest(type, stream, &g, first, second, at);
    }
    for (; at < n; at += 8) {
        size_t count = n - at < 8 ? n - at : 8;
        word_parts w = word_take(type, values + at * width, count);
        word_put_symbols(type, w.symbols, exponents, at, count);
        word_put_rest(type, &w, first, second, at, count);
    }
    stream_end(stream);
}

LANES void merge(const int type, const int stream, const uint8_t *restrict exponents, const uint8_t *restrict first,
                 const uint8_t *restrict second, size_t n, uint8_t *restrict values)
{
    const size_t width = value_bytes(type);
    size_t at = 0;
    for (; at + GROUP <= n; at += GROUP) {
        prefetch_planes(type, exponents, first, second, at, GROUP);
        group g;
        g.symbols = get_symbols(type, exponents, at);
        get_rest(type, &g, first, second, at);
        join(type, &g);
        put_values(type, stream, &g, values + at * width);
    }
    for (; at < n; at += 8) {
        size_t count = n - at < 8 ? n - at : 8;
        word_parts w;
        w.symbols = word_get_symbols(type, exponents, at, count);
        word_get_rest(type, &w, first, second, at, count);
        word_join(type, &w);
        memcpy(values + at * width, w.raw, count * width);
    }
    stream_end(stream);
}

#endif
