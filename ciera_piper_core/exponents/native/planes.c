/* The exported functions: choose the kernel of the level and type, and find the runs of changed blocks. */
#include "planes.h"

#include "isa.h"
#include "kernel_table.h"
#include "mix.h"
#include "word.h"

const kernel_table *planes_kernels(int isa, int type)
{
#ifdef CIERA_X86
    if (isa == ISA_AVX512)
        return &planes_avx512[type];
    if (isa == ISA_AVX2)
        return &planes_avx2[type];
#endif
    (void)isa;
    return &planes_scalar[type];
}

/* The tables that n values in blocks can need. */
static void tables_for(block_tables *restrict tables, int type, size_t n, size_t block)
{
    fill_tables(tables, n < block ? n : block, value_bytes(type));
}

int ciera_planes_best_isa(void)
{
    return ciera_best_isa();
}

void ciera_planes_split(int isa, int type, const uint8_t *values, size_t n, uint8_t *exponents, uint8_t *first,
                        uint8_t *second, int stream)
{
    planes_kernels(isa, type)->split(values, n, exponents, first, second, stream);
}

void ciera_planes_merge(int isa, int type, const uint8_t *exponents, const uint8_t *first, const uint8_t *second,
                        size_t n, uint8_t *values, int stream)
{
    planes_kernels(isa, type)->merge(exponents, first, second, n, values, stream);
}

uint64_t ciera_planes_merge_checked(int isa, int type, const uint8_t *exponents, const uint8_t *first,
                                    const uint8_t *second, size_t n, size_t block, uint64_t first_block,
                                    uint8_t *values, int stream)
{
    block_tables tables;
    tables_for(&tables, type, n, block);
    return planes_kernels(isa, type)->merge_checked(exponents, first, second, n, block, first_block, &tables, values, stream);
}

void ciera_planes_hash(int isa, int type, const uint8_t *values, size_t n, size_t block, uint8_t *hashes)
{
    block_tables tables;
    tables_for(&tables, type, n, block);
    planes_kernels(isa, type)->hash(values, n, block, &tables, hashes);
}

uint64_t ciera_planes_scan_hashed(int isa, int type, const uint8_t *values, size_t n, size_t block,
                                  uint64_t first_block, const uint8_t *old, uint8_t *new, uint8_t *first,
                                  uint8_t *second, uint8_t *changed, int stream)
{
    block_tables tables;
    tables_for(&tables, type, n, block);
    return planes_kernels(isa, type)->scan_hashed(values, n, block, first_block, &tables, old, new, first, second, changed,
                                           stream);
}

uint64_t ciera_planes_scan_exact(int isa, int type, const uint8_t *values, size_t n, size_t block,
                                 uint64_t first_block, const uint8_t *previous, uint8_t *first, uint8_t *second,
                                 uint8_t *changed, int stream)
{
    block_tables tables;
    tables_for(&tables, type, n, block);
    return planes_kernels(isa, type)->scan_exact(values, n, block, first_block, &tables, previous, first, second, changed,
                                          stream);
}

/* The next run of changed blocks at or after value *start: sets *start, returns its values, 0 if there is none. */
static size_t next_run(const uint8_t *changed, size_t n, size_t block, size_t *start)
{
    size_t at = *start;
    while (at < n && !changed[at / block])
        at += block;
    *start = at;
    while (at < n && changed[at / block])
        at += block;
    return *start < n ? (at < n ? at : n) - *start : 0;
}

size_t ciera_planes_collect(int isa, int type, const uint8_t *values, size_t n, size_t block, const uint8_t *changed,
                            const uint8_t *previous, uint8_t *symbols)
{
    const kernel_table *table = planes_kernels(isa, type);
    size_t written = 0, start = 0, count;
    for (; (count = next_run(changed, n, block, &start)); start += count, written += count)
        table->collect(values + start * value_bytes(type), count,
                       previous ? previous + exponent_bytes(type, start) : NULL, symbols + written);
    return written;
}

size_t ciera_planes_apply(int isa, int type, const uint8_t *symbols, size_t n, size_t block, const uint8_t *changed,
                          int delta, uint8_t *exponents)
{
    const kernel_table *table = planes_kernels(isa, type);
    size_t read = 0, start = 0, count;
    for (; (count = next_run(changed, n, block, &start)); start += count, read += count)
        table->apply(symbols + read, count, delta, exponents + exponent_bytes(type, start));
    return read;
}
