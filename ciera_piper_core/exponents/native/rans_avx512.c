/* Steps of the rANS coder with AVX-512: 32 states lie in a register of words, tables in registers, no gathers. */
#include "rans.h"

#ifdef CIERA_X86
#include <immintrin.h>

enum {
    GROUP = 32,     /* states of a register */
    PREFETCH = 2048 /* bytes ahead */
};

/* States of all lanes; of 64 lanes only the first two are used. One variable each, not an array: the compiler would
 * write an array back to memory at every step. */
typedef struct {
    __m512i a, b, c, d, e, f, g, h;
} registers;

TARGET_AVX512 static inline __m512i load_state(const uint16_t *states, unsigned group)
{
    return _mm512_loadu_si512(states + GROUP * group);
}

TARGET_AVX512 static inline registers load_states(const uint16_t states[RANS_LANES])
{
    return (registers){load_state(states, 0), load_state(states, 1), load_state(states, 2), load_state(states, 3),
                       load_state(states, 4), load_state(states, 5), load_state(states, 6), load_state(states, 7)};
}

TARGET_AVX512 static inline void store_states(registers from, uint16_t states[RANS_LANES])
{
    const __m512i all[] = {from.a, from.b, from.c, from.d, from.e, from.f, from.g, from.h};
    for (unsigned group = 0; group < RANS_LANES / GROUP; ++group)
        _mm512_storeu_si512(states + GROUP * group, all[group]);
}

/* Where the low bytes of two registers of words lie. */
TARGET_AVX512 static inline __m512i low_byte_places(void)
{
    uint8_t places[64];
    for (unsigned byte = 0; byte < 64; ++byte)
        places[byte] = (uint8_t)(2 * byte);
    return _mm512_loadu_si512(places);
}

/* Tables that encoding keeps in registers. */
typedef struct {
    __m512i index[4], share, start, reciprocal, low_bytes;
} encode_tables;

/* A 16-entry table twice, so that any index of five bits is one of it. */
TARGET_AVX512 static inline __m512i twice(const uint16_t *table)
{
    return _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)table));
}

/* Codes one symbol (its entry) in each of 32 states. `full`: states that put out their low byte first. */
TARGET_AVX512 static inline __m512i encode_group(const encode_tables *t, __m512i entry, __m512i state,
                                                 __mmask32 *full)
{
    __m512i share = _mm512_permutexvar_epi16(entry, t->share);
    __m512i reciprocal = _mm512_permutexvar_epi16(entry, t->reciprocal);
    __m512i start = _mm512_permutexvar_epi16(entry, t->start);
    *full = _mm512_cmpge_epu16_mask(state, _mm512_slli_epi16(share, 10));
    state = _mm512_mask_srli_epi16(state, *full, state, 8);
    __m512i quotient = _mm512_mulhi_epu16(state, reciprocal); /* or one less; the remainder tells */
    __m512i rest = _mm512_sub_epi16(state, _mm512_mullo_epi16(quotient, share));
    __mmask32 one_less = _mm512_cmpge_epu16_mask(rest, share);
    __m512i gap = _mm512_sub_epi16(_mm512_set1_epi16(RANS_SLOTS), share);
    state = _mm512_add_epi16(_mm512_add_epi16(state, start), _mm512_mullo_epi16(quotient, gap));
    return _mm512_mask_add_epi16(state, one_less, state, gap);
}

/* Codes the 64 symbols below *symbols, and moves it there; appends those without an entry to *escapes. */
TARGET_AVX512 static inline void encode_pair(const encode_tables *t, const uint8_t **symbols, __m512i *first,
                                             __m512i *second, uint8_t **coded, uint8_t **escapes)
{
    *symbols -= 2 * GROUP;
    _mm_prefetch((const char *)*symbols - PREFETCH, _MM_HINT_T0);
    __m512i symbol = _mm512_loadu_si512(*symbols);
    __m512i below = _mm512_permutex2var_epi8(t->index[0], symbol, t->index[1]);
    __m512i above = _mm512_permutex2var_epi8(t->index[2], symbol, t->index[3]);
    __m512i entry = _mm512_mask_mov_epi8(below, _mm512_movepi8_mask(symbol), above);
    __mmask64 escaped = _mm512_cmpeq_epi8_mask(entry, _mm512_set1_epi8(RANS_ESCAPE));
    _mm512_storeu_si512(*escapes, _mm512_maskz_compress_epi8(escaped, symbol));
    *escapes += _mm_popcnt_u64(escaped);
    __m512i low_bytes = _mm512_permutex2var_epi8(*first, t->low_bytes, *second);
    __mmask32 first_full, second_full;
    *first = encode_group(t, _mm512_cvtepu8_epi16(_mm512_castsi512_si256(entry)), *first, &first_full);
    *second = encode_group(t, _mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(entry, 1)), *second, &second_full);
    __mmask64 full = _mm512_kunpackd(second_full, first_full);
    _mm512_storeu_si512(*coded, _mm512_maskz_compress_epi8(full, low_bytes));
    *coded += _mm_popcnt_u64(full);
}

TARGET_AVX512 static inline void encode(const struct rans_model *model, const uint8_t *symbols, size_t steps,
                                        const unsigned lanes, uint16_t states[RANS_LANES], uint8_t **coded,
                                        uint8_t **escapes)
{
    encode_tables t;
    for (unsigned part = 0; part < 4; ++part)
        t.index[part] = _mm512_loadu_si512(model->index + 64 * part);
    t.share = twice(model->share);
    t.start = twice(model->start);
    t.reciprocal = twice(model->reciprocal);
    t.low_bytes = low_byte_places();
    registers state = load_states(states);
    uint8_t *byte = *coded, *escape = *escapes;
    for (const uint8_t *at = symbols + steps * lanes; at > symbols;) {
        if (lanes == RANS_LANES) {
            encode_pair(&t, &at, &state.g, &state.h, &byte, &escape);
            encode_pair(&t, &at, &state.e, &state.f, &byte, &escape);
            encode_pair(&t, &at, &state.c, &state.d, &byte, &escape);
        }
        encode_pair(&t, &at, &state.a, &state.b, &byte, &escape);
    }
    store_states(state, states);
    *coded = byte;
    *escapes = escape;
}

