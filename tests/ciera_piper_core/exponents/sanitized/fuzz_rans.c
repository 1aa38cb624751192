/* Decodes streams that were changed, cut or made up: an error or symbols, the same at every instruction level, and no
 * access beside the buffers. Arguments: how many streams, and the seed. */
#include "rans_streams.h"

enum { TABLE, CODED, DIRECTORY, ESCAPES, SYMBOLS };

static const size_t SIZES[] = {1, 7, 8, 9, 63, 64, 500, 1100, 5000, (1 << 15) - 3, (1 << 15) + 70, (1 << 17) + 200,
                               (1 << 18) + 3000};

/* What is decoded: a good stream, and how it was changed. */
struct changed {
    size_t n, table_bytes, coded_bytes, escape_count;
    uint8_t table[2 * RANS_TABLE_BYTES], directory[RANS_DIRECTORY_BYTES * MOST_CHUNKS];
    const uint8_t *coded;
    const uint8_t *escapes;
};

static void flip(uint8_t *bytes, size_t size, uint64_t *seed)
{
    if (size)
        bytes[drawn(seed) % size] ^= (uint8_t)(1u << drawn(seed) % 8);
}

/* One level's verdict on the stream; its symbols go to `found`. */
static int decode(int isa, const struct changed *stream, unsigned symbol_bits, size_t before, enum placement placement,
                  uint8_t *found)
{
    size_t shift = stream->n * 7 % 16, chunks = (stream->n + RANS_CHUNK - 1) / RANS_CHUNK;
    uint8_t *table = placed_copy(TABLE, placement, stream->table, stream->table_bytes, shift);
    uint8_t *coded = placed(CODED, placement, before + stream->coded_bytes, shift + 1) + before;
    uint8_t *directory =
        placed_copy(DIRECTORY, placement, stream->directory, chunks * RANS_DIRECTORY_BYTES, shift + 2);
    uint8_t *escapes = placed(ESCAPES, placement, stream->escape_count + 2 * RANS_PAD, shift + 3) + RANS_PAD;
    uint8_t *symbols = placed(SYMBOLS, placement, stream->n, shift + 4);
    memcpy(coded, stream->coded, stream->coded_bytes);
    memcpy(escapes, stream->escapes, stream->escape_count);
    int result = ciera_rans_decode(isa, table, stream->table_bytes, symbol_bits, coded, stream->coded_bytes, before,
                                   directory, escapes, stream->escape_count, symbols, stream->n);
    REQUIRE(result == 0 || result == -1, "%d", result);
    memcpy(found, symbols, stream->n);
    for (int slot = TABLE; slot <= SYMBOLS; ++slot)
        released(slot);
    return result;
}

int main(int argc, char **argv)
{
    static struct stream good;
    static struct changed bad;
    static uint8_t coded[sizeof good.coded], escapes[sizeof good.escapes], scratch[4 * RANS_CHUNK];
    static uint8_t expected[MOST_SYMBOLS], found[MOST_SYMBOLS];
    const size_t streams = argc > 1 ? strtoull(argv[1], NULL, 0) : 1000;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 88172645463325252u;
    size_t refused = 0, unnoticed = 0;
    const int best = ciera_best_isa();
    REQUIRE(ciera_rans_scratch_bytes() <= sizeof scratch, "scratch");
    make_rooms(sizeof good.coded + 4096);
    for (size_t round = 0; round < streams; ++round) {
        /* Large ones are rarer, since they take longer; each good stream is changed in several ways. */
        size_t kinds = sizeof SIZES / sizeof *SIZES, kind = drawn(&seed) % (round % 40 ? kinds - 4 : kinds);
        if (round % 8 == 0 || !good.n) {
            enum data data = (enum data)(drawn(&seed) % DATA);
            make_symbols(&good, data, SIZES[kind], drawn(&seed) | 1, (int)(drawn(&seed) % 2));
            int64_t size = ciera_rans_encode(best, good.table, good.table_bytes, good.symbols, good.n, good.coded,
                                             sizeof good.coded, good.directory, good.escapes, &good.escape_count,
                                             scratch);
            REQUIRE(size >= 0, "round %zu cannot be coded", round);
            good.coded_bytes = (size_t)size;
        }
        bad.n = good.n;
        bad.table_bytes = good.table_bytes;
        bad.coded_bytes = good.coded_bytes;
        bad.escape_count = good.escape_count;
        memcpy(bad.table, good.table, sizeof good.table);
        memcpy(bad.directory, good.directory, sizeof bad.directory);
        memcpy(coded, good.coded, good.coded_bytes);
        memcpy(escapes, good.escapes, good.escape_count);
        bad.coded = coded;
        bad.escapes = escapes;
        uint64_t change = drawn(&seed) % 12, by = drawn(&seed);
        switch (change) {
        case 0:
            flip(bad.table, bad.table_bytes, &seed);
            break;
        case 1:
            bad.table_bytes = by % (2 * good.table_bytes);
            break;
        case 2:
            flip(bad.directory, good.directory_bytes, &seed);
            break;
        case 3: /* sizes that are right in all, but not in each chunk, or far too large */
            rans_write32(bad.directory + by % 2 * 4, (uint32_t)(by >> 8));
            break;
        case 4:
            bad.coded_bytes = by % (good.coded_bytes + 1);
            break;
        case 5:
            bad.escape_count = by % (good.escape_count + 1);
            break;
        case 6: /* fewer or more symbols than were coded */
            bad.n = by % 2 ? good.n - by / 2 % good.n : good.n + by / 2 % 200;
            bad.n = bad.n > MOST_SYMBOLS ? MOST_SYMBOLS : bad.n;
            break;
        case 7: /* states, which lie behind the words */
            for (uint64_t k = 0; k < 1 + by % 40; ++k)
                flip(coded + good.coded_bytes - (good.coded_bytes < 512 ? good.coded_bytes : 512),
                     good.coded_bytes < 512 ? good.coded_bytes : 512, &seed);
            break;
        case 8:
            for (size_t k = 0; k < good.coded_bytes; ++k)
                coded[k] = by % 3 ? (uint8_t)drawn(&seed) : (uint8_t)(by % 2 ? 0 : 255);
            break;
        case 9: /* every byte that the format has, made up */
            for (size_t k = 0; k < bad.table_bytes; ++k)
                bad.table[k] = (uint8_t)drawn(&seed) % 40;
            break;
        default:
            flip(coded, good.coded_bytes, &seed);
        }
        size_t before = by % 3 * 77;
        unsigned symbol_bits = by % 7 ? 8 : 5;
        int verdict = 0;
        for (int isa = ISA_SCALAR; isa <= best; ++isa)
            for (enum placement placement = AT_START; placement < PLACEMENTS; ++placement) {
                snprintf(where, sizeof where, "isa %d, placement %d, round %zu, change %llu, n %zu", isa, placement,
                         round, (unsigned long long)change, bad.n);
                int result = decode(isa, &bad, symbol_bits, before, placement, found);
                if (isa == ISA_SCALAR && placement == AT_START) {
                    verdict = result;
                    memcpy(expected, found, bad.n);
                }
                REQUIRE(result == verdict, "level 0 says %d, this one %d", verdict, result);
                REQUIRE(result || !memcmp(found, expected, bad.n), "other symbols than at level 0");
            }
        refused += verdict != 0;
        unnoticed += !verdict && (bad.n != good.n || memcmp(expected, good.symbols, good.n));
    }
    printf("%zu streams at levels 0 to %d: %zu refused, %zu gave other symbols\n", streams, best, refused, unnoticed);
    return 0;
}
