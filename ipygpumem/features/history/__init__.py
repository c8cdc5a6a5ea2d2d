"""History and comparison of the measurements in sessions, logs and executed notebooks."""