TARGET_AVX512 void rans_encode_avx512(const struct rans_model *model, const uint8_t *symbols, size_t steps,
                                      unsigned lanes, uint16_t states[RANS_LANES], uint8_t **coded,
                                      uint8_t **escapes)
{
    if (lanes == RANS_UNIT)
        encode(model, symbols, steps, RANS_UNIT, states, coded, escapes);
    else
        encode(model, symbols, steps, RANS_LANES, states, coded, escapes);
}

/* Tables that decoding keeps in registers. */
typedef struct {
    __m512i share[2], rank[2], symbol, escape_slot, low_bytes;
} decode_tables;

/* Takes a symbol out of each of 32 states. `empty`: states that want a byte. */
TARGET_AVX512 static inline __m512i decode_group(const decode_tables *t, __m512i state, __mmask32 *empty)
{
    /* A permutation looks only at the index's low six bits: the slot. */
    __m512i share = _mm512_permutex2var_epi16(t->share[0], state, t->share[1]);
    __m512i rank = _mm512_permutex2var_epi16(t->rank[0], state, t->rank[1]);
    state = _mm512_add_epi16(_mm512_mullo_epi16(share, _mm512_srli_epi16(state, RANS_SLOT_BITS)), rank);
    *empty = _mm512_cmplt_epu16_mask(state, _mm512_set1_epi16(RANS_LEAST_STATE));
    return state;
}

/* Decodes 64 symbols to *symbols, and moves it behind them; coded bytes and escapes are the last below pointers. */
TARGET_AVX512 static inline void decode_pair(const decode_tables *t, __m512i *first, __m512i *second,
                                             const uint8_t **coded, const uint8_t **escapes, uint8_t **symbols)
{
    __m512i slot = _mm512_permutex2var_epi8(*first, t->low_bytes, *second);
    __mmask32 first_empty, second_empty;
    *first = decode_group(t, *first, &first_empty);
    *second = decode_group(t, *second, &second_empty);
    __mmask64 empty = _mm512_kunpackd(second_empty, first_empty);
    *coded -= _mm_popcnt_u64(empty);
    __m512i bytes = _mm512_maskz_expand_epi8(empty, _mm512_loadu_si512(*coded));
    *first = _mm512_or_si512(_mm512_mask_slli_epi16(*first, first_empty, *first, 8),
                             _mm512_cvtepu8_epi16(_mm512_castsi512_si256(bytes)));
    *second = _mm512_or_si512(_mm512_mask_slli_epi16(*second, second_empty, *second, 8),
                              _mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(bytes, 1)));

    __m512i symbol = _mm512_permutexvar_epi8(slot, t->symbol);
    slot = _mm512_and_si512(slot, _mm512_set1_epi8(RANS_SLOTS - 1));
    __mmask64 escaped = _mm512_cmpge_epu8_mask(slot, t->escape_slot);
    *escapes -= _mm_popcnt_u64(escaped);
    _mm512_storeu_si512(*symbols, _mm512_mask_expand_epi8(symbol, escaped, _mm512_loadu_si512(*escapes)));
    *symbols += 2 * GROUP;
}

TARGET_AVX512 static inline size_t decode(const struct rans_model *model, uint8_t *symbols, size_t steps,
                                          const unsigned lanes, uint16_t states[RANS_LANES], const uint8_t **coded,
                                          const uint8_t *coded_floor, const uint8_t **escapes,
                                          const uint8_t *escapes_begin)
{
    decode_tables t;
    for (unsigned part = 0; part < 2; ++part) {
        t.share[part] = _mm512_loadu_si512(model->slot_share + GROUP * part);
        t.rank[part] = _mm512_loadu_si512(model->slot_rank + GROUP * part);
    }
    t.symbol = _mm512_loadu_si512(model->slot_symbol);
    t.escape_slot = _mm512_set1_epi8((char)model->escape_slot);
    t.low_bytes = low_byte_places();
    registers state = load_states(states);
    const uint8_t *byte = *coded, *escape = *escapes;
    size_t step = 0;
    for (; step < steps && byte - coded_floor >= (ptrdiff_t)lanes && escape >= escapes_begin; ++step) {
        decode_pair(&t, &state.a, &state.b, &byte, &escape, &symbols);
        if (lanes == RANS_LANES) {
            decode_pair(&t, &state.c, &state.d, &byte, &escape, &symbols);
            decode_pair(&t, &state.e, &state.f, &byte, &escape, &symbols);
            decode_pair(&t, &state.g, &state.h, &byte, &escape, &symbols);
        }
    }
    store_states(state, states);
    *coded = byte;
    *escapes = escape;
    return step;
}

TARGET_AVX512 size_t rans_decode_avx512(const struct rans_model *model, uint8_t *symbols, size_t steps,
                                        unsigned lanes, uint16_t states[RANS_LANES], const uint8_t **coded,
                                        const uint8_t *coded_floor, const uint8_t **escapes,
                                        const uint8_t *escapes_begin)
{
    if (lanes == RANS_UNIT)
        return decode(model, symbols, steps, RANS_UNIT, states, coded, coded_floor, escapes, escapes_begin);
    return decode(model, symbols, steps, RANS_LANES, states, coded, coded_floor, escapes, escapes_begin);
}
#endif
