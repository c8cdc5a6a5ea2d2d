"""Sources of memory values. Each library is imported in only one module."""
