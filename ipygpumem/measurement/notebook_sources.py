"""Source code of notebook cells."""

from __future__ import annotations

import linecache


def notebook_sources() -> dict[str, str]:
    """Return the source code of notebook cells and of other code without a file, by the file name in tracebacks."""
    # entries are (size, mtime, lines, name), where mtime is None unless the code is from a file. IPython 7 always sets
    # mtime and lists its cells in a separate attribute
    cells = getattr(linecache, "_ipython_cache", {})
    entries = ((name, entry) for name, entry in list(linecache.cache.items()) if len(entry) > 1)
    return {name: "".join(entry[2]) for name, entry in entries if entry[1] is None or name in cells}
