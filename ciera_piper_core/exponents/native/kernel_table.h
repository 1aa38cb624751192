/* The kernels of one instruction level for one value type; planes.c calls them, planes.h says what they do. */
#ifndef CIERA_KERNEL_TABLE_H
#define CIERA_KERNEL_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "mix.h"

/* `tables` are those of one block. collect and apply work on a run of n values, all of which belong to changed
 * blocks. */
typedef struct {
    void (*split)(const uint8_t *restrict values, size_t n, uint8_t *restrict exponents, uint8_t *restrict first,
                  uint8_t *restrict second, int stream);
    void (*merge)(const uint8_t *restrict exponents, const uint8_t *restrict first, const uint8_t *restrict second,
                  size_t n, uint8_t *restrict values, int stream);
    uint64_t (*merge_checked)(const uint8_t *restrict exponents, const uint8_t *restrict first,
                              const uint8_t *restrict second, size_t n, size_t block, uint64_t first_block,
                              const block_tables *restrict tables, uint8_t *restrict values, int stream);
    void (*hash)(const uint8_t *restrict values, size_t n, size_t block, const block_tables *restrict tables,
                 uint8_t *restrict hashes);
    uint64_t (*scan_hashed)(const uint8_t *restrict values, size_t n, size_t block, uint64_t first_block,
                            const block_tables *restrict tables, const uint8_t *restrict old, uint8_t *restrict new,
                            uint8_t *restrict first, uint8_t *restrict second, uint8_t *restrict changed, int stream);
    uint64_t (*scan_exact)(const uint8_t *restrict values, size_t n, size_t block, uint64_t first_block,
                           const block_tables *restrict tables, const uint8_t *restrict previous,
                           uint8_t *restrict first, uint8_t *restrict second, uint8_t *restrict changed, int stream);
    void (*collect)(const uint8_t *restrict values, size_t n, const uint8_t *restrict previous,
                    uint8_t *restrict symbols);
    void (*apply)(const uint8_t *restrict symbols, size_t n, int delta, uint8_t *restrict exponents);
} kernel_table;

/* By FloatLayout.code; entry 0 is empty. */
extern const kernel_table planes_scalar[4];
extern const kernel_table planes_avx2[4];
extern const kernel_table planes_avx512[4];

/* Those of a level and type that this processor supports. */
const kernel_table *planes_kernels(int isa, int type);

#endif
