/* Symbols of changed blocks out of values, and into an exponent plane, with any level's lanes. */
#ifndef CIERA_COLLECT_H
#define CIERA_COLLECT_H

/* The bits of a symbol. */
LANES uint8_t symbol_mask(const int type)
{
    return type == TYPE_FP16 ? 31 : 255;
}

LANES void collect(const int type, const uint8_t *restrict values, size_t n, const uint8_t *restrict previous,
                   uint8_t *restrict symbols)
{
    const size_t width = value_bytes(type);
    size_t at = 0;
    for (; at + GROUP <= n; at += GROUP) {
        group g;
        take(type, values + at * width, &g);
        vec s = g.symbols;
        if (previous)
            s = and_bytes(subtract_bytes(s, get_symbols(type, previous, at)), symbol_mask(type));
        write_bytes(symbols + at, s);
    }
    for (; at < n; at += 8) {
        size_t count = n - at < 8 ? n - at : 8;
        uint64_t s = word_take(type, values + at * width, count).symbols;
        if (previous)
            s = bytes_minus(s, word_get_symbols(type, previous, at, count)) & EVERY_BYTE(symbol_mask(type));
        write_word(symbols + at, s, count);
    }
}

LANES void apply(const int type, const uint8_t *restrict symbols, size_t n, int delta, uint8_t *restrict exponents)
{
    size_t at = 0;
    for (; at + GROUP <= n; at += GROUP) {
        vec s = read_bytes(symbols + at);
        if (delta)
            s = add_bytes(s, get_symbols(type, exponents, at));
        /* Symbols come from elsewhere: one with too many bits must not spill into its neighbour's. */
        put_symbols(type, 0, and_bytes(s, symbol_mask(type)), exponents, at);
    }
    for (; at < n; at += 8) {
        size_t count = n - at < 8 ? n - at : 8;
        uint64_t s = read_word(symbols + at, count);
        if (delta)
            s = bytes_plus(s, word_get_symbols(type, exponents, at, count));
        word_put_symbols(type, s & EVERY_BYTE(symbol_mask(type)), exponents, at, count);
    }
}

#endif
