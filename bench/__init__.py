"""The harness: measures, stores, judges, shows. Knows nothing of mixture-of-experts models."""

__version__ = "0.1.0"
