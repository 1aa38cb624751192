/* Codes and decodes whole shards, from payloads as they were made and from changed ones: the same bytes and the same
 * verdict at every instruction level, right values or an error, and no access beside the buffers. Arguments: how many
 * shards, and the seed. */
#include "guarded.h"

#include "isa.h"
#include "kernel_table.h"
#include "planes.h"
#include "segments.h"
#include "word.h"

enum { VALUES, PAYLOAD, VARIABLE, RECORDS, FOUND, STATE, OUT, SCRATCH };
enum { MOST_SEGMENTS = 5, MOST_VALUES = 3000, MOST_BYTES = MOST_SEGMENTS * MOST_VALUES * 8 + 4096 };

/* A shard, and what was made of it at level 0. */
struct shard {
    struct ciera_segment segments[MOST_SEGMENTS];
    size_t count, values, fixed_bytes, variable_bound, records_bytes, state_bytes, found_bytes;
    int type, coding;
    size_t block;
};

static size_t state_of(const struct shard *shard, const struct ciera_segment *segment, int coding)
{
    return coding == CODING_BLOCK ? 16 * segment_blocks(segment, shard->block)
                                  : exponent_bytes(shard->type, segment->values);
}

static void draw_shard(struct shard *shard, uint64_t *seed)
{
    static const size_t blocks[] = {64, 128, 256, 512, 1024};
    memset(shard, 0, sizeof *shard);
    shard->type = 1 + (int)(drawn(seed) % 3);
    shard->coding = (int)(drawn(seed) % 3);
    shard->block = blocks[drawn(seed) % 5];
    shard->count = 1 + drawn(seed) % MOST_SEGMENTS;
    for (size_t at = 0; at < shard->count; ++at) {
        struct ciera_segment *segment = &shard->segments[at];
        uint64_t kind = drawn(seed) % 8;
        segment->values = kind == 0 ? 0 : kind == 1 ? 64 * (drawn(seed) % 20) : drawn(seed) % MOST_VALUES;
        segment->plain = drawn(seed) % 4 == 0;
        segment->first = shard->values;
        segment->fixed = shard->fixed_bytes;
        shard->values += segment->values;
        if (segment->plain) {
            shard->fixed_bytes += segment_aligned(segment->values * value_bytes(shard->type));
            continue;
        }
        segment->bound = rans_bound(segment->values, exponent_bits(shard->type));
        shard->variable_bound += segment_aligned(segment->bound);
        shard->records_bytes += SEGMENT_RECORD_BYTES;
        shard->fixed_bytes += segment_aligned((segment_blocks(segment, shard->block) + 7) / 8) +
                              segment_aligned(segment->values + second_bytes(shard->type, segment->values));
        segment->plans[0].kind = segment->plans[1].kind = RANS_KIND_NONE;
    }
    shard->found_bytes = ciera_segments_scratch_bytes(shard->segments, shard->count, shard->block);
}

/* Gives each segment its place in the kept state; bytes of one set. */
static size_t place_state(const struct shard *shard, struct ciera_segment *segments, uint8_t *state, int coding,
                          uint8_t *second_set)
{
    size_t used = 0;
    for (size_t at = 0; at < shard->count; ++at) {
        if (segments[at].plain)
            continue;
        if (coding == CODING_BLOCK) {
            segments[at].hashes = state ? state + used : NULL;
            segments[at].new_hashes = second_set ? second_set + used : NULL;
        } else {
            segments[at].exponents = state ? state + used : NULL;
        }
        used += state_of(shard, &segments[at], coding);
    }
    return used;
}

static void draw_values(const struct shard *shard, uint8_t *before, uint8_t *now, uint64_t *seed)
{
    size_t width = value_bytes(shard->type), bytes = shard->values * width;
    uint64_t rate = drawn(seed) % 4; /* of changes: none, few, many, all */
    for (size_t at = 0; at < bytes; ++at) {
        /* Upper bytes as those of weights: few exponents. */
        int upper = at % width == width - 1;
        before[at] = (uint8_t)(upper ? 0x3c + drawn(seed) % 3 + (drawn(seed) & 0x80) : drawn(seed));
        uint64_t random = drawn(seed);
        int changes = rate == 3 || (rate == 2 && random % 8 == 0) || (rate == 1 && random % 400 == 0);
        now[at] = changes ? (uint8_t)(before[at] ^ (upper ? 1 + random / 400 % 3 : random >> 20)) : before[at];
    }
}

