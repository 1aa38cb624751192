/* What the rANS coder does without coding: finds constant symbols, packs and unpacks symbols of five bits. */
#include <string.h>

#include "rans.h"

/* Whether all n (at least 1) symbols are the same. */
int ciera_rans_constant(const uint8_t *symbols, size_t n)
{
    return symbols[0] == symbols[n - 1] && !memcmp(symbols, symbols + 1, n - 1);
}

/* Symbol i of n to bits [5 i, 5 i + 5) of ceil(5 n / 8) bytes of out; the last byte's unused bits are zero.
 * All symbols or-ed together, by which the caller sees whether one has more than five bits. */
unsigned ciera_rans_pack5(const uint8_t *symbols, size_t n, uint8_t *out)
{
    unsigned all = 0;
    size_t at = 0;
    for (; n - at >= 8; at += 8, out += 5) {
        uint64_t packed = 0;
        for (unsigned i = 0; i < 8; ++i) {
            packed |= (uint64_t)(symbols[at + i] & 31) << 5 * i;
            all |= symbols[at + i];
        }
        for (unsigned byte = 0; byte < 5; ++byte)
            out[byte] = (uint8_t)(packed >> 8 * byte);
    }
    uint64_t packed = 0;
    for (size_t i = 0; at + i < n; ++i) {
        packed |= (uint64_t)(symbols[at + i] & 31) << 5 * i;
        all |= symbols[at + i];
    }
    for (size_t byte = 0; byte < (5 * (n - at) + 7) / 8; ++byte)
        out[byte] = (uint8_t)(packed >> 8 * byte);
    return all;
}

/* The inverse: reads ceil(5 n / 8) bytes, writes n symbols. Nonzero if the last byte's unused bits are not zero. */
unsigned ciera_rans_unpack5(const uint8_t *packed, size_t n, uint8_t *symbols)
{
    size_t at = 0;
    for (; n - at >= 8; at += 8, packed += 5) {
        uint64_t word = 0;
        for (unsigned byte = 0; byte < 5; ++byte)
            word |= (uint64_t)packed[byte] << 8 * byte;
        for (unsigned i = 0; i < 8; ++i)
            symbols[at + i] = word >> 5 * i & 31;
    }
    size_t left = n - at;
    uint64_t word = 0;
    for (size_t byte = 0; byte < (5 * left + 7) / 8; ++byte)
        word |= (uint64_t)packed[byte] << 8 * byte;
    for (size_t i = 0; i < left; ++i)
        symbols[at + i] = word >> 5 * i & 31;
    return (unsigned)(word >> 5 * left);
}
