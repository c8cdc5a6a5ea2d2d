"""Memory usage by line of source code."""
