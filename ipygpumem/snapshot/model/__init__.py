"""The contents of a snapshot: events, segments, call stacks, cells, and the history they add up to."""
