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

typedef uint64_t tally;

typedef union {
    uint8_t bytes[GROUP];
    uint64_t words[GROUP_WORDS];
} vec;

/* Sixteen bits a value. */
typedef union {
    uint16_t halves[GROUP];
    uint64_t words[GROUP / 4];
} wide;

typedef struct {
    vec symbols, first, top;
    wide low;
    union {
        wide halves;
        uint32_t wholes[GROUP];
        uint64_t words[GROUP / 2];
    } raw;
} group;

#define EVERY_HALF(half) (UINT64_C(0x0001000100010001) * (half))

/* The low byte of each. */
LANES vec narrow(wide w)
{
    vec v;
    for (int k = 0; k < GROUP; k++)
        v.bytes[k] = (uint8_t)w.halves[k];
    return v;
}

LANES wide widen(vec v)
{
    wide w;
    for (int k = 0; k < GROUP; k++)
        w.halves[k] = v.bytes[k];
    return w;
}

/* Whole packed words, from and to registers: through memory, a load would wait for stores of parts of it. */
LANES uint64_t read_3(const uint8_t *p)
{
    uint16_t low;
    memcpy(&low, p, 2);
    return low | (uint64_t)p[2] << 16;
}

LANES uint64_t read_5(const uint8_t *p)
{
    uint32_t low;
    memcpy(&low, p, 4);
    return low | (uint64_t)p[4] << 32;
}

LANES void write_3(uint8_t *p, uint64_t word)
{
    uint16_t low = (uint16_t)word;
    memcpy(p, &low, 2);
    p[2] = (uint8_t)(word >> 16);
}

LANES void write_5(uint8_t *p, uint64_t word)
{
    uint32_t low = (uint32_t)word;
    memcpy(p, &low, 4);
    p[4] = (uint8_t)(word >> 32);
}

LANES tally no_tally(void)
{
    return 0;
}

LANES vec no_difference(void)
{
    return (vec){{0}};
}

LANES void take(const int type, const uint8_t *values, group *g)
{
    wide upper, part;
    memcpy(&g->raw, values, GROUP * value_bytes(type));
    if (type == TYPE_FP32)
        for (int k = 0; k < GROUP; k++) {
            upper.halves[k] = (uint16_t)(g->raw.wholes[k] >> 16);
            g->low.halves[k] = (uint16_t)g->raw.wholes[k];
        }
    else
        upper = g->raw.halves;
    /* On words, since in C a shift of 16 bits is one of 32; what a shift brings in from a neighbour is masked. */
    for (int j = 0; j < GROUP / 4; j++)
        part.words[j] = type == TYPE_FP16 ? upper.words[j] >> 10 & EVERY_HALF(31)
                                          : upper.words[j] >> 7 & EVERY_HALF(255);
    g->symbols = narrow(part);
    if (type == TYPE_FP16) {
        g->first = narrow(upper);
        for (int j = 0; j < GROUP / 4; j++)
            part.words[j] = (upper.words[j] >> 13 & EVERY_HALF(4)) | (upper.words[j] >> 8 & EVERY_HALF(3));
        g->top = narrow(part);
    } else {
        for (int j = 0; j < GROUP / 4; j++)
            part.words[j] = (upper.words[j] >> 8 & EVERY_HALF(0x80)) | (upper.words[j] & EVERY_HALF(0x7F));
        g->first = narrow(part);
    }
}

LANES void join(const int type, group *g)
{
    wide symbols = widen(g->symbols), first = widen(g->first), top, upper;
    if (type == TYPE_FP16) {
        top = widen(g->top);
        for (int j = 0; j < GROUP / 4; j++)
            upper.words[j] = (top.words[j] & EVERY_HALF(4)) << 13 | symbols.words[j] << 10 |
                             (top.words[j] & EVERY_HALF(3)) << 8 | first.words[j];
    } else {
        for (int j = 0; j < GROUP / 4; j++)
            upper.words[j] = (first.words[j] & EVERY_HALF(0x80)) << 8 | symbols.words[j] << 7 |
                             (first.words[j] & EVERY_HALF(0x7F));
    }
    if (type == TYPE_FP32)
        for (int k = 0; k < GROUP; k++)
            g->raw.wholes[k] = (uint32_t)upper.halves[k] << 16 | g->low.halves[k];
    else
        g->raw.halves = upper;
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
        symbols.words[j] = unpack_bits(read_5(exponents + (at / 8 + j) * 5), 5);
    return symbols;
}

LANES void put_symbols(const int type, const int stream, vec symbols, uint8_t *exponents, size_t at)
{
    (void)stream;
    if (type != TYPE_FP16)
        write_bytes(exponents + at, symbols);
    else
        for (size_t j = 0; j < GROUP_WORDS; j++)
            write_5(exponents + (at / 8 + j) * 5, pack_bits(symbols.words[j], 5));
}

LANES void get_rest(const int type, group *g, const uint8_t *first, const uint8_t *second, size_t at)
{
    g->first = read_bytes(first + at);
    if (type == TYPE_FP16)
        for (size_t j = 0; j < GROUP_WORDS; j++)
            g->top.words[j] = unpack_bits(read_3(second + (at / 8 + j) * 3), 3);
    if (type == TYPE_FP32)
        memcpy(&g->low, second + at * 2, GROUP * 2);
}

LANES void put_rest(const int type, const int stream, const group *g, uint8_t *first, uint8_t *second, size_t at)
{
    (void)stream;
    write_bytes(first + at, g->first);
    if (type == TYPE_FP16)
        for (size_t j = 0; j < GROUP_WORDS; j++)
            write_3(second + (at / 8 + j) * 3, pack_bits(g->top.words[j], 3));
    if (type == TYPE_FP32)
        memcpy(second + at * 2, &g->low, GROUP * 2);
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

LANES tally hash_step(tally sum, vec symbols, const uint64_t *places)
{
    for (int j = 0; j < GROUP_WORDS; j++)
        sum += mix(symbols.words[j] + places[j]);
    return sum;
}

LANES void hash_sums(tally a, tally b, uint64_t sums[2])
{
    sums[0] = a;
    sums[1] = b;
}

LANES tally check_step(const int type, tally sum, const group *g, const uint64_t *keys)
{
    for (size_t j = 0; j < GROUP_WORDS * value_bytes(type); j++)
        sum += check_word(g->raw.words[j], keys[j]);
    return sum;
}

LANES uint64_t check_sum(tally sum)
{
    return sum;
}

#endif
