"""Pipelined training: the mesh of ranks, the stages of a model, and the executor of a schedule."""
