"""Functions for worker processes, in a module that imports nothing large."""

import os


def path_or_crash(path):
    """Return the path. For a path that ends with 3, kill the process, as the kernel does when memory runs out."""
    if path.endswith("3"):
        os._exit(1)
    return path
