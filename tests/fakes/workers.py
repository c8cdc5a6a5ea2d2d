"""Functions for worker processes, in a module that imports nothing large."""

import os


def path_or_crash(path):
    """Return the path; of the one that ends with 3, end the process, as the kernel does when it runs out of memory."""
    if path.endswith("3"):
        os._exit(1)
    return path
