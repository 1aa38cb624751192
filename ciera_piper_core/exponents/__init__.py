"""Exponents of floating point tensors: bit layout, blocks and hashes, lossless coding, and the kernels that do it."""
