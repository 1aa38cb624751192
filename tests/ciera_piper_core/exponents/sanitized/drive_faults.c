/* Makes the mistakes that guarded.h and the sanitizers are there to show: one, by its name, a run. */
#include "guarded.h"

#include "isa.h"

#ifdef CIERA_X86
#include <immintrin.h>

/* What the compiler's sanitizer does not see: a vector store with a mask, and a streaming one. */
TARGET_AVX512 static void masked_store(uint8_t *at, uint64_t mask)
{
    _mm512_mask_storeu_epi8(at, mask, _mm512_setzero_si512());
}

TARGET_AVX2 static void streaming_store(uint8_t *at)
{
    _mm256_stream_si256((__m256i *)at, _mm256_setzero_si256());
}
#endif

int main(int argc, char **argv)
{
    const char *fault = argc > 1 ? argv[1] : "";
    snprintf(where, sizeof where, "%s", fault);
    volatile uint8_t byte = 0;
    volatile int number = 0x7fffffff;
    make_rooms(4096);
    uint8_t *start = placed(0, AT_START, 100, 0), *end = placed(1, AT_END, 100, 0), *heap = placed(2, ON_HEAP, 100, 3);
    if (!strcmp(fault, "read before"))
        byte = start[-1];
    else if (!strcmp(fault, "read behind"))
        byte = end[100];
    else if (!strcmp(fault, "read behind on heap"))
        byte = heap[100];
    else if (!strcmp(fault, "write beside"))
        start[100] = byte;
    else if (!strcmp(fault, "write before"))
        end[-3] = byte;
    else if (!strcmp(fault, "leak")) {
        /* Overwritten at once, or it would still be seen on the stack. */
        uint8_t *volatile lost = malloc(100);
        lost = NULL;
        (void)lost;
    } else if (!strcmp(fault, "signed overflow"))
        number += 1;
    else if (!strcmp(fault, "misaligned"))
        byte = (uint8_t)*(uint32_t *)heap; /* 3 bytes off alignment */
#ifdef CIERA_X86
    else if (!strcmp(fault, "masked store") && ciera_best_isa() == ISA_AVX512)
        masked_store(end + 99, 3);
    else if (!strcmp(fault, "streaming store") && ciera_best_isa() >= ISA_AVX2)
        streaming_store(end + 100);
#endif
    else if (strcmp(fault, "none"))
        return 3;
    for (int slot = 0; slot < 3; ++slot)
        released(slot);
    return 0;
}
