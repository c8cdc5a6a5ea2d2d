"""Free memory held by exception tracebacks, cell outputs and variables."""
