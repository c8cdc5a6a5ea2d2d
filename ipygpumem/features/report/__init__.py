"""Display of reports: the line below a cell, the requested sections, and the full breakdown."""
