"""Starting and supervising ranks: local groups, outside launchers, the emulated cluster."""
