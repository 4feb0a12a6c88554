"""The documentation as a site: ``make docs``.  Nothing is read from the network, neither here nor by the pages."""

from __future__ import annotations

import sys
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.highlighting import lexers

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

project = "Tentative SPE"
html_title = project
html_theme = "furo"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "cyclopts.ext.sphinx"]
myst_heading_anchors = 3
lexers["mermaid"] = TextLexer()  # GitHub draws it; the site shows its text

# The API pages are made of docstrings, in the order of the source.
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
