"""Data model of a snapshot: events, segments, call stacks, cells, and their history."""
