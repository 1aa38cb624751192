/* Codes and decodes at every instruction level, over sizes, data and placements, and requires that all levels write
 * the same bytes, what they may write and nothing else, and give the symbols back. */
#include "rans_streams.h"

enum { TABLE, SYMBOLS, OUT, DIRECTORY, ESCAPES, SCRATCH, CODED };

static const size_t LARGE[] = {2047, 4096, 4097, (1 << 15) - 1, 1 << 15, (1 << 15) + 65, (1 << 17) - 1, 1 << 17,
                               (1 << 17) + 129, (1 << 18) - 1, 1 << 18, (1 << 18) + 1, MOST_SYMBOLS};
enum { SMALL = 1101 };

/* Encodes into exactly `room` bytes; the first call's result is kept in the stream, later ones must be the same. */
static void encode(int isa, struct stream *stream, size_t room, enum placement placement, int first)
{
    size_t n = stream->n, shift = n * 5 % 16;
    uint64_t escape_count = 0;
    uint8_t *table = placed_copy(TABLE, placement, stream->table, stream->table_bytes, shift);
    uint8_t *symbols = placed_copy(SYMBOLS, placement, stream->symbols, n, shift + 1);
    uint8_t *out = placed(OUT, placement, room, shift + 2);
    uint8_t *directory = placed(DIRECTORY, placement, stream->directory_bytes, shift + 3);
    uint8_t *escapes = placed(ESCAPES, placement, n + RANS_PAD, shift + 4);
    uint8_t *scratch = placed(SCRATCH, placement, ciera_rans_scratch_bytes(), shift + 5);
    int64_t size = ciera_rans_encode(isa, table, stream->table_bytes, symbols, n, out, room, directory, escapes,
                                     &escape_count, scratch);
    if (first) {
        REQUIRE(size >= 0 && (size_t)size <= sizeof stream->coded, "%lld bytes", (long long)size);
        stream->coded_bytes = (size_t)size;
        stream->escape_count = escape_count;
        memcpy(stream->coded, out, stream->coded_bytes);
        memcpy(stream->directory, directory, stream->directory_bytes);
        memcpy(stream->escapes, escapes, escape_count);
    } else if (room < stream->coded_bytes) {
        REQUIRE(size == -1, "%lld bytes in a room of %zu", (long long)size, room);
    } else {
        REQUIRE(size == (int64_t)stream->coded_bytes && escape_count == stream->escape_count,
                "%lld bytes and %llu escapes, not %zu and %llu", (long long)size, (unsigned long long)escape_count,
                stream->coded_bytes, (unsigned long long)stream->escape_count);
        REQUIRE(!memcmp(out, stream->coded, stream->coded_bytes), "coded bytes");
        REQUIRE(!memcmp(directory, stream->directory, stream->directory_bytes), "directory");
        REQUIRE(!escape_count || !memcmp(escapes, stream->escapes, escape_count), "escapes");
    }
    REQUIRE(!n || !memcmp(symbols, stream->symbols, n), "the symbols were changed");
    for (int slot = TABLE; slot <= SCRATCH; ++slot)
        released(slot);
}

/* Decodes; `before` bytes before the coded ones may be read. */
static void decode(int isa, const struct stream *stream, size_t before, enum placement placement)
{
    size_t n = stream->n, shift = n * 3 % 16;
    uint8_t *table = placed_copy(TABLE, placement, stream->table, stream->table_bytes, shift);
    uint8_t *coded = placed(CODED, placement, before + stream->coded_bytes, shift + 1) + before;
    uint8_t *directory = placed_copy(DIRECTORY, placement, stream->directory, stream->directory_bytes, shift + 2);
    uint8_t *escapes = placed(ESCAPES, placement, stream->escape_count + 2 * RANS_PAD, shift + 3) + RANS_PAD;
    uint8_t *symbols = placed(SYMBOLS, placement, n, shift + 4);
    memcpy(coded, stream->coded, stream->coded_bytes);
    memcpy(escapes, stream->escapes, stream->escape_count);
    int result = ciera_rans_decode(isa, table, stream->table_bytes, 8, coded, stream->coded_bytes, before, directory,
                                   escapes, stream->escape_count, symbols, n);
    REQUIRE(!result, "what was coded is not decoded");
    REQUIRE(!n || !memcmp(symbols, stream->symbols, n), "other symbols");
    released(TABLE);
    released(CODED);
    released(DIRECTORY);
    released(ESCAPES);
    released(SYMBOLS);
}

