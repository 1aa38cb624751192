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
    RANS_LANES = 256,         /* most states of a chunk: so many hide the latency of a step */
    RANS_UNIT = 64,           /* lanes whose bytes, and escapes, lie in the order of the lanes */
    RANS_TABLE_BYTES = 31,    /* most bytes of a table on the wire: count, pairs of symbol and slots */
    RANS_DIRECTORY_BYTES = 8, /* of a chunk in the directory: coded bytes, escapes */
    RANS_PAD = 256            /* bytes beside a buffer that kernels may write or read, where a caller grants it */
};

/* A frequency table made ready for coding. Entries that the table does not use hold harmless values. */
struct rans_model {
    uint8_t index[256];               /* symbol to entry */
    uint8_t slot_symbol[RANS_SLOTS];  /* slot to symbol; 0 for the escape's */
    uint8_t slot_entry[RANS_SLOTS];   /* slot to entry */
    uint8_t symbol[RANS_ENTRIES];     /* entry to symbol; 0 for the escape */
    uint16_t slot_share[RANS_SLOTS];  /* slot to the number of its entry's slots */
    uint16_t slot_rank[RANS_SLOTS];   /* slot to its place among its entry's slots */
    uint16_t share[RANS_ENTRIES];     /* slots of an entry, 1 to 63 */
    uint16_t start[RANS_ENTRIES];     /* first slot of an entry */
    uint16_t reciprocal[RANS_ENTRIES]; /* floor(65535 / share) */
    uint32_t inverse[RANS_ENTRIES];   /* ceil(2^26 / share) */
    unsigned entries;                 /* without the escape */
    unsigned escape_slot;             /* the escape's first; 64 if there is no escape */
};

/* Reads a table from the wire: its bytes, at most `room`. 0: there is no table for such symbols; model is undefined. */
size_t rans_read_table(const uint8_t *wire, size_t room, unsigned symbol_bits, struct rans_model *model);

/* log2(value) in 2^-16 bits, rounded down; only integers, so that every machine makes the same tables and choices. */
uint32_t rans_log2(uint64_t value);

/* Kinds of streams, their first bytes; and that of a plan that is not made yet. */
enum { RANS_KIND_RAW = 0, RANS_KIND_CONSTANT = 1, RANS_KIND_RANS = 2, RANS_KIND_SPARSE = 3, RANS_KIND_NONE = 255 };

enum {
    RANS_MOST_DEPTH = 8,   /* streams in streams; deeper ones are raw or constant */
    RANS_SPARSE_BYTES = 6, /* of a sparse stream before its inner ones: kind, usual symbol, bytes of the first */
    RANS_WRONG = -1,       /* results of functions */
    RANS_TOO_WIDE = -2,
    RANS_NO_MEMORY = -3
};

/* How to code a stream: with a table, or sparse with a usual symbol, or raw. Known to rans.py. */
struct rans_plan {
    uint8_t kind, usual, table_bytes, table[RANS_TABLE_BYTES];
};

/* Most bytes of a stream: those of a raw one. */
static inline size_t rans_bound(size_t symbols, unsigned symbol_bits)
{
    return symbols ? 1 + symbols / 8 * symbol_bits + (symbols % 8 * symbol_bits + 7) / 8 : 0;
}

/* Most bytes that a chunk can take, and what may be written behind it while it is coded. */
static inline size_t rans_worst_bytes(size_t symbols)
{
    return symbols + 2 * RANS_LANES + RANS_PAD;
}

/* The plan for these symbols. `any`: its table must serve symbols, too, that were not counted. */
void rans_make_plan(const uint8_t *symbols, size_t n, unsigned symbol_bits, int any, struct rans_plan *plan);

/* Whether the plan serves these symbols about as well as their own would; by a sample. */
int rans_plan_fits(const struct rans_plan *plan, const uint8_t *symbols, size_t n, unsigned symbol_bits);

/* Whether it can code every symbol: its table, if it has one, has an escape. */
int rans_plan_serves_any(const struct rans_plan *plan);

/* The symbols that the plan names, or-ed together. */
unsigned rans_plan_symbols(const struct rans_plan *plan);

/* Counts the first `piece` of every `stride` of n symbols, all if stride is not more, and adds to counts. */
void ciera_rans_count(const uint8_t *symbols, size_t n, size_t piece, size_t stride, uint64_t counts[256]);

/* The other exported functions; each says above its body what it reads and writes. */
size_t ciera_rans_build_table(const uint64_t counts[256], int any, uint8_t *wire);
uint64_t ciera_rans_cost(const uint64_t counts[256], const uint8_t *wire, size_t wire_bytes);
int ciera_rans_constant(const uint8_t *symbols, size_t n);
unsigned ciera_rans_pack5(const uint8_t *symbols, size_t n, uint8_t *out);
unsigned ciera_rans_unpack5(const uint8_t *packed, size_t n, uint8_t *symbols);
size_t ciera_rans_split_sparse(int isa, const uint8_t *symbols, size_t n, uint8_t usual, uint8_t *bits,
                               uint8_t *others);
int ciera_rans_merge_sparse(int isa, const uint8_t *bits, size_t n, uint8_t usual, const uint8_t *others, size_t count,
                            uint8_t *symbols);
size_t ciera_rans_scratch_bytes(void);
int64_t ciera_rans_encode(int isa, const uint8_t *table, size_t table_bytes, const uint8_t *symbols, size_t n,
                          uint8_t *out, size_t room, uint8_t *directory, uint8_t *escapes, uint64_t *escape_count,
                          uint8_t *scratch);
int ciera_rans_decode(int isa, const uint8_t *table, size_t table_bytes, unsigned symbol_bits, const uint8_t *coded,
                      size_t coded_bytes, size_t before, const uint8_t *directory, const uint8_t *escapes,
                      size_t escape_count, uint8_t *symbols, size_t n);
int64_t ciera_rans_encode_stream(int isa, const uint8_t *symbols, size_t n, unsigned symbol_bits, uint8_t *out,
                                 struct rans_plan *kept, unsigned depth);
int ciera_rans_decode_stream(int isa, const uint8_t *coded, size_t bytes, unsigned symbol_bits, uint8_t *symbols,
                             size_t n, unsigned depth);

/* Lanes of a chunk of so many symbols. */
static inline unsigned rans_lanes(size_t symbols)
{
    return symbols < (1u << 15) ? 8 : symbols < (1u << 17) ? RANS_UNIT : RANS_LANES;
}

/* One step for `lanes` symbols by plain C. Coded bytes and escapes grow upwards from where they point. */
void rans_encode_lanes(const struct rans_model *model, const uint8_t *symbols, unsigned lanes,
                       uint16_t states[RANS_LANES], uint8_t **coded, uint8_t **escapes);

/* The inverse: takes bytes from below *coded down to coded_begin, escapes likewise. 0, or -1: they are used up.
 * Reads escapes from RANS_PAD bytes below escapes_begin. */
int rans_decode_lanes(const struct rans_model *model, uint8_t *symbols, unsigned lanes, uint16_t states[RANS_LANES],
                      const uint8_t **coded, const uint8_t *coded_begin, const uint8_t **escapes,
                      const uint8_t *escapes_begin);

/* Many whole steps of RANS_UNIT or RANS_LANES lanes, last step first. Reads the steps' symbols; writes coded bytes and
 * escapes upwards, and up to RANS_PAD bytes behind the last of either. */
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
