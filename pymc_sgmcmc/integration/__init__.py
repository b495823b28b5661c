"""Effects of groups of rows, and missing outcomes, integrated out of the likelihood."""
