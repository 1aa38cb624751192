/* How a stream will be coded: raw, sparse, or with which table; and whether an earlier plan still fits.
 * ../rans/plan.py says why, and does the same. */
#include "rans.h"

enum {
    COUNT_ALL = 1 << 18, /* streams of so many symbols are counted whole */
    PIECE = 4096,
    MOST_PIECES = 256,
    CHECK_PIECE = 1024,
    LEAST_CHECK_PIECES = 16,
    MOST_CHECK_PIECES = 64,
    STRIDE = 30011,
    DRIFT_SHARE = 128,
    DRIFT_BITS = 64
};

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static void plan_of(const uint64_t counts[256], unsigned symbol_bits, int any, struct rans_plan *plan)
{
    uint64_t total = 0;
    unsigned usual = 0;
    for (unsigned symbol = 0; symbol < 256; ++symbol) {
        total += counts[symbol];
        if (counts[symbol] > counts[usual])
            usual = symbol;
    }
    *plan = (struct rans_plan){.kind = RANS_KIND_RAW};
    if (counts[usual] * 16 >= total * 15) {
        plan->kind = RANS_KIND_SPARSE;
        plan->usual = (uint8_t)usual;
        return;
    }
    size_t bytes = ciera_rans_build_table(counts, any, plan->table);
    if (!bytes || ciera_rans_cost(counts, plan->table, bytes) >= total * symbol_bits << 16)
        return;
    plan->kind = RANS_KIND_RANS;
    plan->table_bytes = (uint8_t)bytes;
}

int rans_plan_serves_any(const struct rans_plan *plan)
{
    unsigned slots = 0;
    for (unsigned at = 2; at < plan->table_bytes; at += 2)
        slots += plan->table[at];
    return slots < RANS_SLOTS;
}

void rans_make_plan(const uint8_t *symbols, size_t n, unsigned symbol_bits, int any, struct rans_plan *plan)
{
    uint64_t counts[256] = {0};
    size_t stride = n <= COUNT_ALL ? 1 : larger(STRIDE, n / MOST_PIECES | 1);
    ciera_rans_count(symbols, n, PIECE, stride, counts);
    plan_of(counts, symbol_bits, any, plan);
}

unsigned rans_plan_symbols(const struct rans_plan *plan)
{
    unsigned all = plan->usual;
    for (unsigned at = 1; at < plan->table_bytes; at += 2)
        all |= plan->table[at];
    return all;
}

int rans_plan_fits(const struct rans_plan *plan, const uint8_t *symbols, size_t n, unsigned symbol_bits)
{
    if (rans_plan_symbols(plan) >> symbol_bits)
        return 0;
    uint64_t counts[256] = {0};
    size_t stride = n / LEAST_CHECK_PIECES | 1;
    stride = larger(stride < STRIDE ? stride : STRIDE, n / MOST_CHECK_PIECES | 1);
    ciera_rans_count(symbols, n, CHECK_PIECE, stride, counts);
    if (plan->kind == RANS_KIND_SPARSE) {
        uint64_t total = 0;
        for (unsigned symbol = 0; symbol < 256; ++symbol)
            total += counts[symbol];
        return counts[plan->usual] * 32 >= total * 29;
    }
    struct rans_plan fresh;
    plan_of(counts, symbol_bits, rans_plan_serves_any(plan), &fresh);
    if (fresh.kind != plan->kind || plan->kind == RANS_KIND_RAW)
        return fresh.kind == plan->kind;
    uint64_t now = ciera_rans_cost(counts, plan->table, plan->table_bytes);
    uint64_t best = ciera_rans_cost(counts, fresh.table, fresh.table_bytes);
    return now != UINT64_MAX && (now <= best || now - best <= best / DRIFT_SHARE + ((uint64_t)DRIFT_BITS << 16));
}
