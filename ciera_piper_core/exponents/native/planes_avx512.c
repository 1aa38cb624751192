/* Kernels for AVX-512. */
#include "isa.h"

#ifdef CIERA_X86
#include "lanes_avx512.h"

#include "kernels.h"
#endif
