/* A group of 64 values in AVX-512 registers. A level defines:
 *
 * GROUP       values in a group; divides every block size, and is a multiple of 8
 * KERNEL      attributes of the functions that use these; LANES of the ones here
 * TABLE       the name of the level's table of kernels
 * vec         GROUP bytes, one a value
 * group       values apart (symbols, first, second, as in word.h) and together (raw)
 * tally       running sums of words; how many, the level knows
 *
 * take reads values, join makes raw from the parts, put_values writes raw; get_ and put_ read and write planes
 * at value number `at`, a multiple of GROUP. None touches a byte beyond those of its GROUP values. With `stream`
 * what is aligned for it is written past the caches; stream_end before the kernel returns. */
#ifndef CIERA_LANES_H
#define CIERA_LANES_H

#include <immintrin.h>

#include "isa.h"
#include "mix.h"
#include "word.h"

enum { GROUP = 64 };

#define KERNEL TARGET_AVX512
#define LANES TARGET_AVX512 INLINE
#define TABLE planes_avx512

typedef __m512i vec;
typedef struct {
    vec symbols, first, second[2], raw[4];
} group;
typedef vec tally;

LANES tally no_tally(void)
{
    return _mm512_setzero_si512();
}

LANES vec no_difference(void)
{
    return no_tally();
}

LANES vec read_bytes(const uint8_t *p)
{
    return _mm512_loadu_si512(p);
}

LANES void write_bytes(uint8_t *p, vec v)
{
    _mm512_storeu_si512(p, v);
}

LANES void put_bytes(const int stream, uint8_t *p, vec v)
{
    if (!stream || ((uintptr_t)p & 15)) {
        write_bytes(p, v);
    } else if (((uintptr_t)p & 63) == 0) {
        _mm512_stream_si512((void *)p, v);
    } else {
        _mm_stream_si128((__m128i *)p, _mm512_castsi512_si128(v));
        _mm_stream_si128((__m128i *)(p + 16), _mm512_extracti64x2_epi64(v, 1));
        _mm_stream_si128((__m128i *)(p + 32), _mm512_extracti64x2_epi64(v, 2));
        _mm_stream_si128((__m128i *)(p + 48), _mm512_extracti64x2_epi64(v, 3));
    }
}

LANES void stream_end(const int stream)
{
    if (stream)
        _mm_sfence();
}

/* Registers that hold f(0), f(1), ... in their bytes or words. */
#define ROW_8(f, k) f((k) + 7), f((k) + 6), f((k) + 5), f((k) + 4), f((k) + 3), f((k) + 2), f((k) + 1), f(k)
#define ROW_32(f, k) ROW_8(f, (k) + 24), ROW_8(f, (k) + 16), ROW_8(f, (k) + 8), ROW_8(f, k)
#define BYTES(f) _mm512_set_epi8(ROW_32(f, 32), ROW_32(f, 0))
#define WORDS(f) _mm512_set_epi16(ROW_32(f, 0))
#define EVEN(k) ((char)(2 * (k)))
#define ODD(k) ((char)(2 * (k) + 1))
#define EVEN_16(k) ((short)(2 * (k)))
#define ODD_16(k) ((short)(2 * (k) + 1))
#define ZIP_LOW(k) ((char)((k) / 2 + (k) % 2 * 64))
#define ZIP_HIGH(k) ((char)((k) / 2 + (k) % 2 * 64 + 32))
#define ZIP_LOW_16(k) ((short)((k) / 2 + (k) % 2 * 32))
#define ZIP_HIGH_16(k) ((short)((k) / 2 + (k) % 2 * 32 + 16))
#define TAKE_5(k) ((char)((k) < 40 ? (k) / 5 * 8 + (k) % 5 : 0))
#define TAKE_3(k) ((char)((k) < 24 ? (k) / 3 * 8 + (k) % 3 : 0))
#define GIVE_5(k) ((char)((k) % 8 < 5 ? (k) / 8 * 5 + (k) % 8 : 0))
#define GIVE_3(k) ((char)((k) % 8 < 3 ? (k) / 8 * 3 + (k) % 8 : 0))
#define SHIFT_5(k) ((char)((k) % 8 * 5))
#define SHIFT_3(k) ((char)((k) % 8 * 3))

