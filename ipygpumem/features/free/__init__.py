"""Free the memory held by variables, outputs and the last exception."""
