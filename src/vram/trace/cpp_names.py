"""Names of C++ functions as people say them: without parameters, types, and what templates are made of."""

from __future__ import annotations

import re
from functools import lru_cache

_MAX_PARTS = 4
_OPERATOR = re.compile(r"\boperator\s*(\(\)|<=>|<<=?|>>=?|->\*?|[<>]=?)")
_PLACEHOLDERS = {sign: chr(0xE000 + at) for at, sign in enumerate("()<>")}
_SPELLED = {placeholder: sign for sign, placeholder in _PLACEHOLDERS.items()}
_AFTER = re.compile(r"(?:\s+(?:const|volatile)|\s*&{1,2}|\[abi:\w+\]|\s*\[clone [^]]*\])+(?=$|::)")
_RUST_HASH = re.compile(r"::h[0-9a-f]{16}$")
# Namespaces that say nothing to a reader: versions of an ABI, and what libraries keep to themselves.
_HIDDEN = re.compile(r"_.*|detail|internal|impl|[A-Z][A-Z0-9_]*_NS")


@lru_cache(maxsize=65536)
def shorten(name: str) -> str:
    """``thrust::…::transform<…>`` for a demangled *name* of hundreds of characters; C's names stay."""
    if name.isidentifier():
        return name
    text = name.replace("(anonymous namespace)", "{anonymous}")
    text = _OPERATOR.sub(lambda found: "operator" + found[1].translate(_TO_PLACEHOLDERS), text)
    text = _without(_without(text, "<", ">", "<…>"), "(", ")", "").replace(" <…>", "<…>")
    text = _RUST_HASH.sub("", _AFTER.sub("", text).strip())
    text = _without_type(text).translate(_FROM_PLACEHOLDERS)
    return "::".join(_fewer(text.split("::"))) or name


_TO_PLACEHOLDERS = str.maketrans(_PLACEHOLDERS)
_FROM_PLACEHOLDERS = str.maketrans(_SPELLED)


def _without(text: str, opens: str, closes: str, instead: str) -> str:
    """*text* with *instead* of what is between these brackets, and of the brackets themselves."""
    kept: list[str] = []
    depth = 0
    for before, char in zip(" " + text, text, strict=False):
        if char == opens:
            if not depth:
                kept.append(instead)
            depth += 1
        elif char == closes and depth and before != "-":
            depth -= 1
        elif not depth:
            kept.append(char)
    return "".join(kept)


def _without_type(text: str) -> str:
    """What follows the type that templates return: names have no blanks, but for operators and lambdas."""
    found = re.search(r"\boperator\b", text)
    name_ends = found.start() if found else len(text)
    depth, begins = 0, 0
    for at, char in enumerate(text[:name_ends]):
        depth += (char == "{") - (char == "}")
        if char == " " and not depth:
            begins = at + 1
    return text[begins:].strip()


def _fewer(parts: list[str]) -> list[str]:
    """The first and the last ones, and what is between them where it is short and says something."""
    if len(parts) < 3:
        return parts
    kept = [parts[0]]
    kept += ["…" if _HIDDEN.fullmatch(part) else part for part in parts[1:-1]]
    kept.append(parts[-1])
    if len(kept) > _MAX_PARTS:
        kept = [kept[0], "…", *kept[-2:]]
    return [part for at, part in enumerate(kept) if part != "…" or kept[at - 1] != "…"]
