"""Line tables, stamps, speed, and frames while Python ends.

    python stack_checks.py HARNESS NAME [FILE...]

Prints a JSON object.
"""

import atexit
import ctypes
import json
import os
import string
import sys
import threading
import time
import types

import stack_compare
from stack_compare import HOLDING, LIBRARY, MAX_DEPTH, Result, compare


def stamps():
    """Code objects that take the place of others, at the same address, have other stamps."""
    stamp = HOLDING.harness_stamp
    stamp.restype, stamp.argtypes = ctypes.c_uint64, (ctypes.py_object,)
    seen, reused = {}, 0

    def compiled(source, name):
        return next(part for part in compile(source, name, "exec").co_consts if hasattr(part, "co_code"))

    base = compiled("def f(): pass", "<cell>")
    kinds = [
        lambda each: compiled("def f(): pass", f"<cell {each:06}>"),
        lambda each: compiled(f"def f{each:06}(): pass", "<cell>"),
        lambda each: compiled("\n" * each + "def f(): pass", "<cell>"),
        lambda each: compiled("def f(): pass", f"<c\u00e9ll {each:06}>"),
        lambda each: compiled("def f(): 0;" + " pass;" * each, "<cell>"),
    ]
    if hasattr(base, "co_qualname"):
        letters = string.ascii_letters
        kinds += [
            lambda each: base.replace(co_qualname=f"{letters[each % 52]}.f"),
            lambda each: base.replace(co_qualname=f"Net{each:03}.f"),
            lambda each: base.replace(co_qualname=f"make_networks.<locals>.Network{each:06}.f"),
        ]
    for kind in kinds:
        for each in range(200):
            code = kind(each)
            names = (code.co_name, getattr(code, "co_qualname", None), code.co_filename)
            # As text: what is kept here must not keep the names' memory from being used again.
            what = repr((*names, code.co_firstlineno, getattr(code, "co_linetable", None)))
            del names
            number = stamp(code)
            if number != stamp(code):
                Result.differ("a stamp that changes by itself")
            known = seen.setdefault(id(code), {})
            reused += bool(known)
            Result.compared += 1
            if known.setdefault(number, what) != what:
                Result.differ(known[number], what)
            del code
    assert reused > 500 or "asan" in os.environ.get("LD_PRELOAD", ""), reused  # it never uses memory again


def speed():
    """Nanoseconds of a walk of 20 frames; main() and the module are two of them."""

    def descend(depth):
        if depth:
            return descend(depth - 1)
        measure = HOLDING.harness_time
        measure.restype = ctypes.c_double
        return HOLDING.harness_count(MAX_DEPTH), measure(20, 20_000, 0), measure(20, 20_000, 1)

    frames, walk, stamped = descend(16)
    print(json.dumps({"frames": frames, "walk_ns": walk, "stamped_ns": stamped}))


class Late:
    """Is finalized when Python is: its functions have globals of their own, as the modules' are gone then."""

    def __init__(self):
        self.names = {**vars(stack_compare), **globals()}
        for name, value in list(self.names.items()):
            if isinstance(value, types.FunctionType):
                self.names[name] = types.FunctionType(value.__code__, self.names, name, value.__defaults__)

    def __del__(self):
        self.names["report_after_finalizer"]()


def report_after_finalizer():
    compare()
    # Its frames, and the state of its thread, have been freed.
    if HOLDING.harness_let_walk() != 0:
        Result.differ("frames in a thread that Python has forgotten")
    os.write(1, Result.as_json().encode())


def at_exit():
    """compare() in a function of atexit and in a finalizer, which lets a daemon thread walk as well."""
    threading.Thread(target=LIBRARY.harness_walk_when_told, daemon=True).start()
    while not LIBRARY.harness_is_walker_ready():
        time.sleep(0.001)
    late = Late()
    atexit.register(late.names["compare"])
    sys.modules["late"] = types.ModuleType("late")  # goes when the modules go
    sys.modules["late"].late = late


def line_tables(*paths):
    """The line of every instruction of every code object in these files, against PyCode_Addr2Line."""
    address_to_line = ctypes.pythonapi.PyCode_Addr2Line
    address_to_line.argtypes = (ctypes.py_object, ctypes.c_int)
    HOLDING.harness_lines.argtypes = (ctypes.py_object, ctypes.c_void_p, ctypes.c_int)
    for path in paths:
        try:
            with open(path, "rb") as file:
                codes = [compile(file.read(), path, "exec", dont_inherit=True)]
        except (SyntaxError, ValueError, UnicodeDecodeError):
            continue  # the standard library's tests have files that are wrong on purpose
        while codes:
            code = codes.pop()
            codes.extend(each for each in code.co_consts if hasattr(each, "co_code"))
            count = len(code.co_code) // 2
            lines = (ctypes.c_int * count)()
            HOLDING.harness_lines(code, lines, count)
            wanted = [max(address_to_line(code, 2 * each), 0) for each in range(count)]
            Result.compared += count
            if list(lines) != wanted:
                Result.differ(path, code.co_name, list(lines)[:50], wanted[:50])
            if hasattr(code, "co_positions") and wanted != [each[0] or 0 for each in code.co_positions()]:
                Result.differ(path, code.co_name, "co_positions differs")


def main():
    name, files = sys.argv[2], sys.argv[3:]
    {"line_tables": line_tables, "stamps": stamps, "speed": speed, "at_exit": at_exit}[name](*files)
    if name in ("line_tables", "stamps"):
        print(Result.as_json())


if __name__ == "__main__":
    main()
