/* What the library _planes exports: the kernels of exponents/kernels.py over a run of values.
 *
 * isa:         a number of isa.h that this processor supports; type: FloatLayout.code.
 * n:           values; may be 0. block: 64, 128, 256, 512 or 1024. first_block: the number of the first block in
 *              its segment, so that a segment's checksum is the sum of its runs' checksums, modulo 2**64.
 * first, second: the two parts of the rest (FloatLayout.rest_parts); bf16 has no second, whose pointer is not used.
 * stream:      not 0: what is written in bulk goes past the caches; for outputs too large to stay in them.
 *
 * Every pointer may have any alignment. Exactly the bytes of n values are read and written. Outputs overlap
 * no other argument. A run that is not the last of its segment is a multiple of its block, and begins in packed
 * planes at the byte of its first value. Nothing is kept between calls: any thread may call at any time. */
#ifndef CIERA_PLANES_H
#define CIERA_PLANES_H

#include <stddef.h>
#include <stdint.h>

/* The highest level of isa.h that runs here. */
int ciera_planes_best_isa(void);

/* Writes exponents, first and second. */
void ciera_planes_split(int isa, int type, const uint8_t *values, size_t n, uint8_t *exponents, uint8_t *first,
                        uint8_t *second, int stream);

/* Writes values. */
void ciera_planes_merge(int isa, int type, const uint8_t *exponents, const uint8_t *first, const uint8_t *second,
                        size_t n, uint8_t *values, int stream);

/* Writes values; returns their checksum. */
uint64_t ciera_planes_merge_checked(int isa, int type, const uint8_t *exponents, const uint8_t *first,
                                    const uint8_t *second, size_t n, size_t block, uint64_t first_block,
                                    uint8_t *values, int stream);

/* Writes hashes: 16 bytes a block. */
void ciera_planes_hash(int isa, int type, const uint8_t *values, size_t n, size_t block, uint8_t *hashes);

/* Writes new (16 bytes a block), first, second and changed (1 byte a block); returns the checksum. */
uint64_t ciera_planes_scan_hashed(int isa, int type, const uint8_t *values, size_t n, size_t block,
                                  uint64_t first_block, const uint8_t *old, uint8_t *new, uint8_t *first,
                                  uint8_t *second, uint8_t *changed, int stream);

/* Writes first, second and changed; returns the checksum. */
uint64_t ciera_planes_scan_exact(int isa, int type, const uint8_t *values, size_t n, size_t block,
                                 uint64_t first_block, const uint8_t *previous, uint8_t *first, uint8_t *second,
                                 uint8_t *changed, int stream);

/* Writes the symbols of the blocks whose `changed` is not 0, one block after another; differences to the plane
 * `previous` unless that is NULL. Returns how many symbols it wrote. */
size_t ciera_planes_collect(int isa, int type, const uint8_t *values, size_t n, size_t block, const uint8_t *changed,
                            const uint8_t *previous, uint8_t *symbols);

/* The inverse: updates those blocks of exponents; returns how many symbols it read. */
size_t ciera_planes_apply(int isa, int type, const uint8_t *symbols, size_t n, size_t block, const uint8_t *changed,
                          int delta, uint8_t *exponents);

#endif
