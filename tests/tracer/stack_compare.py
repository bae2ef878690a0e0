"""What the programs stack_*.py share: the harness, and comparing its frames with Python's own.

They run in any Python from 3.9 on, as `python PROGRAM HARNESS ...`, and use the standard library only.
"""

import ctypes
import json
import sys
import threading

MAX_DEPTH = 1024
HARNESS = sys.argv[1]


class Place(ctypes.Structure):
    _fields_ = [
        ("function", ctypes.c_char * 256),
        ("file", ctypes.c_char * 1024),
        ("line", ctypes.c_int),
        ("first_line", ctypes.c_int),
    ]


LIBRARY = ctypes.CDLL(HARNESS)  # releases the GIL for each call
HOLDING = ctypes.PyDLL(HARNESS)  # keeps it
LIBRARY.harness_version.restype = ctypes.c_char_p
WALKS = (LIBRARY.harness_walk, HOLDING.harness_walk)
OWN = threading.local()  # each thread's own places: they are large
CALLBACK = ctypes.CFUNCTYPE(None)
assert LIBRARY.harness_find() == 1, "not supported"
assert LIBRARY.harness_version().decode() == ".".join(map(str, sys.version_info[:3]))


class Result:
    """How much was compared, and what differed."""

    compared = 0
    differences = []  # noqa: RUF012

    @classmethod
    def differ(cls, *what):
        cls.differences.append(what)

    @classmethod
    def as_json(cls, **more):
        answer = {
            "compared": cls.compared,
            "number": len(cls.differences),
            "differences": cls.differences[:3],
        }
        return json.dumps({**answer, **more})


def text(string, nbytes):
    """What the walker makes of a name: UTF-8 without surrogates and NUL, cut to *nbytes* less one."""
    clean = "".join("?" if c == "\0" or 0xD800 <= ord(c) < 0xE000 else c for c in string[:nbytes])
    return clean.encode()[: nbytes - 1].decode(errors="ignore")


def function_name(code):
    """The qualified name where this Python has one, if it is an exact str that fits; else the plain name."""
    name = getattr(code, "co_qualname", None)
    return text(code.co_name if type(name) is not str or text(name, 10**6) != text(name, 256) else name, 256)


def expected(frame):
    frames = []
    while frame is not None:
        code = frame.f_code
        frames.append(
            (function_name(code), text(code.co_filename, 1024), frame.f_lineno or 0, code.co_firstlineno)
        )
        frame = frame.f_back
    return frames


def read(places, count):
    return [
        (each.function.decode(), each.file.decode(), each.line, each.first_line) for each in places[:count]
    ]


def compare(most=MAX_DEPTH):
    """Walk here, with the GIL and without, and compare all frames."""
    # A collection in the middle of this may call it again: the places are taken away meanwhile.
    places = OWN.__dict__.pop("places", None) if most == MAX_DEPTH else None
    places = places or (Place * most)()
    for walk in WALKS:
        count, wanted = walk(places, most), expected(sys._getframe())
        Result.compared += 1
        if count != min(len(wanted), most) or read(places, count) != wanted[:most]:
            Result.differ(read(places, max(count, 0))[:8], wanted[:8])
    if most == MAX_DEPTH:
        OWN.places = places
