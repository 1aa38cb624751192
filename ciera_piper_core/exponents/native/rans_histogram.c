/* Counts symbols, all of them or pieces of them, for the rANS coder's frequency tables. */
#include <string.h>

#include "rans.h"

enum { TABLES = 8, MOST = 1 << 30 /* symbols between two sums, so that 32-bit counters never overflow */ };

/* Counts bytes [0, n) and adds to counts[256]. Neighbours go to different tables: else equal ones, each waiting
 * for the store of the last, would take several cycles a byte. */
static void count(const uint8_t *symbols, size_t n, uint64_t counts[256])
{
    uint32_t tables[TABLES][256];
    memset(tables, 0, sizeof tables);
    size_t at = 0;
    for (; n - at >= 8; at += 8) {
        uint64_t word;
        memcpy(&word, symbols + at, 8);
        for (unsigned byte = 0; byte < 8; ++byte)
            ++tables[byte][word >> 8 * byte & 0xff];
    }
    for (; at < n; ++at)
        ++tables[0][symbols[at]];
    for (unsigned symbol = 0; symbol < 256; ++symbol)
        for (unsigned table = 0; table < TABLES; ++table)
            counts[symbol] += tables[table][symbol];
}

/* Counts the first `piece` of every `stride` of n symbols (the last may be short), and adds to counts[256]. */
void ciera_rans_count(const uint8_t *symbols, size_t n, size_t piece, size_t stride, uint64_t counts[256])
{
    if (piece >= stride) { /* all */
        piece = stride = MOST;
    }
    for (size_t at = 0; at < n; at += stride)
        count(symbols + at, n - at < piece ? n - at : piece, counts);
}
