"""Model architectures, and the transformer parts that are built from them."""
