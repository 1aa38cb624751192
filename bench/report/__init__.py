"""Tables for the terminal and the self-contained HTML report."""
