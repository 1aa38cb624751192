/* Steps of the rANS coder with AVX2: 16 states lie in a register of words, tables of 16 bytes in registers. */
#include "rans.h"

#ifdef CIERA_X86
#include <immintrin.h>
#include <string.h>

enum { GROUP = 32 /* states of a pair of registers */ };

/* Bytes unpack to words, and words pack to bytes, within halves of a register. So the first register of a pair holds
 * the states 0 to 7 and 16 to 23 of its group, the second the others; this swaps the two middle quarters. */
TARGET_AVX2 static inline void reorder(uint16_t states[RANS_LANES])
{
    for (unsigned group = 0; group < RANS_LANES; group += GROUP) {
        __m128i *quarter = (__m128i *)(states + group);
        __m128i second = _mm_loadu_si128(quarter + 1), third = _mm_loadu_si128(quarter + 2);
        _mm_storeu_si128(quarter + 1, third);
        _mm_storeu_si128(quarter + 2, second);
    }
}

/* 16 bytes as a table in both halves. */
TARGET_AVX2 static inline __m256i table(const uint8_t *bytes)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)bytes));
}

/* 16 words as a table of their low bytes (shift 0) or high bytes (shift 8), in both halves. */
TARGET_AVX2 static inline __m256i byte_table(const uint16_t *words, unsigned shift)
{
    uint8_t bytes[RANS_ENTRIES];
    for (unsigned entry = 0; entry < RANS_ENTRIES; ++entry)
        bytes[entry] = (uint8_t)(words[entry] >> shift);
    return table(bytes);
}

/* All ones where a >= b, as unsigned words. */
TARGET_AVX2 static inline __m256i at_least(__m256i a, __m256i b)
{
    return _mm256_cmpeq_epi16(_mm256_max_epu16(a, b), a);
}

/* The 32 bytes that the mask (bytes of ones or zeros) chooses, appended. */
TARGET_AVX2 static inline void append(__m256i bytes, __m256i mask, uint8_t **to)
{
    uint64_t part[4], chosen[4];
    memcpy(part, &bytes, sizeof part);
    memcpy(chosen, &mask, sizeof chosen);
    uint8_t *at = *to;
    for (unsigned i = 0; i < 4; ++i) {
        uint64_t packed = _pext_u64(part[i], chosen[i]);
        memcpy(at, &packed, 8);
        at += (unsigned)_mm_popcnt_u64(chosen[i]) / 8;
    }
    *to = at;
}

/* The inverse: the last bytes below *from, at the places that the mask chooses; 0 elsewhere. */
TARGET_AVX2 static inline __m256i spread(__m256i mask, const uint8_t **from)
{
    uint64_t part[4], chosen[4];
    memcpy(chosen, &mask, sizeof chosen);
    const uint8_t *at = *from -= (unsigned)_mm_popcnt_u32((unsigned)_mm256_movemask_epi8(mask));
    for (unsigned i = 0; i < 4; ++i) {
        uint64_t packed;
        memcpy(&packed, at, 8);
        part[i] = _pdep_u64(packed, chosen[i]);
        at += (unsigned)_mm_popcnt_u64(chosen[i]) / 8;
    }
    __m256i bytes;
    memcpy(&bytes, part, sizeof part);
    return bytes;
}

/* Tables that encoding keeps in registers, by entry, and the symbols of entries, each in all bytes. */
typedef struct {
    __m256i share, start, reciprocal_low, reciprocal_high, symbol[RANS_ESCAPE];
    unsigned entries;
} encode_tables;

/* Codes 16 symbols: their shares, starts and reciprocals are given. `full`: states that put out their low byte. */
TARGET_AVX2 static inline __m256i encode_states(__m256i state, __m256i share, __m256i start, __m256i reciprocal,
                                                __m256i *full)
{
    *full = at_least(state, _mm256_slli_epi16(share, 10));
    state = _mm256_blendv_epi8(state, _mm256_srli_epi16(state, 8), *full);
    __m256i quotient = _mm256_mulhi_epu16(state, reciprocal); /* or one less; the remainder tells */
    __m256i rest = _mm256_sub_epi16(state, _mm256_mullo_epi16(quotient, share));
    __m256i gap = _mm256_sub_epi16(_mm256_set1_epi16(RANS_SLOTS), share);
    quotient = _mm256_sub_epi16(quotient, at_least(rest, share));
    return _mm256_add_epi16(_mm256_add_epi16(state, start), _mm256_mullo_epi16(quotient, gap));
}

