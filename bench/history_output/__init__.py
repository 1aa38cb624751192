"""What `bench history` shows: on a terminal, as JSON, and as a page of plots."""
