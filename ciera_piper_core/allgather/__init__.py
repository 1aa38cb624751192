"""The compressed Allgather: resends only exponents that changed, chooses what is worth it, hides the coding."""
