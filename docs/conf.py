"""Configuration of the documentation site, which ``make docs`` builds.

reference.py generates the reference of magics, settings and shell commands from the specifications that the program
itself uses, so it is always consistent with ``%gpumem?`` and ``ipygpumem --help``.
"""

from __future__ import annotations

import functools
import gc
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from sphinx.ext.napoleon.docstring import GoogleDocstring
from sphinx.search.en import SearchEnglish

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT)]

import ipygpumem  # noqa: E402 (after the path of this checkout)

gc.disable()  # a third of the time of a build, which needs 300 MB without garbage collection
# Importing this optional package, with which jsonschema checks addresses in notebooks, takes a tenth of the time.
sys.modules.setdefault("rfc3987_syntax", None)
# Sphinx stems each word again on each page for the search index, which takes a tenth of the time.
SearchEnglish.stem = functools.cache(SearchEnglish.stem)

project = "ipygpumem"
author = "The ipygpumem developers"
copyright = author  # noqa: A001 (the name that Sphinx expects)
release = ipygpumem.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "ipygpumem"
html_static_path = ["static"]
html_css_files = ["pages.css"]
html_copy_source = False
html_show_sourcelink = False
smartquotes = False  # would convert the two dashes of an option to a single dash

# The notebooks were executed on an NVIDIA H200, and are displayed with these outputs.
nb_execution_mode = "off"
nb_mime_priority_overrides = [("html", "text/html", 0), ("html", "image/png", 5)]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
suppress_warnings = ["mystnb.unknown_mime_type", "mystnb.mime_priority"]  # application/vnd.ipygpumem+json

autodoc_member_order = "groupwise"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "separated"
autodoc_default_options = {"members": True, "inherited-members": False}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
# Napoleon interprets the text before a colon in the docstring of a property as a type.
GoogleDocstring._parse_attribute_docstring = GoogleDocstring._consume_to_end
default_role = "code"
copybutton_exclude = ".linenos, .gp, .go"


def setup(app: Any) -> dict[str, bool]:  # noqa: ARG001 (required by Sphinx)
    """Write the reference pages, and copy the notebooks into the site."""
    os.environ.setdefault("COLUMNS", "100")
    from reference import pages

    generated = HERE / "generated"
    shutil.rmtree(generated, ignore_errors=True)
    generated.mkdir()
    for name, text in pages().items():
        (generated / name).write_text(text, encoding="utf-8")
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        shutil.copy(notebook, generated / notebook.name)
    return {"parallel_read_safe": True}
