"""Memory usage while a cell runs, and the monitor widget."""
