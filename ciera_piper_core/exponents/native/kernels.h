/* One level's table of kernels; planes_*.c include the level's lanes, then this. */
#include "checksum.h"
#include "collect.h"
#include "hash.h"
#include "kernel_table.h"
#include "scan.h"
#include "split.h"

#define IN const uint8_t *restrict
#define OUT uint8_t *restrict
#define TABLES const block_tables *restrict

/* The kernels of one value type: the type, and whether to stream, become constants in each. */
#define KERNELS_OF(type)                                                                                               \
    KERNEL static void split_##type(IN values, size_t n, OUT exponents, OUT first, OUT second, int stream)             \
    {                                                                                                                  \
        if (stream)                                                                                                    \
            split(type, 1, values, n, exponents, first, second);                                                       \
        else                                                                                                           \
            split(type, 0, values, n, exponents, first, second);                                                       \
    }                                                                                                                  \
    KERNEL static void merge_##type(IN exponents, IN first, IN second, size_t n, OUT values, int stream)               \
    {                                                                                                                  \
        if (stream)                                                                                                    \
            merge(type, 1, exponents, first, second, n, values);                                                       \
        else                                                                                                           \
            merge(type, 0, exponents, first, second, n, values);                                                       \
    }                                                                                                                  \
    KERNEL static uint64_t merge_checked_##type(IN exponents, IN first, IN second, size_t n, size_t block,             \
                                                uint64_t first_block, TABLES tables, OUT values, int stream)           \
    {                                                                                                                  \
        if (stream)                                                                                                    \
            return merge_checked(type, 1, exponents, first, second, n, block, first_block, tables, values);            \
        return merge_checked(type, 0, exponents, first, second, n, block, first_block, tables, values);                \
    }                                                                                                                  \
    KERNEL static void hash_##type(IN values, size_t n, size_t block, TABLES tables, OUT hashes)                       \
    {                                                                                                                  \
        hash(type, values, n, block, tables, hashes);                                                                  \
    }                                                                                                                  \
    KERNEL static uint64_t scan_hashed_##type(IN values, size_t n, size_t block, uint64_t first_block, TABLES tables,  \
                                              IN old, OUT new, OUT first, OUT second, OUT changed, int stream)         \
    {                                                                                                                  \
        if (stream)                                                                                                    \
            return scan(type, 1, 0, values, n, block, first_block, tables, old, new, first, second, changed);          \
        return scan(type, 0, 0, values, n, block, first_block, tables, old, new, first, second, changed);              \
    }                                                                                                                  \
    KERNEL static uint64_t scan_exact_##type(IN values, size_t n, size_t block, uint64_t first_block, TABLES tables,   \
                                             IN previous, OUT first, OUT second, OUT changed, int stream)              \
    {                                                                                                                  \
        if (stream)                                                                                                    \
            return scan(type, 1, 1, values, n, block, first_block, tables, previous, NULL, first, second, changed);    \
        return scan(type, 0, 1, values, n, block, first_block, tables, previous, NULL, first, second, changed);        \
    }                                                                                                                  \
    KERNEL static void collect_##type(IN values, size_t n, IN previous, OUT symbols)                                   \
    {                                                                                                                  \
        collect(type, values, n, previous, symbols);                                                                   \
    }                                                                                                                  \
    KERNEL static void apply_##type(IN symbols, size_t n, int delta, OUT exponents)                                    \
    {                                                                                                                  \
        apply(type, symbols, n, delta, exponents);                                                                     \
    }

KERNELS_OF(TYPE_BF16)
KERNELS_OF(TYPE_FP16)
KERNELS_OF(TYPE_FP32)

#define ENTRY(type)                                                                                                    \
    {split_##type, merge_##type, merge_checked_##type, hash_##type, scan_hashed_##type, scan_exact_##type,             \
     collect_##type, apply_##type}

const kernel_table TABLE[4] = {
    [TYPE_BF16] = ENTRY(TYPE_BF16), [TYPE_FP16] = ENTRY(TYPE_FP16), [TYPE_FP32] = ENTRY(TYPE_FP32)};
