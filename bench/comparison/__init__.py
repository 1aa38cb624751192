"""Cases of one suite side by side: measured by turns, and compared only if they do the same."""