/* Codes at one level; the payload, records and coded bytes go to `made`. Bytes of the variable area. */
static size_t encode(const struct shard *shard, int isa, enum placement placement, const uint8_t *before,
                     const uint8_t *now, uint8_t *made)
{
    struct ciera_segment segments[MOST_SEGMENTS];
    memcpy(segments, shard->segments, sizeof segments);
    size_t width = value_bytes(shard->type), values_bytes = shard->values * width;
    size_t set = place_state(shard, segments, NULL, shard->coding, NULL);
    uint8_t *state = placed(STATE, placement, 2 * set, 3);
    place_state(shard, segments, state, shard->coding, state + set);
    size_t scratch_bytes = ciera_segments_refresh_bytes(shard->type, segments, shard->count);
    uint8_t *values = placed_copy(VALUES, placement, before, values_bytes, 2);
    uint8_t *scratch = placed(SCRATCH, placement, scratch_bytes, 1);
    ciera_segments_refresh(isa, shard->type, shard->block, shard->coding, segments, shard->count, values, scratch);
    released(SCRATCH);
    released(VALUES);
    values = placed_copy(VALUES, placement, now, values_bytes, 6);
    uint8_t *payload = placed(PAYLOAD, placement, shard->fixed_bytes, 0);
    uint8_t *variable = placed(VARIABLE, placement, shard->variable_bound, 0);
    uint8_t *records = placed(RECORDS, placement, shard->records_bytes, 0);
    uint8_t *found = placed(FOUND, placement, shard->found_bytes, 5);
    int64_t used = ciera_segments_encode(isa, shard->type, shard->block, shard->coding, segments, shard->count, values,
                                         records, payload, variable, found);
    REQUIRE(used >= 0 && (size_t)used <= shard->variable_bound, "%lld bytes", (long long)used);
    REQUIRE(!values_bytes || !memcmp(values, now, values_bytes), "values were changed");
    ciera_segments_commit(isa, shard->type, shard->block, shard->coding, segments, shard->count);
    memcpy(made, payload, shard->fixed_bytes);
    memcpy(made + shard->fixed_bytes, records, shard->records_bytes);
    memcpy(made + shard->fixed_bytes + shard->records_bytes, variable, (size_t)used);
    /* What was committed is the base: coded again, nothing has changed. */
    int64_t again = ciera_segments_encode(isa, shard->type, shard->block, shard->coding, segments, shard->count, values,
                                          records, payload, variable, found);
    REQUIRE(again == 0, "%lld bytes after a commit", (long long)again);
    for (int slot = VALUES; slot <= STATE; ++slot)
        released(slot);
    return (size_t)used;
}

/* Decodes at one level into `out`; the verdict. */
static int decode(const struct shard *shard, int isa, enum placement placement, const uint8_t *before,
                  const uint8_t *made, size_t variable_bytes, uint8_t *out)
{
    struct ciera_segment segments[MOST_SEGMENTS];
    memcpy(segments, shard->segments, sizeof segments);
    struct ciera_segment_fault fault;
    size_t values_bytes = shard->values * value_bytes(shard->type);
    uint8_t *state = placed(STATE, placement, place_state(shard, segments, NULL, CODING_DELTA, NULL), 7);
    place_state(shard, segments, state, CODING_DELTA, NULL);
    size_t scratch_bytes = ciera_segments_refresh_bytes(shard->type, segments, shard->count);
    uint8_t *values = placed_copy(VALUES, placement, before, values_bytes, 2);
    uint8_t *scratch = placed(SCRATCH, placement, scratch_bytes, 1);
    ciera_segments_refresh(isa, shard->type, shard->block, CODING_DELTA, segments, shard->count, values, scratch);
    released(SCRATCH);
    released(VALUES);
    const uint8_t *records_from = made + shard->fixed_bytes, *variable_from = records_from + shard->records_bytes;
    uint8_t *payload = placed_copy(PAYLOAD, placement, made, shard->fixed_bytes, 0);
    uint8_t *records = placed_copy(RECORDS, placement, records_from, shard->records_bytes, 0);
    uint8_t *variable = placed_copy(VARIABLE, placement, variable_from, variable_bytes, 0);
    uint8_t *to = placed(OUT, placement, values_bytes, 4);
    scratch = placed(SCRATCH, placement, shard->found_bytes, 1);
    int wrong = ciera_segments_decode(isa, shard->type, shard->block, segments, shard->count, records, payload,
                                      variable, variable_bytes, to, scratch, &fault);
    REQUIRE(wrong >= 0 && wrong < SEGMENT_NO_MEMORY, "%d", wrong);
    if (values_bytes)
        memcpy(out, to, values_bytes);
    for (int slot = PAYLOAD; slot <= RECORDS; ++slot)
        released(slot);
    for (int slot = STATE; slot <= SCRATCH; ++slot)
        released(slot);
    return wrong;
}

