"""Blocks in use that keep memory from being freed, and changes to the program that avoid this."""
