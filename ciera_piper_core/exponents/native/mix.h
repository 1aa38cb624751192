/* The mixing function and the constants of block hashes and checksums (kernels.py has the arithmetic). */
#ifndef CIERA_MIX_H
#define CIERA_MIX_H

#include <stddef.h>
#include <stdint.h>

#define GAMMA UINT64_C(0x9E3779B97F4A7C15)
#define SEED_0 UINT64_C(0x243F6A8885A308D3)
#define SEED_1 UINT64_C(0x13198A2E03707344)
#define MIX_1 UINT64_C(0xBF58476D1CE4E5B9)
#define MIX_2 UINT64_C(0x94D049BB133111EB)

/* What every block adds to its words: made once a call, so that the kernels add a word of memory. */
typedef struct {
    /* The checksum's keys, for each word of 8 bytes of values: at most 1024 values of 4 bytes. */
    _Alignas(64) uint64_t keys[512];
    /* SEEDS[s] + (j + 1) * GAMMA, for each word of 8 symbols. */
    _Alignas(64) uint64_t places[2][128];
} block_tables;

/* SplitMix64's finalizer. */
static inline uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * MIX_1;
    z = (z ^ z >> 27) * MIX_2;
    return z ^ z >> 31;
}

/* Writes the entries that blocks of so many values of `width` bytes need. */
static inline void fill_tables(block_tables *restrict tables, size_t values, size_t width)
{
    for (size_t j = 0; j * 8 < values * width; j++)
        tables->keys[j] = mix((j + 1) * GAMMA);
    for (size_t j = 0; j * 8 < values; j++) {
        tables->places[0][j] = SEED_0 + (j + 1) * GAMMA;
        tables->places[1][j] = SEED_1 + (j + 1) * GAMMA;
    }
}

/* What word v adds to the sum of its block. */
static inline uint64_t check_word(uint64_t v, uint64_t key)
{
    uint64_t t = v + key;
    return (t & 0xFFFFFFFF) * (t >> 32) + v;
}

#endif
