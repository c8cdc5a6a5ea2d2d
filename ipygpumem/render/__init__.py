"""Facts as text, HTML and JSON. Knows the ledger and nothing else."""

from ipygpumem.render.history import Page, comparison_tables, history_tables
from ipygpumem.render.holders import holders_tables
from ipygpumem.render.html import html_line, html_tables
from ipygpumem.render.line import baseline_line, text_line
from ipygpumem.render.listing import html_listings, text_listings
from ipygpumem.render.modules import module_tables
from ipygpumem.render.oom import oom_tables
from ipygpumem.render.outside import with_outside
from ipygpumem.render.processes import processes_tables, with_change_rows, with_neighbour_rows
from ipygpumem.render.profile import category_tables
from ipygpumem.render.release import release_tables
from ipygpumem.render.table import books_tables, report_tables, text_tables

__all__ = [
    "Page",
    "baseline_line",
    "books_tables",
    "category_tables",
    "comparison_tables",
    "history_tables",
    "holders_tables",
    "html_line",
    "html_listings",
    "html_tables",
    "module_tables",
    "oom_tables",
    "processes_tables",
    "release_tables",
    "report_tables",
    "text_line",
    "text_listings",
    "text_tables",
    "with_change_rows",
    "with_neighbour_rows",
    "with_outside",
]
