/* Instruction levels: which kernels the processor at hand can run. */
#ifndef CIERA_ISA_H
#define CIERA_ISA_H

/* The numbers are known to library.py. avx512 means F, BW, DQ, VL, VBMI and VBMI2 (Ice Lake, Zen 4 and later). */
enum { ISA_SCALAR = 0, ISA_AVX2 = 1, ISA_AVX512 = 2 };

#if defined(__x86_64__)
#define CIERA_X86 1
#define TARGET_AVX2 __attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt")))
#define TARGET_AVX512                                                                                                  \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi,bmi2,lzcnt,popcnt")))
#endif

/* The highest level that the processor and the operating system support. */
static inline int ciera_best_isa(void)
{
#ifdef CIERA_X86
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("bmi2"))
        return ISA_SCALAR;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi") &&
        __builtin_cpu_supports("avx512vbmi2"))
        return ISA_AVX512;
    return ISA_AVX2;
#else
    return ISA_SCALAR;
#endif
}

#endif
