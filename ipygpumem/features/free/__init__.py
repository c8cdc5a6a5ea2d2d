"""Freeing memory: exception tracebacks, cell outputs, variables."""
