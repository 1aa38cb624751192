"""The systems under test: CIERA and Piper. Knows nothing of the harness."""
