/* Calls every function of planes.h at every instruction level, over sizes, placements and alignments, and requires
 * that all levels write the same bytes, what they may write and nothing else. */
#include "guarded.h"

#include "isa.h"
#include "planes.h"

enum { BF16 = 1, FP16 = 2, FP32 = 3 };
enum { VALUES, PREVIOUS, EXPONENTS, FIRST, SECOND, OLD, NEW, CHANGED, SYMBOLS, MERGED };

static const size_t BLOCK_SIZES[] = {64, 128, 256, 512, 1024};
static const size_t LARGE[] = {2047, 2048, 2049, 4096 + 511, 16384, 65536 + 33, 150001};
enum { MOST_VALUES = 150016, SMALL = 1101 };

static size_t value_bytes_of(int type) { return type == FP32 ? 4 : 2; }
static size_t exponent_bytes_of(int type, size_t n) { return type == FP16 ? (n * 5 + 7) / 8 : n; }
static size_t second_bytes_of(int type, size_t n) { return type == BF16 ? 0 : type == FP16 ? (n * 3 + 7) / 8 : n * 2; }

/* What one level's functions wrote. */
struct written {
    uint8_t *bytes[10];
    size_t sizes[10];
    uint64_t sums[3];
    size_t collected[2];
};

static void keep(struct written *written, int what, const uint8_t *from, size_t bytes)
{
    if (!written->bytes[what])
        REQUIRE((written->bytes[what] = malloc(4 * MOST_VALUES)), "no memory");
    written->sizes[what] = bytes;
    if (bytes)
        memcpy(written->bytes[what], from, bytes);
}

static void same(const struct written *a, const struct written *b)
{
    for (int what = 0; what < 10; ++what)
        REQUIRE(a->sizes[what] == b->sizes[what] &&
                    (!a->sizes[what] || !memcmp(a->bytes[what], b->bytes[what], a->sizes[what])),
                "output %d", what);
    REQUIRE(!memcmp(a->sums, b->sums, sizeof a->sums), "checksums");
    REQUIRE(!memcmp(a->collected, b->collected, sizeof a->collected), "symbols counted");
}

/* All functions once. `now` and `before` are n values. */
static void drive(int isa, int type, const uint8_t *now, const uint8_t *before, size_t n, size_t block, int stream,
                  enum placement placement, struct written *written)
{
    const size_t values_size = n * value_bytes_of(type), exponents_size = exponent_bytes_of(type, n);
    const size_t second_size = second_bytes_of(type, n), blocks = (n + block - 1) / block;
    const uint64_t first_block = n % 3 * 7;
    size_t shift = n * 5 % 16;

    uint8_t *values = placed_copy(VALUES, placement, now, values_size, shift);
    uint8_t *exponents = placed(EXPONENTS, placement, exponents_size, shift + 1);
    uint8_t *first = placed(FIRST, placement, n, shift + 2);
    uint8_t *second = placed(SECOND, placement, second_size, shift + 3);
    ciera_planes_split(isa, type, values, n, exponents, first, second, stream);
    keep(written, EXPONENTS, exponents, exponents_size);
    keep(written, FIRST, first, n);
    keep(written, SECOND, second, second_size);
    released(EXPONENTS);
    released(FIRST);
    released(SECOND);

    exponents = placed_copy(EXPONENTS, placement, written->bytes[EXPONENTS], exponents_size, shift + 7);
    first = placed_copy(FIRST, placement, written->bytes[FIRST], n, shift + 5);
    second = placed_copy(SECOND, placement, written->bytes[SECOND], second_size, shift + 4);
    for (int checked = 0; checked < 2; ++checked) {
        uint8_t *merged = placed(MERGED, placement, values_size, shift + 9);
        if (checked)
            written->sums[0] = ciera_planes_merge_checked(isa, type, exponents, first, second, n, block, first_block,
                                                          merged, stream);
        else
            ciera_planes_merge(isa, type, exponents, first, second, n, merged, stream);
        REQUIRE(!values_size || !memcmp(merged, now, values_size), "merge (checked: %d)", checked);
        released(MERGED);
    }
    released(FIRST);
    released(SECOND);
    released(EXPONENTS);

    /* The planes and hashes of `before` are what is compared with. */
    uint8_t *older = placed_copy(PREVIOUS, placement, before, values_size, shift);
    uint8_t *old = placed(OLD, placement, 16 * blocks, shift + 8);
    ciera_planes_hash(isa, type, older, n, block, old);
    keep(written, OLD, old, 16 * blocks);
    uint8_t *plane = placed(EXPONENTS, placement, exponents_size, shift + 6);
    first = placed(FIRST, placement, n, shift + 2);
    second = placed(SECOND, placement, second_size, shift + 3);
    ciera_planes_split(isa, type, older, n, plane, first, second, stream);
    released(PREVIOUS);
    released(FIRST);
    released(SECOND);

