"""Memory by source line."""
