"""Functions for other processes, in a module that imports nothing large."""

import os
import traceback


def exit_status_of_child(function):
    """Call a function in a forked child process. Return the exit status: 1 for False, 2 for an exception, otherwise 0.

    The child must not return from here, because it would continue to run pytest.
    """
    child = os.fork()
    if child == 0:
        status = 2
        try:
            status = int(function() is False)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def path_or_crash(path):
    """Return the path, or exit immediately with status 1 if it ends with 3, as if the process had crashed."""
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
