"""Memory limits of a measurement."""