/* Bytes of `width` bits to width bytes in each 8, which come first. */
LANES vec pack_lanes(vec x, const int width)
{
    x = _mm512_maddubs_epi16(x, _mm512_set1_epi16((short)(1 | 1 << (8 + width))));
    x = _mm512_madd_epi16(x, _mm512_set1_epi32(1 | 1 << (16 + 2 * width)));
    vec high = _mm512_slli_epi64(_mm512_srli_epi64(x, 32), 4 * width);
    x = _mm512_or_si512(_mm512_and_si512(x, _mm512_set1_epi64(0xFFFFFFFF)), high);
    return _mm512_permutexvar_epi8(width == 5 ? BYTES(TAKE_5) : BYTES(TAKE_3), x);
}

LANES vec unpack_lanes(vec x, const int width)
{
    x = _mm512_permutexvar_epi8(width == 5 ? BYTES(GIVE_5) : BYTES(GIVE_3), x);
    x = _mm512_multishift_epi64_epi8(width == 5 ? BYTES(SHIFT_5) : BYTES(SHIFT_3), x);
    return _mm512_and_si512(x, _mm512_set1_epi8((char)((1 << width) - 1)));
}

/* Bits of a where mask has ones, else of b. */
LANES vec choose(vec mask, vec a, vec b)
{
    return _mm512_ternarylogic_epi64(mask, a, b, 0xCA);
}

LANES void take(const int type, const uint8_t *values, group *g)
{
    for (int k = 0; k < (int)value_bytes(type); k++)
        g->raw[k] = read_bytes(values + 64 * k);
    vec a = g->raw[0], b = g->raw[1];
    if (type == TYPE_FP32) {
        a = _mm512_permutex2var_epi16(g->raw[0], WORDS(ODD_16), g->raw[1]);
        b = _mm512_permutex2var_epi16(g->raw[2], WORDS(ODD_16), g->raw[3]);
        g->second[0] = _mm512_permutex2var_epi16(g->raw[0], WORDS(EVEN_16), g->raw[1]);
        g->second[1] = _mm512_permutex2var_epi16(g->raw[2], WORDS(EVEN_16), g->raw[3]);
    }
    vec low = _mm512_permutex2var_epi8(a, BYTES(EVEN), b);
    vec high = _mm512_permutex2var_epi8(a, BYTES(ODD), b);
    if (type == TYPE_FP16) {
        g->symbols = _mm512_and_si512(_mm512_srli_epi16(high, 2), _mm512_set1_epi8(31));
        g->first = low;
        g->second[0] = choose(_mm512_set1_epi8(3), high,
                             _mm512_and_si512(_mm512_srli_epi16(high, 5), _mm512_set1_epi8(4)));
    } else {
        g->symbols = choose(_mm512_set1_epi8(1), _mm512_srli_epi16(low, 7), _mm512_add_epi8(high, high));
        g->first = choose(_mm512_set1_epi8((char)0x80), high, low);
    }
}

LANES void join(const int type, group *g)
{
    vec low = g->first, high;
    if (type == TYPE_FP16) {
        high = choose(_mm512_set1_epi8(3), g->second[0], _mm512_slli_epi16(g->symbols, 2));
        high = choose(_mm512_set1_epi8((char)0x80), _mm512_slli_epi16(g->second[0], 5), high);
    } else {
        low = choose(_mm512_set1_epi8(0x7F), g->first, _mm512_slli_epi16(g->symbols, 7));
        high = choose(_mm512_set1_epi8((char)0x80), g->first, _mm512_srli_epi16(g->symbols, 1));
    }
    vec a = _mm512_permutex2var_epi8(low, BYTES(ZIP_LOW), high);
    vec b = _mm512_permutex2var_epi8(low, BYTES(ZIP_HIGH), high);
    if (type == TYPE_FP32) {
        g->raw[0] = _mm512_permutex2var_epi16(g->second[0], WORDS(ZIP_LOW_16), a);
        g->raw[1] = _mm512_permutex2var_epi16(g->second[0], WORDS(ZIP_HIGH_16), a);
        g->raw[2] = _mm512_permutex2var_epi16(g->second[1], WORDS(ZIP_LOW_16), b);
        g->raw[3] = _mm512_permutex2var_epi16(g->second[1], WORDS(ZIP_HIGH_16), b);
    } else {
        g->raw[0] = a;
        g->raw[1] = b;
    }
}

LANES void put_values(const int type, const int stream, const group *g, uint8_t *values)
{
    for (int k = 0; k < (int)value_bytes(type); k++)
        put_bytes(stream, values + 64 * k, g->raw[k]);
}

