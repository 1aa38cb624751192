/* Decodes whole streams that were changed, cut or made up: an error or symbols, the same at every instruction level,
 * and no access beside the buffers. Arguments: how many streams, and the seed. */
#include "rans_streams.h"

enum { CODED, SYMBOLS };

static const size_t SIZES[] = {1, 2, 9, 64, 500, 1100, 5000, (1 << 15) + 70, (1 << 17) + 200, (1 << 18) + 3000};

/* One level's verdict on the stream; its symbols go to `found`. */
static int decode(int isa, const uint8_t *bytes, size_t size, unsigned symbol_bits, size_t n, enum placement placement,
                  uint8_t *found)
{
    uint8_t *coded = placed_copy(CODED, placement, bytes, size, size % 16);
    uint8_t *symbols = placed(SYMBOLS, placement, n, n % 16);
    int result = ciera_rans_decode_stream(isa, coded, size, symbol_bits, symbols, n, 0);
    REQUIRE(result == 0 || result == RANS_WRONG, "%d", result);
    if (n)
        memcpy(found, symbols, n);
    for (size_t at = 0; !result && symbol_bits == 5 && at < n; ++at)
        REQUIRE(symbols[at] < 32, "a symbol of %d", symbols[at]);
    released(CODED);
    released(SYMBOLS);
    return result;
}

/* Changes some of the bytes that say how the rest is to be read, or any. */
static size_t change(uint8_t *bytes, size_t size, size_t room, uint64_t *seed)
{
    uint64_t kind = drawn(seed) % 8, by = drawn(seed);
    size_t head = size < 60 ? size : 60;
    if (!size || kind == 0) { /* made up */
        size = by % 200 % room;
        for (size_t at = 0; at < size; ++at)
            bytes[at] = (uint8_t)(drawn(seed) >> 20);
        if (size)
            bytes[0] %= 5;
        return size;
    }
    if (kind == 1)
        return by % size;
    if (kind == 2) { /* longer */
        size_t more = by % 300;
        for (size_t k = 0; k < more && size < room; ++k)
            bytes[size++] = (uint8_t)drawn(seed);
        return size;
    }
    if (kind == 3) { /* a stream in itself */
        size_t at = by % head;
        memmove(bytes + at, bytes, size - at);
        return size;
    }
    for (uint64_t k = 0; k < 1 + by % 3; ++k) {
        size_t at = drawn(seed) % (kind < 6 ? head : size);
        bytes[at] = kind == 4 ? (uint8_t)drawn(seed) : bytes[at] ^ (uint8_t)(1u << drawn(seed) % 8);
    }
    return size;
}

int main(int argc, char **argv)
{
    static struct stream good;
    static uint8_t coded[MOST_SYMBOLS + 512], bad[sizeof coded], expected[MOST_SYMBOLS], found[MOST_SYMBOLS];
    const size_t streams = argc > 1 ? strtoull(argv[1], NULL, 0) : 1000;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 88172645463325252u;
    size_t refused = 0, size = 0;
    unsigned symbol_bits = 8;
    const int best = ciera_best_isa();
    make_rooms(sizeof coded);
    for (size_t round = 0; round < streams; ++round) {
        if (round % 8 == 0) {
            /* Large ones are rarer, since they take longer. */
            size_t kinds = sizeof SIZES / sizeof *SIZES, kind = drawn(&seed) % (round % 80 ? kinds - 3 : kinds);
            make_symbols(&good, (enum data)(drawn(&seed) % DATA), SIZES[kind], drawn(&seed) | 1, 0);
            symbol_bits = drawn(&seed) % 3 ? 8 : 5;
            for (size_t at = 0; symbol_bits == 5 && at < good.n; ++at)
                good.symbols[at] &= 31;
            int64_t made = ciera_rans_encode_stream(best, good.symbols, good.n, symbol_bits, coded, NULL, 0);
            REQUIRE(made >= 0 && (size_t)made <= rans_bound(good.n, symbol_bits), "%lld bytes", (long long)made);
            size = (size_t)made;
        }
        memcpy(bad, coded, size);
        size_t n = drawn(&seed) % 10 ? good.n : good.n / 2 + drawn(&seed) % 9;
        size_t bad_size = change(bad, size, sizeof bad, &seed);
        int verdict = 0;
        for (int isa = ISA_SCALAR; isa <= best; ++isa)
            for (enum placement placement = AT_START; placement < PLACEMENTS; ++placement) {
                int first = isa == ISA_SCALAR && placement == AT_START;
                snprintf(where, sizeof where, "isa %d, placement %d, round %zu, %zu bytes, n %zu, %u bits", isa,
                         placement, round, bad_size, n, symbol_bits);
                int result = decode(isa, bad, bad_size, symbol_bits, n, placement, first ? expected : found);
                verdict = first ? result : verdict;
                REQUIRE(result == verdict, "level 0 says %d, this one %d", verdict, result);
                REQUIRE(first || result || !n || !memcmp(found, expected, n), "other symbols than at level 0");
            }
        refused += verdict != 0;
    }
    printf("%zu streams at levels 0 to %d: %zu refused\n", streams, best, refused);
    return 0;
}
