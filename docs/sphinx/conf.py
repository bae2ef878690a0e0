"""How Sphinx makes the site and the manual pages. Their sources are put together by
collect.py and by generators/manual.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

import vram
from vram.cli import grammar

project = "vram"
author = "The vram developers"
version = release = vram.__version__
language = "en"

sys.path.insert(0, str(Path(__file__).parent))
extensions = ["myst_parser", "menu"]
source_suffix = {".md": "markdown"}
root_doc = "index"
nitpicky = True

# Fragments as a forge makes them, so that one spelling of a link works in both.
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

# ---- manual pages ----


def _manual_page(page: str, name: str, summary: str) -> tuple[str, str, str, str, int]:
    return f"reference/commands/{page}", name, summary[:1].lower() + summary[1:].rstrip("."), "", 1


man_pages = [
    _manual_page("vram", "vram", (vram.__doc__ or "").splitlines()[0].removeprefix("vram: ")),
    *(
        _manual_page(command.words[0], f"vram-{command.words[0]}", command.summary)
        for command in grammar.commands()
    ),
]


class TablesAsDefinitions(SphinxPostTransform):  # type: ignore[misc]
    """In a manual page, a table of options is a list of terms with their meanings."""

    default_priority = 500
    builders = ("man",)

    def run(self, **options: Any) -> None:
        for table in list(self.document.findall(nodes.table)):
            rows = [row for body in table.findall(nodes.tbody) for row in body.findall(nodes.row)]
            table.replace_self(nodes.definition_list("", *map(self._definition, rows)))

    def _definition(self, row: nodes.row) -> nodes.definition_list_item:
        name, meaning = row.children
        term = nodes.term("", "", *(child for block in name.children for child in block.children))
        return nodes.definition_list_item("", term, nodes.definition("", *meaning.children))


def setup(app: Sphinx) -> None:
    app.add_post_transform(TablesAsDefinitions)
