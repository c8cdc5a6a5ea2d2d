"""Out-of-memory errors: the failed request, the state of the device, and the holders of its memory."""
