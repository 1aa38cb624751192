"""Pages of the core's verbs: one HTML file each, with data, scripts and styles, which works without a network."""
