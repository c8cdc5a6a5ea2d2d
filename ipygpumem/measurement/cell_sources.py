"""The text of notebook cells, from Python's `linecache`."""

from __future__ import annotations

import linecache


def notebook_sources() -> dict[str, str]:
    """Text of the code that was not read from files, such as notebook cells, by file name in tracebacks."""
    # linecache keeps (size, mtime, lines, name); only code from a file has an mtime. IPython 7 sets one, but also lists
    # its cells in a separate attribute
    cells = getattr(linecache, "_ipython_cache", {})
    entries = ((name, entry) for name, entry in list(linecache.cache.items()) if len(entry) > 1)
    return {name: "".join(entry[2]) for name, entry in entries if entry[1] is None or name in cells}
