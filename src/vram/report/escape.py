"""Foreign text made inert: what a process calls itself cannot steer a terminal."""

from __future__ import annotations

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}

# Typography that our own sentences use, for terminals that have only ASCII.
_PLAIN = str.maketrans(
    {"·": "-", "—": "-", "–": "-", "…": "...", "×": "x", "→": "->", "←": "<-", "≤": "<=", "≥": ">="}
    | {"Σ": "sum", "µ": "u", "μ": "u", "’": "'", "‘": "'", "“": '"', "”": '"', "²": "2", "³": "3"}
    | {"─": "-", "│": "|", "├": "|", "└": "`"}
    | {"−": "-", "≈": "~", "±": "+-", "\N{NO-BREAK SPACE}": " "}
)


def inert(text: str) -> str:
    """Return *text* with every character that does not print as a visible escape.

    Controls, escape codes, bidirectional overrides, zero-width and private characters,
    line separators and the halves of broken UTF-8 all become ``\\x1b``-like text. Printable
    text comes back as it is, so a name that spells out ``\\x1b`` looks the same as one that
    contains it: this is for reading, not for reading back.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _spell(char) for char in text)


def ascii_only(text: str) -> str:
    """Return inert *text* without a character above 126, readable where that is possible."""
    return inert(text).translate(_PLAIN).encode("ascii", "backslashreplace").decode("ascii")


def json_inert(encoded: bytes) -> bytes:
    """Spell the characters of JSON text that could steer a terminal as ``\\u`` escapes.

    JSON itself spells only the controls below U+0020. Beyond ASCII, text can stand only
    inside strings, where the spelled form means the same.
    """
    if encoded.isascii() and b"\x7f" not in encoded:
        return encoded
    text = encoded.decode()
    steering = {ord(c): _spell_for_json(c) for c in set(text) if c != "\n" and not c.isprintable()}
    return text.translate(steering).encode() if steering else encoded


def _spell(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:
        # A byte that was not UTF-8: the kernel's names are bytes, Python smuggles them so.
        code -= 0xDC00
    if char in _SHORT:
        return _SHORT[char]
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _spell_for_json(char: str) -> str:
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
