"""Clocks, sampling and stopping, rank synchronisation."""
