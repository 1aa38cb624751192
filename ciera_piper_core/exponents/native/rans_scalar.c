/* One step of the rANS coder in plain C: what every processor runs, and what ends a chunk on the others. */
#include "rans.h"

void rans_encode_lanes(const struct rans_model *model, const uint8_t *symbols, unsigned lanes,
                       uint16_t states[RANS_LANES], uint8_t **coded, uint8_t **escapes)
{
    uint8_t *byte = *coded, *escape = *escapes;
    for (unsigned end = lanes; end > 0;) {
        unsigned first = (end - 1) / RANS_UNIT * RANS_UNIT;
        for (unsigned lane = first; lane < end; ++lane) {
            unsigned entry = model->index[symbols[lane]];
            uint32_t state = states[lane], share = model->share[entry];
            /* Both are written in any case, and kept where the pointer moves on. */
            *byte = (uint8_t)state;
            *escape = symbols[lane];
            int full = state >= share << 10;
            byte += full;
            escape += entry == RANS_ESCAPE;
            state >>= full ? 8 : 0;
            uint32_t quotient = (uint32_t)((uint64_t)state * model->inverse[entry] >> 26); /* exact below 2^20 */
            states[lane] = (uint16_t)(state + model->start[entry] + quotient * (RANS_SLOTS - share));
        }
        end = first;
    }
    *coded = byte;
    *escapes = escape;
}

int rans_decode_lanes(const struct rans_model *model, uint8_t *symbols, unsigned lanes, uint16_t states[RANS_LANES],
                      const uint8_t **coded, const uint8_t *coded_begin, const uint8_t **escapes,
                      const uint8_t *escapes_begin)
{
    const uint8_t *byte = *coded, *escape = *escapes;
    for (unsigned first = 0; first < lanes; first += RANS_UNIT) {
        for (unsigned lane = first + RANS_UNIT < lanes ? first + RANS_UNIT : lanes; lane-- > first;) {
            uint32_t state = states[lane], slot = state % RANS_SLOTS;
            symbols[lane] = model->slot_symbol[slot];
            if (slot >= model->escape_slot) {
                if (escape <= escapes_begin)
                    return -1;
                symbols[lane] = *--escape;
            }
            state = model->slot_share[slot] * (state >> RANS_SLOT_BITS) + model->slot_rank[slot];
            if (state < RANS_LEAST_STATE) {
                if (byte <= coded_begin)
                    return -1;
                state = state << 8 | *--byte;
            }
            states[lane] = (uint16_t)state;
        }
    }
    *coded = byte;
    *escapes = escape;
    return 0;
}
