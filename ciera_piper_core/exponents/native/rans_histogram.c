/* Counts symbols, all of them or pieces of them, for the rANS coder's frequency tables. */
#include <string.h>

#include "rans.h"

enum { TABLES = 8 };

/* Counts symbols [0, n), n < 2^32. Neighbours go to different tables: else equal ones, each waiting for the store of
 * the last, would take several cycles a byte. */
static void count(const uint8_t *restrict symbols, size_t n, uint32_t tables[restrict TABLES][256])
{
    size_t at = 0;
    for (; n - at >= 8; at += 8) {
        uint64_t word;
        memcpy(&word, symbols + at, 8);
        for (unsigned byte = 0; byte < TABLES; ++byte)
            ++tables[byte][word >> 8 * byte & 0xff];
    }
    for (; at < n; ++at)
        ++tables[0][symbols[at]];
}

void ciera_rans_count(const uint8_t *symbols, size_t n, size_t piece, size_t stride, uint64_t counts[256])
{
    const size_t most = (size_t)1 << 30; /* symbols between two sums, so that 32-bit counters never overflow */
    uint32_t tables[TABLES][256];
    if (piece >= stride) /* all */
        piece = stride = most;
    for (size_t at = 0; at < n;) {
        memset(tables, 0, sizeof tables);
        for (size_t counted = 0; at < n && counted + piece <= most; at += stride, counted += piece)
            count(symbols + at, n - at < piece ? n - at : piece, tables);
        for (unsigned symbol = 0; symbol < 256; ++symbol)
            for (unsigned table = 0; table < TABLES; ++table)
                counts[symbol] += tables[table][symbol];
    }
}
