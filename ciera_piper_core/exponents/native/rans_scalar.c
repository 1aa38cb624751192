/* One step of the rANS coder in plain C: what every processor runs, and what ends a chunk on the others. */
#include "rans.h"

void rans_encode_lanes(const struct rans_model *restrict model, const uint8_t *restrict symbols, unsigned lanes,
                       uint16_t states[restrict RANS_LANES], uint8_t **coded, uint8_t **escapes)
{
    uint8_t *restrict byte = *coded, *restrict escape = *escapes;
    for (unsigned end = lanes; end > 0;) {
        unsigned first = (end - 1) / RANS_UNIT * RANS_UNIT;
        for (unsigned lane = first; lane < end; ++lane) {
            unsigned entry = model->index[symbols[lane]];
            uint32_t state = states[lane], share = model->share[entry];
            /* Both are written in any case, and kept where the pointer moves on: no branches to guess wrong. */
            *byte = (uint8_t)state;
            *escape = symbols[lane];
            unsigned full = state >= share << 10;
            byte += full;
            escape += entry == RANS_ESCAPE;
            state >>= 8 * full;
            uint32_t quotient = (uint32_t)((uint64_t)state * model->inverse[entry] >> 26); /* exact below 2^20 */
            states[lane] = (uint16_t)(state + model->start[entry] + quotient * (RANS_SLOTS - share));
        }
        end = first;
    }
    *coded = byte;
    *escapes = escape;
}

/* `enough`: there is a coded byte for every lane, so that none of them must be asked for. */
static inline int decode_lanes(const struct rans_model *restrict model, uint8_t *restrict symbols, unsigned lanes,
                               uint16_t states[restrict RANS_LANES], const uint8_t **coded,
                               const uint8_t *coded_begin, const uint8_t **escapes, const int enough)
{
    const uint8_t *byte = *coded, *escape = *escapes;
    for (unsigned first = 0; first < lanes; first += RANS_UNIT) {
        for (unsigned lane = first + RANS_UNIT < lanes ? first + RANS_UNIT : lanes; lane-- > first;) {
            uint32_t state = states[lane], slot = state % RANS_SLOTS;
            /* The escape's symbol is 0 in the table, and escaped or not is a mask: no branches to guess wrong. */
            unsigned escaped = slot >= model->escape_slot;
            symbols[lane] = (uint8_t)(model->slot_symbol[slot] | (escape[-1] & (0u - escaped)));
            escape -= escaped;
            state = model->slot_share[slot] * (state >> RANS_SLOT_BITS) + model->slot_rank[slot];
            unsigned empty = state < RANS_LEAST_STATE;
            if (!enough && empty && byte <= coded_begin)
                return -1;
            if (enough || empty)
                state = state << 8 * empty | (byte[-1] & (0u - empty));
            byte -= empty;
            states[lane] = (uint16_t)state;
        }
    }
    *coded = byte;
    *escapes = escape;
    return 0;
}

int rans_decode_lanes(const struct rans_model *model, uint8_t *symbols, unsigned lanes, uint16_t states[RANS_LANES],
                      const uint8_t **coded, const uint8_t *coded_begin, const uint8_t **escapes,
                      const uint8_t *escapes_begin)
{
    if (*escapes < escapes_begin) /* by steps before, which look only after the fact */
        return -1;
    int failed = *coded - coded_begin >= (ptrdiff_t)lanes
                     ? decode_lanes(model, symbols, lanes, states, coded, coded_begin, escapes, 1)
                     : decode_lanes(model, symbols, lanes, states, coded, coded_begin, escapes, 0);
    return failed || *escapes < escapes_begin ? -1 : 0;
}