LANES vec get_symbols(const int type, const uint8_t *exponents, size_t at)
{
    if (type != TYPE_FP16)
        return read_bytes(exponents + at);
    const uint8_t *p = exponents + at / 8 * 5;
    vec x = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)p));
    x = _mm512_inserti64x2(x, _mm_loadl_epi64((const __m128i *)(p + 32)), 2);
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
    _mm256_storeu_si256((__m256i *)p, _mm512_castsi512_si256(x));
    _mm_storel_epi64((__m128i *)(p + 32), _mm512_extracti64x2_epi64(x, 2));
}

LANES void get_rest(const int type, group *g, const uint8_t *first, const uint8_t *second, size_t at)
{
    g->first = read_bytes(first + at);
    if (type == TYPE_FP16) {
        const uint8_t *p = second + at / 8 * 3;
        vec x = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)p));
        x = _mm512_inserti64x2(x, _mm_loadl_epi64((const __m128i *)(p + 16)), 1);
        g->second[0] = unpack_lanes(x, 3);
    }
    if (type == TYPE_FP32) {
        g->second[0] = read_bytes(second + at * 2);
        g->second[1] = read_bytes(second + at * 2 + 64);
    }
}

LANES void put_rest(const int type, const int stream, const group *g, uint8_t *first, uint8_t *second, size_t at)
{
    put_bytes(stream, first + at, g->first);
    if (type == TYPE_FP16) {
        uint8_t *p = second + at / 8 * 3;
        vec x = pack_lanes(g->second[0], 3);
        _mm_storeu_si128((__m128i *)p, _mm512_castsi512_si128(x));
        _mm_storel_epi64((__m128i *)(p + 16), _mm512_extracti64x2_epi64(x, 1));
    }
    if (type == TYPE_FP32) {
        put_bytes(stream, second + at * 2, g->second[0]);
        put_bytes(stream, second + at * 2 + 64, g->second[1]);
    }
}

LANES vec add_bytes(vec a, vec b)
{
    return _mm512_add_epi8(a, b);
}

LANES vec subtract_bytes(vec a, vec b)
{
    return _mm512_sub_epi8(a, b);
}

LANES vec and_bytes(vec v, uint8_t mask)
{
    return _mm512_and_si512(v, _mm512_set1_epi8((char)mask));
}

/* Has ones wherever `differences` has or a and b differ. */
LANES vec add_difference(vec differences, vec a, vec b)
{
    return _mm512_ternarylogic_epi64(differences, a, b, 0xF6);
}

LANES int any(vec v)
{
    return _mm512_test_epi64_mask(v, v) != 0;
}

LANES vec mix_lanes(vec z)
{
    z = _mm512_xor_si512(z, _mm512_srli_epi64(z, 30));
    z = _mm512_mullo_epi64(z, _mm512_set1_epi64((long long)MIX_1));
    z = _mm512_xor_si512(z, _mm512_srli_epi64(z, 27));
    z = _mm512_mullo_epi64(z, _mm512_set1_epi64((long long)MIX_2));
    return _mm512_xor_si512(z, _mm512_srli_epi64(z, 31));
}

LANES tally hash_step(tally sums, vec symbols, const uint64_t *places)
{
    return _mm512_add_epi64(sums, mix_lanes(_mm512_add_epi64(symbols, _mm512_loadu_si512(places))));
}

LANES void hash_sums(tally a, tally b, uint64_t sums[2])
{
    vec pairs = _mm512_add_epi64(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    __m256i half = _mm256_add_epi64(_mm512_castsi512_si256(pairs), _mm512_extracti64x4_epi64(pairs, 1));
    __m128i both = _mm_add_epi64(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    _mm_storeu_si128((__m128i *)sums, both);
}

LANES tally check_step(const int type, tally sums, const group *g, const uint64_t *keys)
{
    for (int k = 0; k < (int)value_bytes(type); k++) {
        vec t = _mm512_add_epi64(g->raw[k], _mm512_loadu_si512(keys + 8 * k));
        sums = _mm512_add_epi64(sums, _mm512_mul_epu32(t, _mm512_srli_epi64(t, 32)));
        sums = _mm512_add_epi64(sums, g->raw[k]);
    }
    return sums;
}

LANES uint64_t check_sum(tally sums)
{
    /* Not _mm512_reduce_add_epi64: gcc's adds signed numbers, whose overflow C leaves undefined. */
    __m256i half = _mm256_add_epi64(_mm512_castsi512_si256(sums), _mm512_extracti64x4_epi64(sums, 1));
    __m128i pair = _mm_add_epi64(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    return (uint64_t)_mm_cvtsi128_si64(pair) + (uint64_t)_mm_extract_epi64(pair, 1);
}

#endif
