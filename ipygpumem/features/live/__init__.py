"""Live display of memory usage below a running cell, and the monitor widget."""
