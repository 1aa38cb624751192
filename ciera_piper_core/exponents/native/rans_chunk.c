/* Chunks of the rANS coder: states at the front, then words; the directory says how many words and escapes. */
#include <string.h>

#include "rans.h"

static rans_encode_steps *encoder(int isa)
{
#ifdef CIERA_X86
    if (isa == ISA_AVX512)
        return rans_encode_avx512;
    if (isa == ISA_AVX2)
        return rans_encode_avx2;
#endif
    (void)isa;
    return NULL;
}

static rans_decode_steps *decoder(int isa)
{
#ifdef CIERA_X86
    if (isa == ISA_AVX512)
        return rans_decode_avx512;
    if (isa == ISA_AVX2)
        return rans_decode_avx2;
#endif
    (void)isa;
    return NULL;
}

/* Bytes of scratch that ciera_rans_encode needs; rans_worst_bytes(n) do if n is less than a chunk. */
size_t ciera_rans_scratch_bytes(void)
{
    return rans_worst_bytes(RANS_CHUNK);
}

/* Codes n symbols as whole chunks (the last may be short), one behind the other: coded bytes, then states.
 *
 * Reads symbols [0, n). Writes out [0, room) at most, 8 bytes of directory a chunk, the escaped symbols to escapes
 * [0, n + RANS_PAD), and scratch. How many bytes of out are the chunks'; -1: they would be more than room, or the
 * table cannot code these symbols, and escape_count is undefined. */
int64_t ciera_rans_encode(int isa, const uint8_t *table, size_t table_bytes, const uint8_t *symbols, size_t n,
                          uint8_t *out, size_t room, uint8_t *directory, uint8_t *escapes, uint64_t *escape_count,
                          uint8_t *scratch)
{
    struct rans_model model;
    if (!rans_read_table(table, table_bytes, 8, &model))
        return -1;
    rans_encode_steps *whole_steps = encoder(isa);
    size_t used = 0;
    uint8_t *escape = escapes;
    for (size_t first = 0; first < n; first += RANS_CHUNK, directory += RANS_DIRECTORY_BYTES) {
        size_t count = n - first < RANS_CHUNK ? n - first : RANS_CHUNK;
        const uint8_t *chunk = symbols + first;
        unsigned lanes = rans_lanes(count);
        size_t steps = count / lanes;
        /* Straight to where it belongs, if even the worst case has room there. */
        int direct = room - used >= rans_worst_bytes(count);
        uint8_t *begin = direct ? out + used : scratch, *coded = begin, *first_escape = escape;
        uint16_t states[RANS_LANES];
        for (unsigned lane = 0; lane < RANS_LANES; ++lane)
            states[lane] = RANS_LEAST_STATE;
        rans_encode_lanes(&model, chunk + steps * lanes, (unsigned)(count % lanes), states, &coded, &escape);
        if (whole_steps && lanes >= RANS_UNIT)
            whole_steps(&model, chunk, steps, lanes, states, &coded, &escape);
        else
            while (steps-- > 0)
                rans_encode_lanes(&model, chunk + steps * lanes, lanes, states, &coded, &escape);
        rans_write32(directory, (uint32_t)(coded - begin));
        rans_write32(directory + 4, (uint32_t)(escape - first_escape));
        for (unsigned lane = 0; lane < lanes; ++lane) {
            *coded++ = (uint8_t)states[lane];
            *coded++ = (uint8_t)(states[lane] >> 8);
        }
        size_t bytes = (size_t)(coded - begin);
        if (room - used < bytes || (escape != first_escape && model.escape_slot == RANS_SLOTS))
            return -1;
        if (!direct)
            memcpy(out + used, begin, bytes);
        used += bytes;
    }
    *escape_count = (uint64_t)(escape - escapes);
    return (int64_t)used;
}

/* Decodes n symbols of whole chunks (the last may be short), as ciera_rans_encode wrote them.
 *
 * The chunks' bytes are coded [0, coded_bytes); `before` bytes before them may be read too. The directory holds 8
 * bytes a chunk. Escapes are [0, escape_count), and RANS_PAD bytes on either side may be read. Writes symbols [0, n)
 * at most. 0: done, and all of coded and escapes was used; -1: nobody coded this. */
int ciera_rans_decode(int isa, const uint8_t *table, size_t table_bytes, unsigned symbol_bits, const uint8_t *coded,
                      size_t coded_bytes, size_t before, const uint8_t *directory, const uint8_t *escapes,
                      size_t escape_count, uint8_t *symbols, size_t n)
{
    struct rans_model model;
    if (!table_bytes || rans_read_table(table, table_bytes, symbol_bits, &model) != table_bytes)
        return -1;
    rans_decode_steps *whole_steps = decoder(isa);
    const uint8_t *floor = coded - before;
    size_t used = 0, escaped = 0;
    for (size_t first = 0; first < n; first += RANS_CHUNK, directory += RANS_DIRECTORY_BYTES) {
        size_t count = n - first < RANS_CHUNK ? n - first : RANS_CHUNK;
        unsigned lanes = rans_lanes(count);
        size_t steps = count / lanes, step = 0;
        size_t bytes = rans_read32(directory), chunk_escapes = rans_read32(directory + 4);
        size_t left = coded_bytes - used;
        if (left < 2 * lanes || left - 2 * lanes < bytes || chunk_escapes > escape_count - escaped)
            return -1;
        const uint8_t *begin = coded + used, *at = begin + bytes;
        const uint8_t *escapes_begin = escapes + escaped, *escape = escapes_begin + chunk_escapes;
        uint16_t states[RANS_LANES];
        for (unsigned lane = 0; lane < lanes; ++lane)
            states[lane] = (uint16_t)(at[2 * lane] | at[2 * lane + 1] << 8);
        uint8_t *to = symbols + first;
        if (whole_steps && lanes >= RANS_UNIT)
            step = whole_steps(&model, to, steps, lanes, states, &at, floor, &escape, escapes_begin);
        for (; step < steps; ++step)
            if (rans_decode_lanes(&model, to + step * lanes, lanes, states, &at, begin, &escape, escapes_begin))
                return -1;
        if (rans_decode_lanes(&model, to + steps * lanes, (unsigned)(count % lanes), states, &at, begin, &escape,
                              escapes_begin))
            return -1;
        /* That all is used, and that the states end where the encoder's began, tells a changed payload from a good
         * one. */
        unsigned wrong = at != begin || escape != escapes_begin;
        for (unsigned lane = 0; lane < lanes; ++lane)
            wrong |= (unsigned)(states[lane] ^ RANS_LEAST_STATE);
        if (wrong)
            return -1;
        used += bytes + 2 * lanes;
        escaped += chunk_escapes;
    }
    return used == coded_bytes && escaped == escape_count ? 0 : -1;
}
