"""A report on the screen: the line below a cell, the sections that were requested, and the full breakdown."""
