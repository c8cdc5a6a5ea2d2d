"""Find the variables and objects that keep GPU memory allocated."""
