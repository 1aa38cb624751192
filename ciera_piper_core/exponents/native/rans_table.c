/* Frequency tables of the rANS coder: made from counts, read from the wire, and what coding with one would cost. */
#include <string.h>

#include "rans.h"

enum {
    LOG_BITS = 16, /* fraction bits of logarithms, and of costs in bits */
    LEAST_SHARE = 128 /* a symbol has an entry if at least one in 128 symbols is it */
};

uint32_t rans_log2(uint64_t value)
{
    unsigned whole = 63 - (unsigned)__builtin_clzll(value);
    uint64_t mantissa = whole > 31 ? value >> (whole - 31) : value << (31 - whole); /* in [2^31, 2^32) */
    uint32_t result = whole;
    for (unsigned bit = 0; bit < LOG_BITS; ++bit) {
        mantissa = mantissa * mantissa >> 31;
        result = result << 1 | (uint32_t)(mantissa >> 32);
        mantissa >>= mantissa >> 32;
    }
    return result;
}

/* Symbols in the order of their counts, most frequent first, lower symbols first among equals; how many occur. */
static unsigned sort_symbols(const uint64_t counts[256], uint8_t order[256])
{
    unsigned used = 0;
    for (unsigned symbol = 0; symbol < 256; ++symbol) {
        if (!counts[symbol])
            continue;
        unsigned at = used++;
        for (; at > 0 && counts[order[at - 1]] < counts[symbol]; --at)
            order[at] = order[at - 1];
        order[at] = (uint8_t)symbol;
    }
    return used;
}

/* Makes the table that fits counts, as it lies on the wire (room for RANS_TABLE_BYTES). Its bytes; 0 if no symbol is
 * frequent enough for an entry, or there is but one symbol. `any`: the table must be able to code every symbol, not
 * only those that were counted. */
size_t ciera_rans_build_table(const uint64_t counts[256], int any, uint8_t *wire)
{
    uint8_t order[256];
    unsigned used = sort_symbols(counts, order);
    uint64_t total = 0, left = 0;
    for (unsigned at = 0; at < used; ++at)
        total += counts[order[at]];
    unsigned entries = 0;
    left = total;
    while (entries < used && entries < RANS_ESCAPE && counts[order[entries]] * LEAST_SHARE >= total)
        left -= counts[order[entries++]];
    unsigned shared = entries + (left || any);
    if (!entries || shared == 1)
        return 0;

    /* Slots go one by one to the entry that gains most by one more; the first among equals. */
    uint64_t weight[RANS_ENTRIES];
    uint32_t share[RANS_ENTRIES], logs[RANS_SLOTS + 1];
    for (uint32_t count = 1; count <= RANS_SLOTS; ++count)
        logs[count] = rans_log2(count);
    for (unsigned entry = 0; entry < shared; ++entry) {
        weight[entry] = entry < entries ? counts[order[entry]] : left;
        share[entry] = 1;
    }
    for (unsigned taken = shared; taken < RANS_SLOTS; ++taken) {
        unsigned best = 0;
        uint64_t best_gain = 0;
        for (unsigned entry = 0; entry < shared; ++entry) {
            uint64_t gain = weight[entry] * (logs[share[entry] + 1] - logs[share[entry]]);
            if (gain > best_gain) {
                best = entry;
                best_gain = gain;
            }
        }
        ++share[best];
    }

    wire[0] = (uint8_t)entries;
    for (unsigned entry = 0; entry < entries; ++entry) {
        wire[1 + 2 * entry] = order[entry];
        wire[2 + 2 * entry] = (uint8_t)share[entry];
    }
    return 1 + 2 * entries;
}

size_t rans_read_table(const uint8_t *wire, size_t room, unsigned symbol_bits, struct rans_model *model)
{
    if (room < 1)
        return 0;
    unsigned entries = wire[0], slot = 0;
    if (entries < 1 || entries > RANS_ESCAPE || room < 1 + 2 * entries)
        return 0;
    memset(model->index, RANS_ESCAPE, sizeof model->index);
    model->entries = entries;
    for (unsigned entry = 0; entry < RANS_ENTRIES; ++entry) {
        unsigned symbol = 0, share = 0;
        if (entry < entries) {
            symbol = wire[1 + 2 * entry];
            share = wire[2 + 2 * entry];
            if (symbol >> symbol_bits || model->index[symbol] != RANS_ESCAPE || !share || share >= RANS_SLOTS ||
                slot + share > RANS_SLOTS)
                return 0;
            model->index[symbol] = (uint8_t)entry;
        } else if (entry == RANS_ESCAPE) {
            share = RANS_SLOTS - slot;
            model->escape_slot = slot;
        }
        unsigned divisor = share ? share : 1; /* entries that no slot leads to */
        model->symbol[entry] = (uint8_t)symbol;
        model->share[entry] = (uint16_t)divisor;
        model->start[entry] = (uint16_t)slot;
        model->reciprocal[entry] = (uint16_t)(65535 / divisor);
        model->inverse[entry] = ((1u << 26) + divisor - 1) / divisor;
        for (unsigned rank = 0; rank < share; ++rank, ++slot) {
            model->slot_symbol[slot] = (uint8_t)symbol;
            model->slot_entry[slot] = (uint8_t)entry;
            model->slot_share[slot] = (uint16_t)share;
            model->slot_rank[slot] = (uint16_t)rank;
        }
    }
    return 1 + 2 * entries;
}

/* Bits, in 2^-16, that counted symbols take with this table, escaped ones at the entropy of what is escaped;
 * without states and framing. UINT64_MAX if the table is none, or cannot code them. */
uint64_t ciera_rans_cost(const uint64_t counts[256], const uint8_t *wire, size_t wire_bytes)
{
    struct rans_model model;
    if (!rans_read_table(wire, wire_bytes, 8, &model))
        return UINT64_MAX;
    uint64_t bits = 0, escapes = 0;
    for (unsigned symbol = 0; symbol < 256; ++symbol) {
        if (!counts[symbol])
            continue;
        unsigned entry = model.index[symbol];
        if (entry == RANS_ESCAPE && model.escape_slot == RANS_SLOTS)
            return UINT64_MAX;
        bits += counts[symbol] * ((RANS_SLOT_BITS << LOG_BITS) - rans_log2(model.share[entry]));
        if (entry == RANS_ESCAPE) {
            escapes += counts[symbol];
            bits -= counts[symbol] * rans_log2(counts[symbol]); /* wraps, and back below */
        }
    }
    return escapes ? bits + escapes * rans_log2(escapes) : bits;
}
