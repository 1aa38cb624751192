/* Buffers that show every access beside them, for drivers that are compiled with AddressSanitizer.
 *
 * The sanitizer sees what the compiler knows to be an access. It does not see masked and streaming vector
 * instructions, so each buffer is also tried at the very end, and at the very start, of memory next to which no
 * access is allowed: there the processor itself refuses. What is written near a buffer, where it is allowed, shows
 * in the pattern around it. */
#ifndef GUARDED_H
#define GUARDED_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum placement { AT_START, AT_END, ON_HEAP, PLACEMENTS };
enum { SLOTS = 16, AROUND = 512, PATTERN = 0xA5 };

static struct {
    uint8_t *room; /* of memory between two pages that nobody may touch */
    uint8_t *heap; /* what to free; NULL if the buffer is not there */
    uint8_t *at;
    size_t bytes;
} slots[SLOTS];
static size_t room_bytes;

/* What is being driven, for reports. */
static char where[200];

#define REQUIRE(condition, ...)                                                                                        \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                            \
            fprintf(stderr, __VA_ARGS__);                                                                              \
            fprintf(stderr, "\nwhile driving: %s\n", where);                                                           \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* The sanitizer calls this before its report. */
void __asan_on_error(void);
void __asan_on_error(void)
{
    fprintf(stderr, "while driving: %s\n", where);
}

/* Makes every slot's memory, for buffers of up to so many bytes. Once, at the start. */
static void make_rooms(size_t most_bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    room_bytes = (most_bytes + page - 1) / page * page;
    for (int slot = 0; slot < SLOTS; ++slot) {
        uint8_t *all = mmap(NULL, room_bytes + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        REQUIRE(all != MAP_FAILED, "no memory for slot %d", slot);
        REQUIRE(!mprotect(all, page, PROT_NONE) && !mprotect(all + page + room_bytes, page, PROT_NONE), "mprotect");
        slots[slot].room = all + page;
    }
}

/* Where the pattern around a slot's buffer begins and ends. */
static void surroundings(int slot, uint8_t **from, uint8_t **to)
{
    uint8_t *first = slots[slot].room, *last = first + room_bytes;
    *from = slots[slot].at - first < AROUND ? first : slots[slot].at - AROUND;
    *to = last - (slots[slot].at + slots[slot].bytes) < AROUND ? last : slots[slot].at + slots[slot].bytes + AROUND;
}

/* A buffer of exactly so many bytes, all of the pattern. On the heap it begins `shift` bytes off alignment. */
static uint8_t *placed(int slot, enum placement placement, size_t bytes, size_t shift)
{
    REQUIRE(bytes <= room_bytes && slot < SLOTS, "slot %d, %zu bytes", slot, bytes);
    slots[slot].bytes = bytes;
    slots[slot].heap = NULL;
    if (placement == ON_HEAP) {
        slots[slot].heap = malloc(shift + bytes + (shift + bytes == 0));
        REQUIRE(slots[slot].heap, "no memory");
        slots[slot].at = slots[slot].heap + shift;
        memset(slots[slot].heap, PATTERN, shift + bytes);
        return slots[slot].at;
    }
    uint8_t *from, *to;
    slots[slot].at = placement == AT_START ? slots[slot].room : slots[slot].room + room_bytes - bytes;
    surroundings(slot, &from, &to);
    memset(from, PATTERN, (size_t)(to - from));
    return slots[slot].at;
}

/* The same, with the content of `from`. */
static inline uint8_t *placed_copy(int slot, enum placement placement, const uint8_t *from, size_t bytes,
                                   size_t shift)
{
    uint8_t *at = placed(slot, placement, bytes, shift);
    if (bytes)
        memcpy(at, from, bytes);
    return at;
}

/* That nothing beside the slot's buffer was written; gives a heap buffer back. */
static void released(int slot)
{
    uint8_t *from = slots[slot].heap, *to = slots[slot].at;
    if (!slots[slot].heap)
        surroundings(slot, &from, &to);
    for (uint8_t *p = from; p < to; ++p) {
        if (p == slots[slot].at)
            p += slots[slot].bytes;
        REQUIRE(p == to || *p == PATTERN, "slot %d: byte %td from its start was written", slot, p - slots[slot].at);
    }
    free(slots[slot].heap);
}

/* Pseudo-random 64 bits (xorshift); state must not be 0. */
static inline uint64_t drawn(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

#endif
