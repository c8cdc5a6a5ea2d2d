"""Views of a snapshot: in a notebook, as a standalone HTML page and as a static image."""
