/* Coded streams of the rANS coder, written: how their parts lie in bytes. ../rans/__init__.py describes the format. */
#include <stdlib.h>
#include <string.h>

#include "rans.h"

static int64_t encode_stream(int isa, const uint8_t *symbols, size_t n, unsigned symbol_bits, uint8_t *out,
                             struct rans_plan *kept, unsigned depth);

/* Appends symbols as an inner stream at byte `at` of out: where it ends, 0 if that is beyond room, or an error. */
static int64_t append(int isa, const uint8_t *symbols, size_t n, unsigned symbol_bits, uint8_t *out, size_t room,
                      size_t at, unsigned depth)
{
    size_t bound = rans_bound(n, symbol_bits);
    int direct = bound <= room - at;
    uint8_t *inner = direct ? out + at : malloc(bound);
    if (!inner)
        return RANS_NO_MEMORY;
    int64_t size = encode_stream(isa, symbols, n, symbol_bits, inner, NULL, depth + 1);
    int64_t end = size < 0 ? size : (size_t)size > room - at ? 0 : (int64_t)at + size;
    if (!direct) {
        if (end > 0)
            memcpy(out + at, inner, (size_t)size);
        free(inner);
    }
    return end;
}

/* A stream of kind RANS into out [0, room): its bytes, 0 if it does not fit or the table cannot code a symbol, or an
 * error. */
static int64_t encode_rans(int isa, const uint8_t *symbols, size_t n, unsigned symbol_bits,
                           const struct rans_plan *plan, uint8_t *out, size_t room, unsigned depth)
{
    size_t directory_at = 1 + (size_t)plan->table_bytes;
    size_t at = directory_at + RANS_DIRECTORY_BYTES * ((n + RANS_CHUNK - 1) / RANS_CHUNK);
    if (at >= room)
        return 0;
    uint8_t *escapes = malloc(n + RANS_PAD), *scratch = malloc(rans_worst_bytes(n < RANS_CHUNK ? n : RANS_CHUNK));
    int64_t end = RANS_NO_MEMORY;
    if (escapes && scratch) {
        uint64_t escaped = 0;
        int64_t size = ciera_rans_encode(isa, plan->table, plan->table_bytes, symbols, n, out + at, room - at,
                                         out + directory_at, escapes, &escaped, scratch);
        out[0] = RANS_KIND_RANS;
        memcpy(out + 1, plan->table, plan->table_bytes);
        end = size < 0 ? 0 : append(isa, escapes, escaped, symbol_bits, out, room, at + (size_t)size, depth);
    }
    free(escapes);
    free(scratch);
    return end;
}

/* A stream of kind SPARSE, likewise. */
static int64_t encode_sparse(int isa, const uint8_t *symbols, size_t n, unsigned symbol_bits, uint8_t usual,
                             uint8_t *out, size_t room, unsigned depth)
{
    if (room <= RANS_SPARSE_BYTES)
        return 0;
    uint8_t *others = malloc(n + RANS_PAD), *bits = malloc((n + 7) / 8);
    int64_t end = RANS_NO_MEMORY;
    if (others && bits) {
        size_t count = ciera_rans_split_sparse(isa, symbols, n, usual, bits, others);
        end = append(isa, bits, (n + 7) / 8, 8, out, room, RANS_SPARSE_BYTES, depth);
        if (end > 0) {
            out[0] = RANS_KIND_SPARSE;
            out[1] = usual;
            rans_write32(out + 2, (uint32_t)((size_t)end - RANS_SPARSE_BYTES));
            end = append(isa, others, count, symbol_bits, out, room, (size_t)end, depth);
        }
    }
    free(others);
    free(bits);
    return end;
}

static int64_t encode_planned(int isa, const uint8_t *symbols, size_t n, unsigned symbol_bits,
                              const struct rans_plan *plan, uint8_t *out, size_t room, unsigned depth)
{
    if (rans_plan_symbols(plan) >> symbol_bits)
        return RANS_TOO_WIDE;
    if (plan->kind == RANS_KIND_RANS)
        return encode_rans(isa, symbols, n, symbol_bits, plan, out, room, depth);
    if (plan->kind == RANS_KIND_SPARSE)
        return encode_sparse(isa, symbols, n, symbol_bits, plan->usual, out, room, depth);
    return 0;
}

/* A stream into out, which has room for the bound. `kept`: the plan to use while it fits, and to renew; or NULL. */
static int64_t encode_stream(int isa, const uint8_t *symbols, size_t n, unsigned symbol_bits, uint8_t *out,
                             struct rans_plan *kept, unsigned depth)
{
    if (!n)
        return 0;
    if (ciera_rans_constant(symbols, n)) {
        if (symbols[0] >> symbol_bits)
            return RANS_TOO_WIDE;
        out[0] = RANS_KIND_CONSTANT;
        out[1] = symbols[0];
        return 2;
    }
    struct rans_plan own = {.kind = RANS_KIND_RAW}, *plan = kept ? kept : &own;
    size_t bound = rans_bound(n, symbol_bits);
    if (depth < RANS_MOST_DEPTH &&
        (!kept || kept->kind == RANS_KIND_NONE || !rans_plan_fits(kept, symbols, n, symbol_bits)))
        rans_make_plan(symbols, n, symbol_bits, 0, plan);
    /* What is not smaller than raw is raw. */
    int64_t size = encode_planned(isa, symbols, n, symbol_bits, plan, out, bound - 1, depth);
    if (!size && !rans_plan_serves_any(plan)) {
        rans_make_plan(symbols, n, symbol_bits, 1, plan);
        size = encode_planned(isa, symbols, n, symbol_bits, plan, out, bound - 1, depth);
    }
    if (size)
        return size;
    out[0] = RANS_KIND_RAW;
    if (symbol_bits == 8)
        memcpy(out + 1, symbols, n);
    else if (ciera_rans_pack5(symbols, n, out + 1) >> symbol_bits)
        return RANS_TOO_WIDE;
    return (int64_t)bound;
}

/* Codes n symbols (5 or 8 bits) as a stream.
 *
 * Reads symbols [0, n); writes out [0, bound) at most, where the bound is that of raw symbols. `kept`: a plan to use
 * again and to renew when it no longer fits, its kind RANS_KIND_NONE at first; or NULL. `depth`: streams around this
 * one. The stream's bytes; RANS_TOO_WIDE if a symbol has more bits; RANS_NO_MEMORY. */
int64_t ciera_rans_encode_stream(int isa, const uint8_t *symbols, size_t n, unsigned symbol_bits, uint8_t *out,
                                 struct rans_plan *kept, unsigned depth)
{
    return encode_stream(isa, symbols, n, symbol_bits, out, kept, depth);
}
