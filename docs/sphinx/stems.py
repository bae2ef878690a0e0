"""The stem of each word of the search index, found once: pages share most of their words.

Sphinx finds it again wherever the word stands, which was a seventh of the time of a build.
"""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx
from sphinx.search.en import SearchEnglish


class CachedEnglish(SearchEnglish):  # type: ignore[misc]
    """English, as Sphinx has it."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._stems: dict[str, str] = {}

    def stem(self, word: str) -> str:
        if word not in self._stems:
            self._stems[word] = super().stem(word)
        return self._stems[word]


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_search_language(CachedEnglish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