/* Codes 32 symbols in 32 states; appends coded bytes and escapes. */
TARGET_AVX2 static inline void encode_group(const encode_tables *t, const uint8_t *symbols, uint16_t *states,
                                            uint8_t **coded, uint8_t **escapes)
{
    const __m256i zero = _mm256_setzero_si256(), escape = _mm256_set1_epi8(RANS_ESCAPE);
    __m256i symbol = _mm256_loadu_si256((const __m256i *)symbols), entry = escape;
    for (unsigned i = 0; i < t->entries; ++i)
        entry = _mm256_blendv_epi8(entry, _mm256_set1_epi8((char)i), _mm256_cmpeq_epi8(symbol, t->symbol[i]));
    __m256i escaped = _mm256_cmpeq_epi8(entry, escape);
    if (!_mm256_testz_si256(escaped, escaped))
        append(symbol, escaped, escapes);

    __m256i share = _mm256_shuffle_epi8(t->share, entry), start = _mm256_shuffle_epi8(t->start, entry);
    __m256i low = _mm256_shuffle_epi8(t->reciprocal_low, entry), high = _mm256_shuffle_epi8(t->reciprocal_high, entry);
    __m256i first = _mm256_loadu_si256((const __m256i *)states);
    __m256i second = _mm256_loadu_si256((const __m256i *)(states + 16));
    const __m256i low_byte = _mm256_set1_epi16(255);
    __m256i bytes = _mm256_packus_epi16(_mm256_and_si256(first, low_byte), _mm256_and_si256(second, low_byte));
    __m256i first_full, second_full;
    first = encode_states(first, _mm256_unpacklo_epi8(share, zero), _mm256_unpacklo_epi8(start, zero),
                          _mm256_unpacklo_epi8(low, high), &first_full);
    second = encode_states(second, _mm256_unpackhi_epi8(share, zero), _mm256_unpackhi_epi8(start, zero),
                           _mm256_unpackhi_epi8(low, high), &second_full);
    append(bytes, _mm256_packs_epi16(first_full, second_full), coded);
    _mm256_storeu_si256((__m256i *)states, first);
    _mm256_storeu_si256((__m256i *)(states + 16), second);
}

TARGET_AVX2 void rans_encode_avx2(const struct rans_model *model, const uint8_t *symbols, size_t steps,
                                  unsigned lanes, uint16_t states[RANS_LANES], uint8_t **coded, uint8_t **escapes)
{
    encode_tables t = {.share = byte_table(model->share, 0),
                       .start = byte_table(model->start, 0),
                       .reciprocal_low = byte_table(model->reciprocal, 0),
                       .reciprocal_high = byte_table(model->reciprocal, 8),
                       .entries = model->entries};
    for (unsigned entry = 0; entry < t.entries; ++entry)
        t.symbol[entry] = _mm256_set1_epi8((char)model->symbol[entry]);
    reorder(states);
    uint8_t *byte = *coded, *escape = *escapes;
    while (steps-- > 0)
        for (unsigned unit = lanes; unit > 0;) {
            unit -= RANS_UNIT;
            for (unsigned lane = unit; lane < unit + RANS_UNIT; lane += GROUP)
                encode_group(&t, symbols + steps * lanes + lane, states + lane, &byte, &escape);
        }
    reorder(states);
    *coded = byte;
    *escapes = escape;
}

/* Tables that decoding keeps in registers: slot to entry, in four parts; entry to the rest. */
typedef struct {
    __m256i entry[4], share, start, symbol;
} decode_tables;

/* Takes a symbol out of 16 states; shares and ranks of their slots are given. */
TARGET_AVX2 static inline __m256i decode_states(__m256i state, __m256i share, __m256i rank)
{
    return _mm256_add_epi16(_mm256_mullo_epi16(share, _mm256_srli_epi16(state, RANS_SLOT_BITS)), rank);
}

