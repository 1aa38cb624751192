/* All segments of one rank's shard in one call: to its payload, and back. ../segments.py has the same, one by one.
 *
 * isa, type, block, stream of bytes: as in planes.h. A payload lies in memory as ../payload.py says. Nothing is kept
 * between calls but what the segments hold: any thread may call at any time, for segments of its own. */
#ifndef CIERA_SEGMENTS_H
#define CIERA_SEGMENTS_H

#include <stddef.h>
#include <stdint.h>

#include "mix.h"
#include "rans.h"

enum {
    SEGMENT_ALIGNMENT = 16,
    SEGMENT_RECORD_BYTES = 32,
    SEGMENT_STREAM_BYTES = 8 << 20 /* planes.py says why */
};

/* How exponents are coded, on the wire and as a sender's setting; the last one is a setting alone. */
enum { CODING_BLOCK = 0, CODING_DELTA = 1, CODING_AUTO = 2 };

/* A segment, on the sender's or on a receiver's side. Known to segments.py. */
struct ciera_segment {
    uint64_t values;
    uint64_t first;       /* values of the shard before it */
    uint64_t fixed;       /* bytes of the payload before its fixed area, or before its plain bytes */
    uint64_t plain;       /* not 0: travels as it is; of what follows, nothing is used */
    uint64_t bound;       /* most bytes of its coded exponents */
    uint8_t *exponents;   /* its exponent plane as receivers have it; not of a sender that keeps hashes */
    uint8_t *hashes;      /* 16 bytes a block, of a sender that keeps them; and those of the last encode */
    uint8_t *new_hashes;
    uint8_t *changed;     /* what the last encode found: a flag a block, and the changed blocks' symbols */
    uint8_t *symbols;
    uint64_t checksum;
    uint64_t coding;
    uint64_t changed_blocks;
    uint64_t symbol_count;
    uint64_t coded_bytes;
    struct rans_plan plans[2]; /* of a sender, by coding */
};

/* What is wrong with a payload: results of ciera_segments_decode, known to segments.py. */
enum {
    SEGMENT_RECORD_CHANGED = 1,
    SEGMENT_UNKNOWN_CODING,
    SEGMENT_TOO_LARGE,
    SEGMENT_WRONG_TOTAL,
    SEGMENT_NO_SUCH_BLOCK,
    SEGMENT_WRONG_BLOCKS,
    SEGMENT_BYTES_FOR_NOTHING,
    SEGMENT_WRONG_CODE,
    SEGMENT_WRONG_VALUES,
    SEGMENT_NO_MEMORY
};

/* Where that is. */
struct ciera_segment_fault {
    uint64_t segment, found, expected;
};

size_t ciera_segments_struct_bytes(void);
uint64_t ciera_segments_scratch_bytes(const struct ciera_segment *segments, size_t count, size_t block);
uint64_t ciera_segments_refresh_bytes(int type, const struct ciera_segment *segments, size_t count);
int64_t ciera_segments_encode(int isa, int type, size_t block, int coding, struct ciera_segment *segments, size_t count,
                              const uint8_t *values, uint8_t *records, uint8_t *payload, uint8_t *variable,
                              uint8_t *found);
void ciera_segments_commit(int isa, int type, size_t block, int coding, struct ciera_segment *segments, size_t count);
void ciera_segments_refresh(int isa, int type, size_t block, int coding, struct ciera_segment *segments, size_t count,
                            const uint8_t *values, uint8_t *scratch);
int ciera_segments_decode(int isa, int type, size_t block, const struct ciera_segment *segments, size_t count,
                          const uint8_t *records, const uint8_t *payload, const uint8_t *variable,
                          size_t variable_bytes, uint8_t *values, uint8_t *scratch, struct ciera_segment_fault *fault);

/* Which coding of the changed blocks (one at least) is smaller, by a sample of them (mode_choice.py). Writes to
 * `symbols`, which has room for all symbols of the changed blocks. */
int segment_smaller_coding(int isa, int type, size_t block, size_t values_count, const uint8_t *values,
                           const uint8_t *previous, const uint8_t *changed, size_t changed_blocks, uint8_t *symbols);

/* The check that ends a record, of the words before it (chained in payload.py). */
static inline uint64_t segment_check(const uint64_t words[3])
{
    uint64_t check = 0;
    for (unsigned at = 0; at < 3; ++at)
        check = mix((check ^ words[at]) + GAMMA);
    return check;
}

static inline size_t segment_aligned(size_t bytes)
{
    return (bytes + SEGMENT_ALIGNMENT - 1) / SEGMENT_ALIGNMENT * SEGMENT_ALIGNMENT;
}

static inline size_t segment_blocks(const struct ciera_segment *segment, size_t block)
{
    return (segment->values + block - 1) / block;
}

/* Values in the changed blocks, of which there are `count`; the last block may be short. */
static inline size_t segment_symbols(const struct ciera_segment *segment, size_t block, const uint8_t *changed,
                                     size_t count)
{
    size_t blocks = segment_blocks(segment, block);
    return count && changed[blocks - 1] ? count * block - (blocks * block - segment->values) : count * block;
}

#endif
