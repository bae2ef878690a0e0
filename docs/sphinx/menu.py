"""The site's menu, rendered once for all pages of a folder that are not in it.

The theme puts the whole menu into every page, which was two fifths of the time of a build. To pages
that are not in the menu, and lie in one folder, it is the same text.
"""

from __future__ import annotations

import os.path
from typing import Any

from sphinx.application import Sphinx

_menus: dict[tuple[object, ...], str] = {}


def setup(app: Sphinx) -> dict[str, Any]:
    # Before the theme, which renders the menu at the usual priority.
    app.connect("html-page-context", _share, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _share(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    if "toctree" not in context or "orphan" not in (context.get("meta") or {}):
        return
    render = context["toctree"]

    def shared(**options: Any) -> str:
        key = (os.path.dirname(page), *sorted(options.items()))
        if key not in _menus:
            _menus[key] = render(**options)
        return _menus[key]

    context["toctree"] = shared
