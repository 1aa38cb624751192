/* A group of 32 values in AVX2 registers (see lanes_avx512.h for what a level defines). */
#ifndef CIERA_LANES_H
#define CIERA_LANES_H

#include <immintrin.h>

#include "isa.h"
#include "mix.h"
#include "word.h"

enum { GROUP = 32 };

#define KERNEL TARGET_AVX2
#define LANES TARGET_AVX2 INLINE
#define TABLE planes_avx2

typedef __m256i vec;
typedef struct {
    vec symbols, first, second[2], raw[4];
} group;
typedef vec tally;

LANES tally no_tally(void)
{
    return _mm256_setzero_si256();
}

LANES vec no_difference(void)
{
    return no_tally();
}

LANES vec read_bytes(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

LANES void write_bytes(uint8_t *p, vec v)
{
    _mm256_storeu_si256((__m256i *)p, v);
}

LANES void put_bytes(const int stream, uint8_t *p, vec v)
{
    if (!stream || ((uintptr_t)p & 15)) {
        write_bytes(p, v);
    } else if (((uintptr_t)p & 31) == 0) {
        _mm256_stream_si256((__m256i *)p, v);
    } else {
        _mm_stream_si128((__m128i *)p, _mm256_castsi256_si128(v));
        _mm_stream_si128((__m128i *)(p + 16), _mm256_extracti128_si256(v, 1));
    }
}

LANES void stream_end(const int stream)
{
    if (stream)
        _mm_sfence();
}

LANES vec and_bytes(vec v, uint8_t mask)
{
    return _mm256_and_si256(v, _mm256_set1_epi8((char)mask));
}

/* Quarters 0, 2, 1, 3: mends what packing, and prepares what unpacking does in each half of a register. */
LANES vec swap_middle(vec v)
{
    return _mm256_permute4x64_epi64(v, 0xD8);
}

/* Bits of a where mask, a constant byte, has ones, else of b. */
LANES vec choose(uint8_t mask, vec a, vec b)
{
    return _mm256_or_si256(and_bytes(a, mask), and_bytes(b, (uint8_t)~mask));
}

/* Bytes of `width` bits to width bytes in each 8. */
LANES vec pack_lanes(vec x, const int width)
{
    x = _mm256_maddubs_epi16(x, _mm256_set1_epi16((short)(1 | 1 << (8 + width))));
    x = _mm256_madd_epi16(x, _mm256_set1_epi32(1 | 1 << (16 + 2 * width)));
    vec high = _mm256_slli_epi64(_mm256_srli_epi64(x, 32), 4 * width);
    return _mm256_or_si256(_mm256_and_si256(x, _mm256_set1_epi64x(0xFFFFFFFF)), high);
}

/* The inverse: a bit string of 8 * width bits in each 8 bytes; higher bits may hold anything. */
LANES vec unpack_lanes(vec x, const int width)
{
    vec quads = _mm256_set1_epi64x((1LL << 4 * width) - 1);
    x = _mm256_or_si256(_mm256_and_si256(x, quads),
                        _mm256_slli_epi64(_mm256_and_si256(_mm256_srli_epi64(x, 4 * width), quads), 32));
    vec pairs = _mm256_set1_epi32((1 << 2 * width) - 1);
    x = _mm256_or_si256(_mm256_and_si256(x, pairs),
                        _mm256_slli_epi32(_mm256_and_si256(_mm256_srli_epi32(x, 2 * width), pairs), 16));
    vec ones = _mm256_set1_epi16((short)((1 << width) - 1));
    return _mm256_or_si256(_mm256_and_si256(x, ones),
                           _mm256_slli_epi16(_mm256_and_si256(_mm256_srli_epi16(x, width), ones), 8));
}

LANES void take(const int type, const uint8_t *values, group *g)
{
    for (int k = 0; k < (int)value_bytes(type); k++)
        g->raw[k] = read_bytes(values + 32 * k);
    vec a = g->raw[0], b = g->raw[1];
    if (type == TYPE_FP32) {
        vec half = _mm256_set1_epi32(0xFFFF);
        for (int k = 0; k < 2; k++)
            g->second[k] = swap_middle(_mm256_packus_epi32(_mm256_and_si256(g->raw[2 * k], half),
                                                          _mm256_and_si256(g->raw[2 * k + 1], half)));
        a = swap_middle(_mm256_packus_epi32(_mm256_srli_epi32(g->raw[0], 16), _mm256_srli_epi32(g->raw[1], 16)));
        b = swap_middle(_mm256_packus_epi32(_mm256_srli_epi32(g->raw[2], 16), _mm256_srli_epi32(g->raw[3], 16)));
    }
    vec byte = _mm256_set1_epi16(0xFF);
    vec low = swap_middle(_mm256_packus_epi16(_mm256_and_si256(a, byte), _mm256_and_si256(b, byte)));
    vec high = swap_middle(_mm256_packus_epi16(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8)));
    if (type == TYPE_FP16) {
        g->symbols = and_bytes(_mm256_srli_epi16(high, 2), 31);
        g->first = low;
        g->second[0] = choose(3, high, and_bytes(_mm256_srli_epi16(high, 5), 4));
    } else {
        g->symbols = choose(1, _mm256_srli_epi16(low, 7), _mm256_add_epi8(high, high));
        g->first = choose(0x80, high, low);
    }
}

