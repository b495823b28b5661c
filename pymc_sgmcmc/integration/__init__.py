"""Effects of groups of rows, integrated out of the likelihood."""
