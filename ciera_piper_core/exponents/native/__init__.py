"""CPU kernels in C11 behind ctypes, for AVX-512, AVX2 and any processor, chosen when they are called."""
