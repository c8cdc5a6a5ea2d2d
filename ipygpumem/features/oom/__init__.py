"""Out-of-memory errors: the failed allocation, the state of the device, and the holders of its memory."""
