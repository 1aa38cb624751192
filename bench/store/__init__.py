"""Runs on disk: append-only lines while open, sealed Parquet after, DuckDB for queries."""
