/* The rANS coder's sizes, tables and the calls between its files. The format is described in ../rans/__init__.py. */
#ifndef CIERA_RANS_H
#define CIERA_RANS_H

#include <stddef.h>
#include <stdint.h>

#include "isa.h"

enum {
    RANS_ENTRIES = 16,        /* of a frequency table: up to 15 symbols, and the escape, which is the last */
    RANS_ESCAPE = 15,         /* index of the escape among the entries */
    RANS_SLOTS = 64,          /* that a table's entries share; a state's low six bits are a slot */
    RANS_SLOT_BITS = 6,
    RANS_LEAST_STATE = 256,   /* states lie in [2^8, 2^16) between steps */
    RANS_CHUNK = 1 << 18,     /* symbols that are coded with states of their own; the last chunk may be short */
    RANS_LANES = 128,         /* most states of a chunk */
    RANS_UNIT = 64,           /* lanes whose bytes, and escapes, lie in the order of the lanes */
    RANS_TABLE_BYTES = 31,    /* most bytes of a table on the wire: count, pairs of symbol and slots */
    RANS_DIRECTORY_BYTES = 8, /* of a chunk in the directory: coded bytes, escapes */
    RANS_PAD = 128            /* bytes beside a buffer that kernels may write or read, where a caller grants it */
};

/* A frequency table made ready for coding. Entries that the table does not use hold harmless values. */
struct rans_model {
    uint8_t index[256];               /* symbol to entry */
    uint8_t slot_symbol[RANS_SLOTS];  /* slot to symbol; 0 for the escape's */
    uint16_t slot_share[RANS_SLOTS];  /* slot to the number of its entry's slots */
    uint16_t slot_rank[RANS_SLOTS];   /* slot to its place among its entry's slots */
    uint16_t share[RANS_ENTRIES];     /* slots of an entry, 1 to 63 */
    uint16_t start[RANS_ENTRIES];     /* first slot of an entry */
    uint16_t reciprocal[RANS_ENTRIES]; /* floor(65535 / share) */
    uint32_t inverse[RANS_ENTRIES];   /* ceil(2^26 / share) */
    unsigned escape_slot;             /* the escape's first; 64 if there is no escape */
};

/* Reads a table from the wire: its bytes, at most `room`. 0: what lies there is no table for such symbols. */
size_t rans_read_table(const uint8_t *wire, size_t room, unsigned symbol_bits, struct rans_model *model);

/* Lanes of a chunk of so many symbols. */
static inline unsigned rans_lanes(size_t symbols)
{
    return symbols < (1u << 15) ? 8 : symbols < (1u << 16) ? 64 : 128;
}

/* One step for `lanes` symbols by plain C, lane by lane. Coded bytes and escapes grow upwards from where they point. */
void rans_encode_lanes(const struct rans_model *model, const uint8_t *symbols, unsigned lanes,
                       uint16_t states[RANS_LANES], uint8_t **coded, uint8_t **escapes);

/* The inverse: takes bytes from below *coded down to coded_begin, escapes likewise. 0, or -1: they are used up. */
int rans_decode_lanes(const struct rans_model *model, uint8_t *symbols, unsigned lanes, uint16_t states[RANS_LANES],
                      const uint8_t **coded, const uint8_t *coded_begin, const uint8_t **escapes,
                      const uint8_t *escapes_begin);

/* Many whole steps of 64 or 128 lanes, last step first. Reads the steps' symbols; writes coded bytes and escapes
 * upwards, and up to RANS_PAD bytes behind the last of either. */
typedef void rans_encode_steps(const struct rans_model *model, const uint8_t *symbols, size_t steps, unsigned lanes,
                               uint16_t states[RANS_LANES], uint8_t **coded, uint8_t **escapes);

/* The inverse, first step first; how many steps were done. Ends early where less than `lanes` bytes are left above
 * coded_floor, or with *escapes below escapes_begin, where there are too few. Reads from coded_floor up to 64 bytes
 * behind *coded, escapes from RANS_PAD bytes below escapes_begin up to 64 behind *escapes. */
typedef size_t rans_decode_steps(const struct rans_model *model, uint8_t *symbols, size_t steps, unsigned lanes,
                                 uint16_t states[RANS_LANES], const uint8_t **coded, const uint8_t *coded_floor,
                                 const uint8_t **escapes, const uint8_t *escapes_begin);

#ifdef CIERA_X86
rans_encode_steps rans_encode_avx2, rans_encode_avx512;
rans_decode_steps rans_decode_avx2, rans_decode_avx512;
#endif

static inline uint32_t rans_read32(const uint8_t *at)
{
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static inline void rans_write32(uint8_t *at, uint32_t value)
{
    for (unsigned byte = 0; byte < 4; ++byte)
        at[byte] = (uint8_t)(value >> 8 * byte);
}

#endif
