"""Display of reports: the short report below a cell, the requested sections, and the full breakdown."""
