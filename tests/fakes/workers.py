"""Functions for worker processes, in a module that imports nothing large."""

import os


def path_or_crash(path):
    """Return the path, or exit abruptly if it ends with 3, as if the operating system had killed the process."""
    if path.endswith("3"):
        os._exit(1)
    return path


def measured(mib):
    """Return the report of a measurement of an allocation in host memory."""
    from ipygpumem import measure

    with measure() as m:
        block = b"x" * (mib << 20)
    del block
    return m.report
