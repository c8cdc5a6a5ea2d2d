"""The command ``whatif``, which compares allocator settings for a recording."""
