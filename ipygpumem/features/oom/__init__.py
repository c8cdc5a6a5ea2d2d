"""Out-of-memory errors: what was requested, what the device looked like, and who held the memory."""