/* Gives a record that was changed a check that fits, so that what it says is looked at. */
static void check_again(uint8_t *record)
{
    uint64_t words[4];
    memcpy(words, record, sizeof words);
    words[3] = segment_check(words);
    memcpy(record, words, sizeof words);
}

int main(int argc, char **argv)
{
    static uint8_t before[MOST_BYTES], now[MOST_BYTES], made[MOST_BYTES], other[MOST_BYTES], bad[MOST_BYTES];
    static uint8_t expected[MOST_BYTES], found[MOST_BYTES];
    const size_t shards = argc > 1 ? strtoull(argv[1], NULL, 0) : 200;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 88172645463325252u;
    const int best = ciera_best_isa();
    size_t changed = 0, refused = 0;
    make_rooms(MOST_BYTES);
    for (size_t round = 0; round < shards; ++round) {
        struct shard shard;
        draw_shard(&shard, &seed);
        draw_values(&shard, before, now, &seed);
        size_t values_bytes = shard.values * value_bytes(shard.type), variable = 0;
        for (int isa = ISA_SCALAR; isa <= best; ++isa)
            for (enum placement placement = AT_START; placement < PLACEMENTS; ++placement) {
                int first = isa == ISA_SCALAR && placement == AT_START;
                snprintf(where, sizeof where, "isa %d, placement %d, round %zu, type %d, coding %d, block %zu", isa,
                         placement, round, shard.type, shard.coding, shard.block);
                size_t used = encode(&shard, isa, placement, before, now, first ? made : other);
                variable = first ? used : variable;
                size_t bytes = shard.fixed_bytes + shard.records_bytes + variable;
                REQUIRE(used == variable && (first || !memcmp(made, other, bytes)), "other bytes than at level 0");
                REQUIRE(!decode(&shard, isa, placement, before, made, variable, found), "refused");
                REQUIRE(!values_bytes || !memcmp(found, now, values_bytes), "other values");
            }
        size_t bytes = shard.fixed_bytes + shard.records_bytes + variable;
        for (int change = 0; bytes && change < 6; ++change) {
            memcpy(bad, made, bytes);
            size_t cut = variable;
            for (uint64_t times = 1 + drawn(&seed) % 3; times; --times) {
                size_t at = drawn(&seed) % bytes;
                if (change % 3 == 0 && shard.records_bytes) {
                    at = shard.fixed_bytes + drawn(&seed) % shard.records_bytes;
                    bad[at] ^= (uint8_t)(1u << drawn(&seed) % 8);
                    check_again(bad + shard.fixed_bytes + (at - shard.fixed_bytes) / SEGMENT_RECORD_BYTES *
                                                              SEGMENT_RECORD_BYTES);
                } else {
                    bad[at] = change % 2 ? (uint8_t)drawn(&seed) : bad[at] ^ (uint8_t)(1u << drawn(&seed) % 8);
                }
            }
            if (change == 5)
                cut = variable ? drawn(&seed) % variable : 0;
            int verdict = 0;
            for (int isa = ISA_SCALAR; isa <= best; ++isa)
                for (enum placement placement = AT_START; placement < PLACEMENTS; ++placement) {
                    int first = isa == ISA_SCALAR && placement == AT_START;
                    snprintf(where, sizeof where, "isa %d, placement %d, round %zu, change %d, type %d, block %zu", isa,
                             placement, round, change, shard.type, shard.block);
                    int wrong = decode(&shard, isa, placement, before, bad, cut, first ? expected : found);
                    verdict = first ? wrong : verdict;
                    REQUIRE(wrong == verdict, "level 0 says %d, this one %d", verdict, wrong);
                    REQUIRE(first || wrong || !values_bytes || !memcmp(found, expected, values_bytes),
                            "other values than at level 0");
                }
            ++changed;
            refused += verdict != 0;
            /* What is taken for good is right, but for plain segments, which have no check. */
            for (size_t at = 0; !verdict && at < shard.count; ++at) {
                size_t width = value_bytes(shard.type), begin = shard.segments[at].first * width;
                REQUIRE(shard.segments[at].plain ||
                            !memcmp(expected + begin, now + begin, shard.segments[at].values * width),
                        "segment %zu is wrong, and was taken for good", at);
            }
        }
    }
    printf("%zu shards at levels 0 to %d, changed %zu times: %zu refused\n", shards, best, changed, refused);
    return 0;
}
