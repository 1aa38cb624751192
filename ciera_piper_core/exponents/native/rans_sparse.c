/* Symbols that are nearly all the same: a bit for each that differs, and those symbols; and back. */
#include <string.h>

#include "rans.h"

#ifdef CIERA_X86
#include <immintrin.h>

/* Whole runs of 64 symbols; how many symbols were done. */
TARGET_AVX512 static size_t split_avx512(const uint8_t *symbols, size_t n, uint8_t usual, uint8_t *bits,
                                         uint8_t **others)
{
    const __m512i all_usual = _mm512_set1_epi8((char)usual);
    uint8_t *other = *others;
    size_t at = 0;
    for (; n - at >= 64; at += 64) {
        __m512i symbol = _mm512_loadu_si512(symbols + at);
        uint64_t differs = _mm512_cmpneq_epi8_mask(symbol, all_usual);
        memcpy(bits + at / 8, &differs, 8);
        _mm512_storeu_si512(other, _mm512_maskz_compress_epi8(differs, symbol));
        other += _mm_popcnt_u64(differs);
    }
    *others = other;
    return at;
}

TARGET_AVX512 static size_t merge_avx512(const uint8_t *bits, size_t n, uint8_t usual, const uint8_t **others,
                                         const uint8_t *others_end, uint8_t *symbols)
{
    const __m512i all_usual = _mm512_set1_epi8((char)usual);
    const uint8_t *other = *others;
    size_t at = 0;
    for (; n - at >= 64 && other <= others_end; at += 64) {
        uint64_t differs;
        memcpy(&differs, bits + at / 8, 8);
        _mm512_storeu_si512(symbols + at, _mm512_mask_expand_epi8(all_usual, differs, _mm512_loadu_si512(other)));
        other += _mm_popcnt_u64(differs);
    }
    *others = other;
    return at;
}
#endif

/* Finds the symbols of n that differ from the usual one.
 *
 * Reads symbols [0, n). Writes ceil(n / 8) bytes of bits: bit i % 8 of byte i / 8 is set if symbol i differs, unused
 * bits are zero; and the symbols that differ to others [0, n + RANS_PAD). How many they are. */
size_t ciera_rans_split_sparse(int isa, const uint8_t *symbols, size_t n, uint8_t usual, uint8_t *bits,
                               uint8_t *others)
{
    uint8_t *other = others;
    size_t at = 0;
    const uint64_t all_usual = 0x0101010101010101u * (uint64_t)usual;
#ifdef CIERA_X86
    if (isa == ISA_AVX512)
        at = split_avx512(symbols, n, usual, bits, &other);
#endif
    (void)isa;
    for (; at < n; at += 8) {
        size_t count = n - at < 8 ? n - at : 8;
        uint64_t word = all_usual;
        memcpy(&word, symbols + at, count);
        unsigned byte = 0;
        if (word != all_usual)
            for (unsigned i = 0; i < count; ++i) {
                unsigned differs = symbols[at + i] != usual;
                byte |= differs << i;
                *other = symbols[at + i];
                other += differs;
            }
        bits[at / 8] = (uint8_t)byte;
    }
    return (size_t)(other - others);
}

/* The inverse. Reads ceil(n / 8) bytes of bits, and others [0, count + RANS_PAD); writes symbols [0, n). 0; -1 if
 * the bits do not ask for exactly count others, or unused ones are set. */
int ciera_rans_merge_sparse(int isa, const uint8_t *bits, size_t n, uint8_t usual, const uint8_t *others, size_t count,
                            uint8_t *symbols)
{
    const uint8_t *other = others, *others_end = others + count;
    size_t at = 0;
#ifdef CIERA_X86
    if (isa == ISA_AVX512)
        at = merge_avx512(bits, n, usual, &other, others_end, symbols);
#endif
    (void)isa;
    for (; at < n && other <= others_end; at += 8) {
        unsigned byte = bits[at / 8];
        size_t here = n - at < 8 ? n - at : 8;
        if (byte >> here)
            return -1;
        memset(symbols + at, usual, here);
        for (; byte; byte &= byte - 1)
            symbols[at + (unsigned)__builtin_ctz(byte)] = *other++;
    }
    return at >= n && other == others_end ? 0 : -1;
}
