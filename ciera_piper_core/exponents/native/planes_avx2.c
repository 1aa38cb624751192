/* Kernels for AVX2. */
#include "isa.h"

#ifdef CIERA_X86
#include "lanes_avx2.h"

#include "kernels.h"
#endif
