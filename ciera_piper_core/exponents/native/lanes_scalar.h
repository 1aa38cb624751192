/* A group of 64 values without vector registers (see lanes_avx512.h for what a level defines).
 *
 * Loops of a constant length over bytes, which compilers turn into whatever vector instructions every processor
 * of the architecture has; hashes and checksums run in general registers. */
#ifndef CIERA_LANES_H
#define CIERA_LANES_H

#include "mix.h"
#include "word.h"

enum { GROUP = 64, GROUP_WORDS = GROUP / 8 };

#define KERNEL
#define LANES INLINE
#define TABLE planes_scalar

/* Bytes, or in sums one word. */
typedef union {
    uint8_t bytes[GROUP];
    uint64_t words[GROUP_WORDS];
} vec;
typedef struct {
    vec symbols, first;
    uint16_t low[GROUP];
    uint8_t top[GROUP];
    union {
        uint16_t halves[GROUP];
        uint32_t wholes[GROUP];
        uint64_t words[GROUP / 2];
    } raw;
} group;

LANES vec zero(void)
{
    return (vec){{0}};
}

LANES group take(const int type, const uint8_t *values)
{
    group g;
    memcpy(&g.raw, values, GROUP * value_bytes(type));
    for (int k = 0; k < GROUP; k++) {
        uint16_t v = type == TYPE_FP32 ? (uint16_t)(g.raw.wholes[k] >> 16) : g.raw.halves[k];
        if (type == TYPE_FP16) {
            g.symbols.bytes[k] = (uint8_t)(v >> 10 & 31);
            g.first.bytes[k] = (uint8_t)v;
            g.top[k] = (uint8_t)((v >> 13 & 4) | (v >> 8 & 3));
        } else {
            g.symbols.bytes[k] = (uint8_t)(v >> 7);
            g.first.bytes[k] = (uint8_t)((v >> 8 & 0x80) | (v & 0x7F));
        }
    }
    if (type == TYPE_FP32)
        for (int k = 0; k < GROUP; k++)
            g.low[k] = (uint16_t)g.raw.wholes[k];
    return g;
}

LANES void join(const int type, group *g)
{
    for (int k = 0; k < GROUP; k++) {
        uint16_t symbol = g->symbols.bytes[k], first = g->first.bytes[k], v;
        if (type == TYPE_FP16)
            v = (uint16_t)((g->top[k] & 4) << 13 | symbol << 10 | (g->top[k] & 3) << 8 | first);
        else
            v = (uint16_t)((first & 0x80) << 8 | symbol << 7 | (first & 0x7F));
        if (type == TYPE_FP32)
            g->raw.wholes[k] = (uint32_t)v << 16 | g->low[k];
        else
            g->raw.halves[k] = v;
    }
}

LANES void put_values(const int type, const int stream, const group *g, uint8_t *values)
{
    (void)stream;
    memcpy(values, &g->raw, GROUP * value_bytes(type));
}

LANES vec read_bytes(const uint8_t *p)
{
    vec v;
    memcpy(&v, p, GROUP);
    return v;
}

LANES void write_bytes(uint8_t *p, vec v)
{
    memcpy(p, &v, GROUP);
}

LANES vec get_symbols(const int type, const uint8_t *exponents, size_t at)
{
    if (type != TYPE_FP16)
        return read_bytes(exponents + at);
    vec symbols;
    for (size_t j = 0; j < GROUP_WORDS; j++)
        symbols.words[j] = word_get_symbols(type, exponents, at + 8 * j, 8);
    return symbols;
}

LANES void put_symbols(const int type, const int stream, vec symbols, uint8_t *exponents, size_t at)
{
    (void)stream;
    if (type != TYPE_FP16)
        write_bytes(exponents + at, symbols);
    else
        for (size_t j = 0; j < GROUP_WORDS; j++)
            word_put_symbols(type, symbols.words[j], exponents, at + 8 * j, 8);
}

LANES void get_rest(const int type, group *g, const uint8_t *first, const uint8_t *second, size_t at)
{
    g->first = read_bytes(first + at);
    if (type == TYPE_FP16)
        for (size_t j = 0; j < GROUP_WORDS; j++)
            write_word(g->top + 8 * j, unpack_bits(read_word(second + (at / 8 + j) * 3, 3), 3), 8);
    if (type == TYPE_FP32)
        memcpy(g->low, second + at * 2, GROUP * 2);
}

LANES void put_rest(const int type, const int stream, const group *g, uint8_t *first, uint8_t *second, size_t at)
{
    (void)stream;
    write_bytes(first + at, g->first);
    if (type == TYPE_FP16)
        for (size_t j = 0; j < GROUP_WORDS; j++)
            write_word(second + (at / 8 + j) * 3, pack_bits(read_word(g->top + 8 * j, 8), 3), 3);
    if (type == TYPE_FP32)
        memcpy(second + at * 2, g->low, GROUP * 2);
}

LANES void stream_end(const int stream)
{
    (void)stream;
}

LANES vec add_bytes(vec a, vec b)
{
    for (int k = 0; k < GROUP; k++)
        a.bytes[k] = (uint8_t)(a.bytes[k] + b.bytes[k]);
    return a;
}

LANES vec subtract_bytes(vec a, vec b)
{
    for (int k = 0; k < GROUP; k++)
        a.bytes[k] = (uint8_t)(a.bytes[k] - b.bytes[k]);
    return a;
}

LANES vec and_bytes(vec v, uint8_t mask)
{
    for (int k = 0; k < GROUP; k++)
        v.bytes[k] &= mask;
    return v;
}

LANES vec add_difference(vec differences, vec a, vec b)
{
    for (int k = 0; k < GROUP; k++)
        differences.bytes[k] |= a.bytes[k] ^ b.bytes[k];
    return differences;
}

LANES int any(vec v)
{
    uint64_t all = 0;
    for (int j = 0; j < GROUP_WORDS; j++)
        all |= v.words[j];
    return all != 0;
}

LANES vec hash_step(vec sums, vec symbols, const uint64_t *places)
{
    for (int j = 0; j < GROUP_WORDS; j++)
        sums.words[0] += mix(symbols.words[j] + places[j]);
    return sums;
}

LANES void hash_sums(vec a, vec b, uint64_t sums[2])
{
    sums[0] = a.words[0];
    sums[1] = b.words[0];
}

LANES vec check_step(const int type, vec sums, const group *g, const uint64_t *keys)
{
    for (size_t j = 0; j < GROUP_WORDS * value_bytes(type); j++)
        sums.words[0] += check_word(g->raw.words[j], keys[j]);
    return sums;
}

LANES uint64_t check_sum(vec sums)
{
    return sums.words[0];
}

#endif
