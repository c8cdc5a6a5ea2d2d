"""Questions that a snapshot answers."""
