/* The segments of a shard coded into its payload, and what a sender then keeps of them. */
#include <string.h>

#include "kernel_table.h"
#include "planes.h"
#include "segments.h"
#include "word.h"

/* Flags, 0 or 1, to bits; how many are set. Unused bits of the last byte are zero. */
static size_t write_bitmap(const uint8_t *flags, size_t blocks, uint8_t *bitmap)
{
    size_t set = 0;
    for (size_t at = 0; at < blocks; at += 8) {
        uint64_t eight = read_word(flags + at, blocks - at < 8 ? blocks - at : 8);
        /* Flag i of eight comes to bit 56 + i, and none to another's place; then their sum to the top. */
        bitmap[at / 8] = (uint8_t)(eight * UINT64_C(0x0102040810204080) >> 56);
        set += eight * EVERY_BYTE(1) >> 56;
    }
    return set;
}

static void clear(uint8_t *begin, const uint8_t *end)
{
    memset(begin, 0, (size_t)(end - begin));
}

static void write_record(const struct ciera_segment *segment, uint8_t *record)
{
    uint64_t words[4] = {segment->checksum, segment->changed_blocks | segment->coding << 32,
                         segment->coded_bytes, 0};
    words[3] = segment_check(words);
    memcpy(record, words, sizeof words);
}

/* Codes one segment; bytes of its exponents, or an error of the coder. */
static int64_t encode(int isa, int type, size_t block, int coding, struct ciera_segment *segment,
                      const block_tables *tables, const uint8_t *values, uint8_t *fixed, uint8_t *variable)
{
    const kernel_table *kernels = planes_kernels(isa, type);
    size_t n = segment->values, blocks = segment_blocks(segment, block), bitmap = (blocks + 7) / 8;
    uint8_t *first = fixed + segment_aligned(bitmap), *second = first + n, *end = second + second_bytes(type, n);
    int stream = (size_t)(end - first) >= SEGMENT_STREAM_BYTES;
    if (coding == CODING_BLOCK)
        segment->checksum = kernels->scan_hashed(values, n, block, 0, tables, segment->hashes, segment->new_hashes,
                                                 first, second, segment->changed, stream);
    else
        segment->checksum = kernels->scan_exact(values, n, block, 0, tables, segment->exponents, first, second,
                                                segment->changed, stream);
    size_t changed = write_bitmap(segment->changed, blocks, fixed);
    clear(fixed + bitmap, first);
    clear(end, first + segment_aligned((size_t)(end - first)));
    segment->changed_blocks = changed;
    segment->symbol_count = segment_symbols(segment, block, segment->changed, changed);
    segment->coding = coding == CODING_BLOCK ? CODING_BLOCK : CODING_DELTA;
    segment->coded_bytes = 0;
    if (!changed)
        return 0;
    if (coding == CODING_AUTO)
        segment->coding = (uint64_t)segment_smaller_coding(isa, type, block, n, values, segment->exponents,
                                                           segment->changed, changed, segment->symbols);
    ciera_planes_collect(isa, type, values, n, block, segment->changed,
                         segment->coding == CODING_DELTA ? segment->exponents : NULL, segment->symbols);
    int64_t size = ciera_rans_encode_stream(isa, segment->symbols, segment->symbol_count, exponent_bits(type), variable,
                                            &segment->plans[segment->coding], 0);
    segment->coded_bytes = size < 0 ? 0 : (uint64_t)size;
    return size;
}

size_t ciera_segments_struct_bytes(void)
{
    return sizeof(struct ciera_segment);
}

/* Bytes that an encode remembers until it is committed; more than a decode uses. */
uint64_t ciera_segments_scratch_bytes(const struct ciera_segment *segments, size_t count, size_t block)
{
    uint64_t bytes = 0;
    for (size_t at = 0; at < count; ++at)
        if (!segments[at].plain)
            bytes += segment_blocks(&segments[at], block) + segments[at].values;
    return bytes;
}

/* Codes all segments.
 *
 * Reads the shard's values. Writes the records (32 bytes a coded segment), the fixed and plain areas of the payload,
 * and variable [0, sum of the bounds, each aligned) at most; and `found` [0, ciera_segments_scratch_bytes), which must
 * stay as it is until the commit. What is kept of the segments does not change, but for their plans.
 * Bytes of the variable area; negative: an error of ciera_rans_encode_stream. */
int64_t ciera_segments_encode(int isa, int type, size_t block, int coding, struct ciera_segment *segments, size_t count,
                              const uint8_t *values, uint8_t *records, uint8_t *payload, uint8_t *variable,
                              uint8_t *found)
{
    block_tables tables;
    fill_tables(&tables, block, value_bytes(type));
    size_t used = 0;
    for (size_t at = 0; at < count; ++at) {
        struct ciera_segment *segment = &segments[at];
        const uint8_t *from = values + segment->first * value_bytes(type);
        if (segment->plain) {
            if (segment->values)
                memcpy(payload + segment->fixed, from, segment->values * value_bytes(type));
            continue;
        }
        segment->changed = found;
        segment->symbols = found + segment_blocks(segment, block);
        int64_t size = encode(isa, type, block, coding, segment, &tables, from, payload + segment->fixed,
                              variable + used);
        if (size < 0)
            return size;
        /* Symbols of unchanged segments take no room, so that what is used stays in the cache. */
        found = segment->symbols + segment->symbol_count;
        clear(variable + used + size, variable + used + segment_aligned((size_t)size));
        used += segment_aligned((size_t)size);
        write_record(segment, records);
        records += SEGMENT_RECORD_BYTES;
    }
    return (int64_t)used;
}

/* What was encoded has arrived: the segments keep it. */
void ciera_segments_commit(int isa, int type, size_t block, int coding, struct ciera_segment *segments, size_t count)
{
    for (size_t at = 0; at < count; ++at) {
        struct ciera_segment *segment = &segments[at];
        if (segment->plain)
            continue;
        if (coding == CODING_BLOCK) {
            uint8_t *hashes = segment->hashes;
            segment->hashes = segment->new_hashes;
            segment->new_hashes = hashes;
        } else if (segment->symbol_count) {
            ciera_planes_apply(isa, type, segment->symbols, segment->values, block, segment->changed,
                               segment->coding == CODING_DELTA, segment->exponents);
        }
    }
}

/* Bytes of scratch for a refresh: of the largest sign and mantissa plane. */
uint64_t ciera_segments_refresh_bytes(int type, const struct ciera_segment *segments, size_t count)
{
    uint64_t most = 0;
    for (size_t at = 0; at < count; ++at) {
        uint64_t bytes = segments[at].values + second_bytes(type, segments[at].values);
        if (!segments[at].plain && bytes > most)
            most = bytes;
    }
    return most;
}

/* The segments keep these values of a shard. `coding`: CODING_BLOCK for what keeps hashes. */
void ciera_segments_refresh(int isa, int type, size_t block, int coding, struct ciera_segment *segments, size_t count,
                            const uint8_t *values, uint8_t *scratch)
{
    for (size_t at = 0; at < count; ++at) {
        const struct ciera_segment *segment = &segments[at];
        const uint8_t *from = values + segment->first * value_bytes(type);
        if (segment->plain)
            continue;
        if (coding == CODING_BLOCK)
            ciera_planes_hash(isa, type, from, segment->values, block, segment->hashes);
        else
            ciera_planes_split(isa, type, from, segment->values, segment->exponents, scratch,
                               scratch + segment->values, 0);
    }
}
