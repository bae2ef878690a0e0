"""How Sphinx makes the site. Its sources are put together by collect.py."""

from __future__ import annotations

import sys
from pathlib import Path

import vram

project = "vram"
author = "The vram developers"
version = release = vram.__version__
language = "en"

sys.path.insert(0, str(Path(__file__).parent))
extensions = ["myst_parser", "menu", "stems"]
source_suffix = {".md": "markdown"}
root_doc = "index"
nitpicky = True

# Fragments as a code host makes them, so that one spelling of a link works in both.
myst_heading_anchors = 4
myst_links_external_new_tab = False
suppress_warnings = ["epub.unknown_project_files"]

html_theme = "furo"
html_title = f"vram {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_show_copyright = False
# An option is --json, also in prose.
smartquotes = False
html_theme_options = {
    "top_of_page_buttons": [],
    "light_css_variables": {"color-brand-primary": "#11704c", "color-brand-content": "#11704c"},
    "dark_css_variables": {"color-brand-primary": "#67c9a1", "color-brand-content": "#67c9a1"},
}
highlight_language = "text"
pygments_style = "friendly"
pygments_dark_style = "github-dark"
