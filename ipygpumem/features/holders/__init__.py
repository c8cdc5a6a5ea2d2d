"""Which variables and objects keep GPU memory allocated."""