/* What is stored without coding. */
static void pack(const struct stream *stream, enum placement placement)
{
    size_t n = stream->n, packed_size = (5 * n + 7) / 8;
    uint64_t counts[256] = {0}, counted = 0;
    uint8_t *symbols = placed_copy(SYMBOLS, placement, stream->symbols, n, n % 8);
    ciera_rans_count(symbols, n, 100, 333, counts);
    for (size_t symbol = 0; symbol < 256; ++symbol)
        counted += counts[symbol];
    REQUIRE(counted == n / 333 * 100 + (n % 333 < 100 ? n % 333 : 100), "%llu counted",
            (unsigned long long)counted);
    int same = 1;
    for (size_t at = 0; at < n; ++at) {
        same &= stream->symbols[at] == stream->symbols[0];
        symbols[at] &= 31;
    }
    uint8_t *packed = placed(OUT, placement, packed_size, n % 7), *again = placed(CODED, placement, n, n % 5);
    ciera_rans_pack5(symbols, n, packed);
    REQUIRE(!ciera_rans_unpack5(packed, n, again), "unused bits");
    REQUIRE(!n || !memcmp(again, symbols, n), "packed symbols");
    if (n) {
        memcpy(symbols, stream->symbols, n);
        REQUIRE(!!ciera_rans_constant(symbols, n) == same, "constant");
    }
    released(SYMBOLS);
    released(OUT);
    released(CODED);
}

/* Whole streams: coded into exactly the bound, with and without a plan from other symbols, and read again. */
static void stream_of(int isa, const struct stream *stream, unsigned symbol_bits, const struct rans_plan *other,
                      enum placement placement, uint8_t *expected, int64_t *expected_size)
{
    size_t n = stream->n, shift = n * 11 % 16, bound = rans_bound(n, symbol_bits);
    struct rans_plan plan = *other;
    uint8_t *symbols = placed_copy(SYMBOLS, placement, stream->symbols, n, shift);
    for (size_t at = 0; symbol_bits == 5 && at < n; ++at)
        symbols[at] &= 31;
    uint8_t *out = placed(OUT, placement, bound, shift + 1);
    int64_t size = ciera_rans_encode_stream(isa, symbols, n, symbol_bits, out, n % 2 ? &plan : NULL, 0);
    REQUIRE(size >= 0 && (size_t)size <= bound, "%lld bytes, the bound is %zu", (long long)size, bound);
    if (*expected_size < 0) {
        *expected_size = size;
        memcpy(expected, out, (size_t)size);
    }
    REQUIRE(size == *expected_size, "a stream of %lld bytes, not %lld", (long long)size, (long long)*expected_size);
    REQUIRE(!size || !memcmp(out, expected, (size_t)size), "other bytes");
    released(OUT);
    uint8_t *coded = placed_copy(CODED, placement, expected, (size_t)size, shift + 2);
    uint8_t *decoded = placed(OUT, placement, n, shift + 3);
    int result = ciera_rans_decode_stream(isa, coded, (size_t)size, symbol_bits, decoded, n, 0);
    REQUIRE(!result && (!n || !memcmp(decoded, symbols, n)), "a stream is not what was coded: %d", result);
    released(OUT);
    released(CODED);
    released(SYMBOLS);
}

int main(void)
{
    static struct stream stream;
    static uint8_t coded[MOST_SYMBOLS + 1], coded5[MOST_SYMBOLS + 1];
    struct rans_plan plan = {.kind = RANS_KIND_NONE};
    const int best = ciera_best_isa();
    const size_t large = sizeof LARGE / sizeof *LARGE;
    size_t driven = 0;
    make_rooms(sizeof stream.coded + 4096);
    for (size_t size = 0; size < SMALL + large; ++size)
        for (enum data data = GAUSSIAN; data < DATA; ++data) {
            size_t n = size < SMALL ? size : LARGE[size - SMALL];
            /* Of most sizes, one kind of data: all of them meet each way through the code many times. */
            if ((n > 200 || size >= SMALL) && (size + (size_t)data) % DATA)
                continue;
            make_symbols(&stream, data, n, 88172645463325252u + size, n % 5 == 4);
            int64_t sizes[2] = {-1, -1};
            uint8_t *streams[2] = {coded, coded5};
            for (int isa = ISA_SCALAR; isa <= best; ++isa)
                for (enum placement placement = AT_START; placement < PLACEMENTS; ++placement, ++driven) {
                    int first = isa == ISA_SCALAR && placement == AT_START;
                    snprintf(where, sizeof where, "isa %d, data %d, n %zu, placement %d", isa, data, n, placement);
                    encode(isa, &stream, 2 * n + 4096, placement, first);
                    encode(isa, &stream, stream.coded_bytes, placement, 0);
                    if (stream.coded_bytes)
                        encode(isa, &stream, stream.coded_bytes - 1, placement, 0);
                    decode(isa, &stream, 0, placement);
                    decode(isa, &stream, 100 + n % 200, placement);
                    if (isa == ISA_SCALAR)
                        pack(&stream, placement);
                    for (int narrow = 0; narrow < 2; ++narrow)
                        stream_of(isa, &stream, narrow ? 5 : 8, &plan, placement, streams[narrow], &sizes[narrow]);
                }
            /* The next size's symbols, of other data as often as not, are tried with these ones' plan. */
            if (n)
                rans_make_plan(stream.symbols, n, 8, size % 2, &plan);
        }
    printf("%zu rounds at levels 0 to %d\n", driven, best);
    return 0;
}
