"""Other processes on the devices."""
