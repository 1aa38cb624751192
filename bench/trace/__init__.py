"""Traces of torch's profiler (Kineto): read, merged over ranks, broken down to where the time went."""
