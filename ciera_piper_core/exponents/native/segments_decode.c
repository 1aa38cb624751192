/* The segments of a shard rebuilt from its payload. Whatever the payload holds, nothing outside of the arrays given is
 * touched. */
#include <string.h>

#include "kernel_table.h"
#include "planes.h"
#include "segments.h"
#include "word.h"

/* A record as it lies in the payload. */
struct record {
    uint64_t checksum, changed_blocks, coding, coded_bytes;
};

/* Reads a record; 0, or what is wrong with it. */
static int read_record(const uint8_t *bytes, const struct ciera_segment *segment, struct record *record,
                       struct ciera_segment_fault *fault)
{
    uint64_t words[4];
    memcpy(words, bytes, sizeof words);
    if (words[3] != segment_check(words))
        return SEGMENT_RECORD_CHANGED;
    *record = (struct record){words[0], words[1] & UINT32_MAX, words[1] >> 32, words[2]};
    fault->found = record->coding;
    if (record->coding > CODING_DELTA)
        return SEGMENT_UNKNOWN_CODING;
    fault->found = record->coded_bytes;
    fault->expected = segment->bound;
    return record->coded_bytes > segment->bound ? SEGMENT_TOO_LARGE : 0;
}

/* That all records are sound and their sizes add up, before anything follows from them. */
static int check_records(const struct ciera_segment *segments, size_t count, const uint8_t *records,
                         size_t variable_bytes, struct ciera_segment_fault *fault)
{
    uint64_t total = 0; /* at most the sum of the bounds */
    for (size_t at = 0; at < count; ++at) {
        struct record record;
        if (segments[at].plain)
            continue;
        fault->segment = at;
        int wrong = read_record(records, &segments[at], &record, fault);
        if (wrong)
            return wrong;
        total += segment_aligned(record.coded_bytes);
        records += SEGMENT_RECORD_BYTES;
    }
    fault->found = total;
    fault->expected = variable_bytes;
    return total == variable_bytes ? 0 : SEGMENT_WRONG_TOTAL;
}

/* Bits to flags; how many are set. */
static size_t read_bitmap(const uint8_t *bitmap, size_t blocks, uint8_t *flags)
{
    size_t set = 0;
    for (size_t at = 0; at < blocks; ++at) {
        flags[at] = bitmap[at / 8] >> at % 8 & 1;
        set += flags[at];
    }
    return set;
}

/* Brings a segment's kept exponents to the sender's; 0, or what is wrong. */
static int update(int isa, int type, size_t block, const struct ciera_segment *segment, const struct record *record,
                  const uint8_t *bitmap, const uint8_t *variable, uint8_t *scratch, struct ciera_segment_fault *fault)
{
    size_t blocks = segment_blocks(segment, block);
    fault->found = blocks % 8 ? bitmap[blocks / 8] >> blocks % 8 : 0;
    fault->expected = 0;
    if (fault->found)
        return SEGMENT_NO_SUCH_BLOCK;
    uint8_t *changed = scratch, *symbols = scratch + blocks;
    size_t set = read_bitmap(bitmap, blocks, changed), count = segment_symbols(segment, block, changed, set);
    fault->found = set;
    fault->expected = record->changed_blocks;
    if (set != record->changed_blocks)
        return SEGMENT_WRONG_BLOCKS;
    fault->found = record->coded_bytes;
    fault->expected = count;
    if (!count)
        return record->coded_bytes ? SEGMENT_BYTES_FOR_NOTHING : 0;
    int failed = ciera_rans_decode_stream(isa, variable, record->coded_bytes, exponent_bits(type), symbols, count, 0);
    if (failed)
        return failed == RANS_WRONG ? SEGMENT_WRONG_CODE : SEGMENT_NO_MEMORY;
    ciera_planes_apply(isa, type, symbols, segment->values, block, changed, record->coding == CODING_DELTA,
                       segment->exponents);
    return 0;
}

/* Rebuilds all segments, and keeps their exponents.
 *
 * Reads the records, the fixed and plain areas of the payload, and variable [0, variable_bytes). Writes the shard's
 * values; and `scratch` [0, ciera_segments_scratch_bytes) at most. 0; or what is wrong, and `fault` says where: then
 * values and kept exponents are undefined. */
int ciera_segments_decode(int isa, int type, size_t block, const struct ciera_segment *segments, size_t count,
                          const uint8_t *records, const uint8_t *payload, const uint8_t *variable,
                          size_t variable_bytes, uint8_t *values, uint8_t *scratch, struct ciera_segment_fault *fault)
{
    const kernel_table *kernels = planes_kernels(isa, type);
    block_tables tables;
    int wrong = check_records(segments, count, records, variable_bytes, fault);
    if (wrong)
        return wrong;
    fill_tables(&tables, block, value_bytes(type));
    for (size_t at = 0; at < count; ++at) {
        const struct ciera_segment *segment = &segments[at];
        const uint8_t *fixed = payload + segment->fixed;
        uint8_t *to = values + segment->first * value_bytes(type);
        size_t n = segment->values;
        if (segment->plain) {
            if (n)
                memcpy(to, fixed, n * value_bytes(type));
            continue;
        }
        struct record record;
        fault->segment = at;
        wrong = read_record(records, segment, &record, fault);
        if (!wrong)
            wrong = update(isa, type, block, segment, &record, fixed, variable, scratch, fault);
        if (wrong)
            return wrong;
        const uint8_t *first = fixed + segment_aligned((segment_blocks(segment, block) + 7) / 8);
        fault->found = kernels->merge_checked(segment->exponents, first, first + n, n, block, 0, &tables, to,
                                              n * value_bytes(type) >= SEGMENT_STREAM_BYTES);
        fault->expected = record.checksum;
        if (fault->found != fault->expected)
            return SEGMENT_WRONG_VALUES;
        variable += segment_aligned(record.coded_bytes);
        records += SEGMENT_RECORD_BYTES;
    }
    return 0;
}
