"""Profilers around the ranks of a case: stacks, traces on one clock, and NVIDIA's tools."""
