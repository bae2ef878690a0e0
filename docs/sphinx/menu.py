"""The site's menu, rendered once for all pages of a folder.

The theme puts the whole menu into every page, which was two fifths of the time of a build. To pages of one
folder it is the same text, but for the marks of the page that it stands on.
"""

from __future__ import annotations

import os.path
import re
from typing import Any

from sphinx.application import Sphinx

TAG = re.compile(r"<(/?)(?:li|ul)\b[^>]*>")

_menus: dict[tuple[object, ...], str] = {}


def setup(app: Sphinx) -> dict[str, Any]:
    # Before the theme, which renders the menu at the usual priority.
    app.connect("html-page-context", _share, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _share(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    if "toctree" not in context:
        return
    render = context["toctree"]
    own = f'<a class="reference internal" href="{os.path.basename(page)}.html">'

    def shared(**options: Any) -> str:
        key = (os.path.dirname(page), *sorted(options.items()))
        if key not in _menus:
            _menus[key] = _unmarked(render(**options), own)
        return _marked(_menus[key], own)

    context["toctree"] = shared


def _unmarked(menu: str, own: str) -> str:
    """The menu of a page without what says that it is the one: *own* is its entry elsewhere."""
    menu = menu.replace('<a class="current reference internal" href="#">', own)
    return menu.replace('<ul class="current">', "<ul>").replace(' current">', '">')


def _marked(menu: str, own: str) -> str:
    """The same with the entry *own* as the page's, and with all that it lies in."""
    before, found, after = menu.partition(own)
    if not found:
        return menu
    around: list[re.Match[str]] = []
    for tag in TAG.finditer(before):
        around.pop() if tag[1] else around.append(tag)
    for tag in reversed(around):
        now = '<ul class="current">' if tag[0] == "<ul>" else tag[0].replace('">', ' current">')
        before = before[: tag.start()] + now + before[tag.end() :]
    return f'{before}<a class="current reference internal" href="#">{after}'
