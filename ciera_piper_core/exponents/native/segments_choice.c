/* Which way of coding is smaller, exponents or their differences, from a sample: the same choice as mode_choice.py. */
#include <string.h>

#include "kernel_table.h"
#include "segments.h"
#include "word.h"

enum { SAMPLE_SYMBOLS = 8192 };

/* Sum of c log2 c over how often each symbol occurs: the larger, the smaller is the entropy of as many symbols. */
static uint64_t regularity(const uint8_t *symbols, size_t n)
{
    uint64_t counts[256] = {0}, sum = 0;
    ciera_rans_count(symbols, n, n, 1, counts);
    for (unsigned symbol = 0; symbol < 256; ++symbol)
        if (counts[symbol])
            sum += counts[symbol] * rans_log2(counts[symbol]);
    return sum;
}

int segment_smaller_coding(int isa, int type, size_t block, size_t values_count, const uint8_t *values,
                           const uint8_t *previous, const uint8_t *changed, size_t changed_blocks, uint8_t *symbols)
{
    const kernel_table *kernels = planes_kernels(isa, type);
    size_t stride = changed_blocks * block / SAMPLE_SYMBOLS;
    uint64_t found[2];
    for (int coding = CODING_BLOCK; coding <= CODING_DELTA; ++coding) {
        size_t written = 0, seen = 0;
        for (size_t start = 0, number = 0; start < values_count; start += block, ++number) {
            if (!changed[number] || (stride > 1 && seen++ % stride))
                continue;
            size_t count = values_count - start < block ? values_count - start : block;
            kernels->collect(values + start * value_bytes(type), count,
                             coding == CODING_DELTA ? previous + exponent_bytes(type, start) : NULL, symbols + written);
            written += count;
        }
        found[coding] = regularity(symbols, written);
    }
    return found[CODING_BLOCK] > found[CODING_DELTA] ? CODING_BLOCK : CODING_DELTA;
}