LANES void join(const int type, group *g)
{
    vec low = g->first, high;
    if (type == TYPE_FP16) {
        high = choose(3, g->second[0], _mm256_slli_epi16(g->symbols, 2));
        high = choose(0x80, _mm256_slli_epi16(g->second[0], 5), high);
    } else {
        low = choose(0x7F, g->first, _mm256_slli_epi16(g->symbols, 7));
        high = choose(0x80, g->first, _mm256_srli_epi16(g->symbols, 1));
    }
    low = swap_middle(low);
    high = swap_middle(high);
    vec a = _mm256_unpacklo_epi8(low, high), b = _mm256_unpackhi_epi8(low, high);
    if (type == TYPE_FP32) {
        vec upper[2] = {swap_middle(a), swap_middle(b)};
        for (int k = 0; k < 2; k++) {
            vec lower = swap_middle(g->second[k]);
            g->raw[2 * k] = _mm256_unpacklo_epi16(lower, upper[k]);
            g->raw[2 * k + 1] = _mm256_unpackhi_epi16(lower, upper[k]);
        }
    } else {
        g->raw[0] = a;
        g->raw[1] = b;
    }
}

LANES void put_values(const int type, const int stream, const group *g, uint8_t *values)
{
    for (int k = 0; k < (int)value_bytes(type); k++)
        put_bytes(stream, values + 32 * k, g->raw[k]);
}

#define NONE (-1)

LANES vec get_symbols(const int type, const uint8_t *exponents, size_t at)
{
    if (type != TYPE_FP16)
        return read_bytes(exponents + at);
    /* Twenty bytes: ten for each half; the second load starts early so as not to read beyond them. */
    const uint8_t *p = exponents + at / 8 * 5;
    vec x = _mm256_set_m128i(_mm_loadu_si128((const __m128i *)(p + 4)), _mm_loadu_si128((const __m128i *)p));
    x = _mm256_shuffle_epi8(x, _mm256_setr_epi8(0, 1, 2, 3, 4, NONE, NONE, NONE, 5, 6, 7, 8, 9, NONE, NONE, NONE, 6, 7,
                                                8, 9, 10, NONE, NONE, NONE, 11, 12, 13, 14, 15, NONE, NONE, NONE));
    return unpack_lanes(x, 5);
}

LANES void put_symbols(const int type, const int stream, vec symbols, uint8_t *exponents, size_t at)
{
    if (type != TYPE_FP16) {
        put_bytes(stream, exponents + at, symbols);
        return;
    }
    uint8_t *p = exponents + at / 8 * 5;
    vec x = pack_lanes(symbols, 5);
    __m128i high = _mm256_extracti128_si256(x, 1);
    __m128i start = _mm_shuffle_epi8(_mm256_castsi256_si128(x), _mm_setr_epi8(0, 1, 2, 3, 4, 8, 9, 10, 11, 12, NONE,
                                                                              NONE, NONE, NONE, NONE, NONE));
    __m128i next = _mm_shuffle_epi8(high, _mm_setr_epi8(NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, 0,
                                                        1, 2, 3, 4, 8));
    _mm_storeu_si128((__m128i *)p, _mm_or_si128(start, next));
    write_word(p + 16, (uint64_t)_mm_extract_epi64(high, 1) >> 8, 4);
}

