/* Kernels that any processor runs. */
#include "lanes_scalar.h"

#include "kernels.h"
