/* Asks for memory that a pass over large buffers reads soon; addresses beyond a buffer's end do no harm. */
#ifndef CIERA_PREFETCH_H
#define CIERA_PREFETCH_H

#include "word.h"

/* Tried from 256 to 8192: far enough for memory, near enough that short planes waste little. */
enum { PREFETCH_AHEAD = 512, LINE = 64 };

/* The `bytes` from PREFETCH_AHEAD after p on. */
INLINE void prefetch(const uint8_t *p, size_t bytes)
{
    for (size_t k = 0; k < bytes; k += LINE)
        __builtin_prefetch((const void *)((uintptr_t)p + PREFETCH_AHEAD + k), 0, 3);
}

/* What of the planes belongs to the `values` values from number `at` on, so much ahead. */
INLINE void prefetch_planes(const int type, const uint8_t *exponents, const uint8_t *first, const uint8_t *second,
                            size_t at, size_t values)
{
    prefetch(exponents + exponent_bytes(type, at), exponent_bytes(type, values));
    prefetch(first + at, values);
    if (type != TYPE_BF16)
        prefetch(second + second_bytes(type, at), second_bytes(type, values));
}

#endif