/* Decodes 32 symbols from 32 states; coded bytes and escapes are the last below the pointers. */
TARGET_AVX2 static inline void decode_group(const decode_tables *t, uint8_t *symbols, uint16_t *states,
                                            const uint8_t **coded, const uint8_t **escapes)
{
    const __m256i zero = _mm256_setzero_si256(), slot_mask = _mm256_set1_epi16(RANS_SLOTS - 1);
    __m256i first = _mm256_loadu_si256((const __m256i *)states);
    __m256i second = _mm256_loadu_si256((const __m256i *)(states + 16));
    __m256i slot = _mm256_packus_epi16(_mm256_and_si256(first, slot_mask), _mm256_and_si256(second, slot_mask));
    /* Shuffles look at the low four bits; bit 4 and bit 5 choose the part. */
    __m256i bit4 = _mm256_slli_epi16(slot, 3), bit5 = _mm256_slli_epi16(slot, 2);
    __m256i below = _mm256_blendv_epi8(_mm256_shuffle_epi8(t->entry[0], slot), _mm256_shuffle_epi8(t->entry[1], slot),
                                       bit4);
    __m256i above = _mm256_blendv_epi8(_mm256_shuffle_epi8(t->entry[2], slot), _mm256_shuffle_epi8(t->entry[3], slot),
                                       bit4);
    __m256i entry = _mm256_blendv_epi8(below, above, bit5);
    __m256i share = _mm256_shuffle_epi8(t->share, entry);
    __m256i rank = _mm256_sub_epi8(slot, _mm256_shuffle_epi8(t->start, entry));

    first = decode_states(first, _mm256_unpacklo_epi8(share, zero), _mm256_unpacklo_epi8(rank, zero));
    second = decode_states(second, _mm256_unpackhi_epi8(share, zero), _mm256_unpackhi_epi8(rank, zero));
    __m256i first_empty = _mm256_cmpeq_epi16(_mm256_srli_epi16(first, 8), zero);
    __m256i second_empty = _mm256_cmpeq_epi16(_mm256_srli_epi16(second, 8), zero);
    __m256i bytes = spread(_mm256_packs_epi16(first_empty, second_empty), coded);
    __m256i first_filled = _mm256_or_si256(_mm256_slli_epi16(first, 8), _mm256_unpacklo_epi8(bytes, zero));
    __m256i second_filled = _mm256_or_si256(_mm256_slli_epi16(second, 8), _mm256_unpackhi_epi8(bytes, zero));
    _mm256_storeu_si256((__m256i *)states, _mm256_blendv_epi8(first, first_filled, first_empty));
    _mm256_storeu_si256((__m256i *)(states + 16), _mm256_blendv_epi8(second, second_filled, second_empty));

    __m256i symbol = _mm256_shuffle_epi8(t->symbol, entry);
    __m256i escaped = _mm256_cmpeq_epi8(entry, _mm256_set1_epi8(RANS_ESCAPE));
    if (!_mm256_testz_si256(escaped, escaped))
        symbol = _mm256_or_si256(symbol, spread(escaped, escapes)); /* the escape's own symbol is 0 */
    _mm256_storeu_si256((__m256i *)symbols, symbol);
}

TARGET_AVX2 size_t rans_decode_avx2(const struct rans_model *model, uint8_t *symbols, size_t steps, unsigned lanes,
                                    uint16_t states[RANS_LANES], const uint8_t **coded, const uint8_t *coded_floor,
                                    const uint8_t **escapes, const uint8_t *escapes_begin)
{
    decode_tables t = {.share = byte_table(model->share, 0),
                       .start = byte_table(model->start, 0),
                       .symbol = table(model->symbol)};
    for (unsigned part = 0; part < 4; ++part)
        t.entry[part] = table(model->slot_entry + 16 * part);
    reorder(states);
    const uint8_t *byte = *coded, *escape = *escapes;
    size_t step = 0;
    for (; step < steps && byte - coded_floor >= (ptrdiff_t)lanes && escape >= escapes_begin; ++step)
        for (unsigned unit = 0; unit < lanes; unit += RANS_UNIT, symbols += RANS_UNIT)
            for (unsigned lane = RANS_UNIT; lane > 0;) {
                lane -= GROUP;
                decode_group(&t, symbols + lane, states + unit + lane, &byte, &escape);
            }
    reorder(states);
    *coded = byte;
    *escapes = escape;
    return step;
}
#endif
