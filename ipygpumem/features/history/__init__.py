"""Reports of a session over time."""