LANES void get_rest(const int type, group *g, const uint8_t *first, const uint8_t *second, size_t at)
{
    g->first = read_bytes(first + at);
    if (type == TYPE_FP16) {
        /* Twelve bytes: six for each half. */
        const uint8_t *p = second + at / 8 * 3;
        vec x = _mm256_set_m128i(_mm_loadl_epi64((const __m128i *)(p + 4)), _mm_loadl_epi64((const __m128i *)p));
        x = _mm256_shuffle_epi8(x, _mm256_setr_epi8(0, 1, 2, NONE, NONE, NONE, NONE, NONE, 3, 4, 5, NONE, NONE, NONE,
                                                    NONE, NONE, 2, 3, 4, NONE, NONE, NONE, NONE, NONE, 5, 6, 7, NONE,
                                                    NONE, NONE, NONE, NONE));
        g->second[0] = unpack_lanes(x, 3);
    }
    if (type == TYPE_FP32) {
        g->second[0] = read_bytes(second + at * 2);
        g->second[1] = read_bytes(second + at * 2 + 32);
    }
}

LANES void put_rest(const int type, const int stream, const group *g, uint8_t *first, uint8_t *second, size_t at)
{
    put_bytes(stream, first + at, g->first);
    if (type == TYPE_FP16) {
        uint8_t *p = second + at / 8 * 3;
        vec x = pack_lanes(g->second[0], 3);
        x = _mm256_shuffle_epi8(x, _mm256_setr_epi8(0, 1, 2, 8, 9, 10, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE,
                                                    NONE, NONE, 0, 1, 2, 8, 9, 10, NONE, NONE, NONE, NONE, NONE, NONE,
                                                    NONE, NONE, NONE, NONE));
        uint64_t low = (uint64_t)_mm256_extract_epi64(x, 0), high = (uint64_t)_mm256_extract_epi64(x, 2);
        write_word(p, low | high << 48, 8);
        write_word(p + 8, high >> 16, 4);
    }
    if (type == TYPE_FP32) {
        put_bytes(stream, second + at * 2, g->second[0]);
        put_bytes(stream, second + at * 2 + 32, g->second[1]);
    }
}

LANES vec add_bytes(vec a, vec b)
{
    return _mm256_add_epi8(a, b);
}

LANES vec subtract_bytes(vec a, vec b)
{
    return _mm256_sub_epi8(a, b);
}

LANES vec add_difference(vec differences, vec a, vec b)
{
    return _mm256_or_si256(differences, _mm256_xor_si256(a, b));
}

LANES int any(vec v)
{
    return !_mm256_testz_si256(v, v);
}

/* The low 64 bits of each product; AVX2 multiplies 32 bits at a time. */
LANES vec multiply(vec a, uint64_t by)
{
    vec b = _mm256_set1_epi64x((long long)by);
    vec crossed = _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64(a, 32), b),
                                   _mm256_mul_epu32(a, _mm256_set1_epi64x((long long)(by >> 32))));
    return _mm256_add_epi64(_mm256_mul_epu32(a, b), _mm256_slli_epi64(crossed, 32));
}

LANES vec mix_lanes(vec z)
{
    z = multiply(_mm256_xor_si256(z, _mm256_srli_epi64(z, 30)), MIX_1);
    z = multiply(_mm256_xor_si256(z, _mm256_srli_epi64(z, 27)), MIX_2);
    return _mm256_xor_si256(z, _mm256_srli_epi64(z, 31));
}

LANES tally hash_step(tally sums, vec symbols, const uint64_t *places)
{
    return _mm256_add_epi64(sums, mix_lanes(_mm256_add_epi64(symbols, read_bytes((const uint8_t *)places))));
}

LANES void hash_sums(tally a, tally b, uint64_t sums[2])
{
    vec pairs = _mm256_add_epi64(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    __m128i both = _mm_add_epi64(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    _mm_storeu_si128((__m128i *)sums, both);
}

LANES tally check_step(const int type, tally sums, const group *g, const uint64_t *keys)
{
    for (int k = 0; k < (int)value_bytes(type); k++) {
        vec t = _mm256_add_epi64(g->raw[k], read_bytes((const uint8_t *)(keys + 4 * k)));
        sums = _mm256_add_epi64(sums, _mm256_mul_epu32(t, _mm256_srli_epi64(t, 32)));
        sums = _mm256_add_epi64(sums, g->raw[k]);
    }
    return sums;
}

LANES uint64_t check_sum(tally sums)
{
    __m128i half = _mm_add_epi64(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    return (uint64_t)_mm_cvtsi128_si64(half) + (uint64_t)_mm_extract_epi64(half, 1);
}

#endif
