"""Blocks in use that keep memory from being freed, and changes of the program that avoid this."""
