"""The documentation as a site: ``make docs``.  Nothing is read from the network, neither here nor by the pages."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx
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


def list_pages(app: Sphinx, page: str, source: list[str]) -> None:
    """Makes the site's list of pages of the index, which on a code host is a table of links."""
    if page == "index":
        for caption, links in re.findall(r"^\| \*\*(.+?)\*\* \| (.*) \|$", source[0], re.MULTILINE):
            pages = "\n".join(re.findall(r"\]\(([\w/-]+)\.md\)", links))
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{pages}\n```\n"


def setup(app: Sphinx) -> None:
    app.connect("source-read", list_pages)
