"""Memory use by line of source code."""