    for (int exact = 0; exact < 2; ++exact) {
        uint8_t *changed = placed(CHANGED, placement, blocks, shift + 11);
        uint8_t *new = placed(NEW, placement, 16 * blocks, shift + 8);
        first = placed(FIRST, placement, n, shift + 2);
        second = placed(SECOND, placement, second_size, shift + 3);
        if (exact) {
            written->sums[2] = ciera_planes_scan_exact(isa, type, values, n, block, first_block, plane, first, second,
                                                       changed, stream);
        } else {
            written->sums[1] = ciera_planes_scan_hashed(isa, type, values, n, block, first_block, old, new, first,
                                                        second, changed, stream);
            keep(written, NEW, new, 16 * blocks);
        }
        keep(written, CHANGED, changed, blocks);
        REQUIRE(!n || !memcmp(first, written->bytes[FIRST], n), "a scan's first");
        REQUIRE(!second_size || !memcmp(second, written->bytes[SECOND], second_size), "a scan's second");
        released(CHANGED);
        released(NEW);
        released(FIRST);
        released(SECOND);
    }
    REQUIRE(written->sums[0] == written->sums[1] && written->sums[0] == written->sums[2], "checksums");

    size_t symbols_size = 0;
    for (size_t b = 0; b < blocks; ++b)
        if (written->bytes[CHANGED][b])
            symbols_size += n - b * block < block ? n - b * block : block;
    uint8_t *changed = placed_copy(CHANGED, placement, written->bytes[CHANGED], blocks, shift + 11);
    for (int delta = 0; delta < 2; ++delta) {
        uint8_t *symbols = placed(SYMBOLS, placement, symbols_size, shift + 13);
        written->collected[delta] =
            ciera_planes_collect(isa, type, values, n, block, changed, delta ? plane : NULL, symbols);
        REQUIRE(written->collected[delta] == symbols_size, "%zu symbols collected, %zu expected",
                written->collected[delta], symbols_size);
        keep(written, delta ? SYMBOLS : MERGED, symbols, symbols_size);
        uint8_t *applied = placed_copy(PREVIOUS, placement, plane, exponents_size, shift + 15);
        size_t read = ciera_planes_apply(isa, type, symbols, n, block, changed, delta, applied);
        REQUIRE(read == symbols_size, "%zu symbols applied, %zu expected", read, symbols_size);
        REQUIRE(!exponents_size || !memcmp(applied, written->bytes[EXPONENTS], exponents_size),
                "apply (delta: %d)", delta);
        released(PREVIOUS);
        released(SYMBOLS);
    }
    released(CHANGED);
    released(OLD);
    released(EXPONENTS);
    REQUIRE(!values_size || !memcmp(values, now, values_size), "the values were changed");
    released(VALUES);
}

/* Values of any bits, and the same with other exponents at a few places: none, one, some, all. */
static void make_values(int type, size_t n, uint64_t seed, uint8_t *now, uint8_t *before)
{
    const size_t width = value_bytes_of(type);
    for (size_t k = 0; k < n * width; ++k)
        now[k] = (uint8_t)(drawn(&seed) >> 32);
    memcpy(before, now, n * width);
    const size_t every[] = {0, n ? n : 1, 700, 1};
    for (size_t k = every[seed % 4] ? n % every[seed % 4] : n; k < n; k += every[seed % 4])
        before[k * width + width - 1] ^= 0x04;
}

int main(void)
{
    static uint8_t now[4 * MOST_VALUES], before[4 * MOST_VALUES];
    static struct written expected, found;
    const int best = ciera_planes_best_isa();
    const size_t large = sizeof LARGE / sizeof *LARGE;
    size_t driven = 0;
    REQUIRE(best == ciera_best_isa(), "the exported level");
    make_rooms(4 * MOST_VALUES);
    for (size_t size = 0; size < SMALL + large; ++size)
        for (int type = BF16; type <= FP32; ++type) {
            size_t n = size < SMALL ? size : LARGE[size - SMALL], block = BLOCK_SIZES[(size + (size_t)type) % 5];
            make_values(type, n, 0x9E3779B97F4A7C15u + size * 977 + (size_t)type, now, before);
            for (int isa = ISA_SCALAR; isa <= best; ++isa)
                for (enum placement placement = AT_START; placement < PLACEMENTS; ++placement)
                    for (int stream = 0; stream < 2; ++stream, ++driven) {
                        snprintf(where, sizeof where, "isa %d, type %d, n %zu, block %zu, placement %d, stream %d", isa,
                                 type, n, block, placement, stream);
                        int scalar = isa == ISA_SCALAR && placement == AT_START && !stream;
                        drive(isa, type, now, before, n, block, stream, placement, scalar ? &expected : &found);
                        if (!scalar)
                            same(&expected, &found);
                    }
        }
    printf("%zu rounds at levels 0 to %d\n", driven, best);
    return 0;
}
