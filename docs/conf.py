"""The documentation site: ``make docs``.

Pages that list words (magics, settings, the command line) are written from the tables that the program itself uses, so
that the site and ``%gpumem?`` say the same: see words.py.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT)]

import ipygpumem  # noqa: E402 (the checkout that these pages belong to)

project = "ipygpumem"
author = "The ipygpumem developers"
copyright = author  # noqa: A001 (Sphinx reads it by this name)
release = ipygpumem.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "ipygpumem"
html_static_path = ["static"]
html_css_files = ["pages.css"]
html_copy_source = False
html_show_sourcelink = False
smartquotes = False  # options begin with two dashes, and are copied

# The notebooks are shown as they ran on an NVIDIA H200.
nb_execution_mode = "off"
nb_mime_priority_overrides = [("html", "text/html", 0), ("html", "image/png", 5)]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
suppress_warnings = ["mystnb.unknown_mime_type", "mystnb.mime_priority"]  # our figures for `ipygpumem notebook`

autodoc_member_order = "groupwise"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "separated"
autodoc_default_options = {"members": True, "inherited-members": False}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
default_role = "code"
copybutton_exclude = ".linenos, .gp, .go"


def setup(app: Any) -> dict[str, bool]:  # noqa: ARG001 (Sphinx calls it with the application)
    """Write what is made from tables, and bring the notebooks and the descriptions of formats."""
    os.environ.setdefault("COLUMNS", "100")
    from words import pages

    made = HERE / "made"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    for name, text in pages().items():
        (made / name).write_text(text, encoding="utf-8")
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        shutil.copy(notebook, made / notebook.name)
    return {"parallel_read_safe": True}
