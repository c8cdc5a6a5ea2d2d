"""Memory levels while a cell runs, and the monitor widget."""
