"""CPython's memory layout by version: the one table, for `reach/` and, as a C header, for `native/tracer/`.

Offsets are in bytes, on 64-bit Linux, from each version's own headers; no release changes them within a minor
version. Another version is one more column in each table, then `make native`, which writes
native/tracer/python_layouts.h. tests/tracer/layout.c compares what the tracer uses with the headers of the
interpreters that a machine has.

Standard library only: native/build.py runs this file before anything is installed.
"""

from __future__ import annotations

from typing import Any

MINORS = (9, 10, 11, 12, 13, 14)
"""The supported versions, 3.9 for example; each table has a column for each, None where it lacks a field."""

FIRST_MINOR, LAST_MINOR = MINORS[0], MINORS[-1]
SUPPORTED = f"3.{FIRST_MINOR} to 3.{LAST_MINOR}"

# fmt: off

# In _PyRuntime, the interpreter's state and a thread's state.
# Source: Include/internal/pycore_{runtime,interp}.h, Include/cpython/pystate.h.
STATE: dict[str, tuple[int | None, ...]] = {
    #                            3.9  3.10  3.11  3.12  3.13  3.14
    "core_initialized":        (   8,    8,   12,   12,  596,  772),
    "initialized":             (  12,   12,   16,   16,  600,  776),
    "finalizing":              (  16,   16,   24,   24,  608,  784),  # the thread that does it, or NULL
    "head":                    (  32,   32,   40,   40,  632,  808),
    "main":                    (  40,   40,   48,   48,  640,  816),
    "main_thread":             (  72,   72,   80,   64,  656,  832),
    "signals_pending":         ( 344,  344,  352, 2008, None, None),  # since 3.13 a bit of the eval breaker
    "next":                    (   0,    0,    0,    0, 7264, 7272),
    "runtime":                 (  16,   16,   40,   96, 7376, 7384),
    "threads":                 (   8,    8,   16,   72, 7344, 7344),
    "thread_id":               ( 176,  176,  152,  136,  152,  152),  # its pthread_t
    "eval_breaker":            (  72,   68,  100,  368,   24,   24),  # since 3.13 of the thread
    "lock_in_runtime":         ( 352,  352,  360, None, None, None),  # the GIL
    "lock_of_interpreter":     (None, None, None,  384,   16,   16),  # a pointer to it
    "pending_in_interpreter":  (  80,   80,  112, None, None, None),  # the ring of pending calls
    "pending_in_runtime":      (None, None, None, 2016, 2640, 2848),
}

# In the ring of pending calls (struct _pending_calls), and how many calls it has room for.
PENDING_CALLS: dict[str, tuple[int | None, ...]] = {
    #                            3.9  3.10  3.11  3.12  3.13  3.14
    "lock":                    (   0,    0,    0,    8,    8,    8),
    "lock_is_pointer":         (True, True, True, True, False, False),
    "calls":                   (  16,   16,   16,   24,   24,   24),
    "call_nbytes":             (  16,   16,   16,   16,   24,   24),
    "capacity":                (  32,   32,   32,   32,  300,  300),
    "first":                   ( 528,  528,  528,  536, 7224, 7224),
    "next":                    ( 532,  532,  532,  540, 7228, 7228),
    "request":                 (   8,    8,    8,   16, None, None),  # asks for the calls to be made
    "count":                   (None, None, None, None,   12,   12),
    "most":                    (None, None, None, None,   16,   16),
}

# In frames and code objects, for the tracer: with finalizing and thread_id the fields of `struct layout`
# in native/tracer/python_stack.c. Since 3.13 Python publishes them itself.
# Source: Include/cpython/{pystate,code,frameobject,unicodeobject}.h, Include/internal/pycore_frame.h
# of 3.9.18, 3.10.13, 3.11.7 and 3.12.1.
FRAMES: dict[str, tuple[int | None, ...]] = {
    #                            3.9  3.10  3.11  3.12  3.13  3.14
    "frame":                   (  24,   24,   56,   56, None, None),
    "current":                 (None, None,    8,    0, None, None),
    "previous":                (  24,   24,   48,    8, None, None),
    "code":                    (  32,   32,   32,    0, None, None),
    "running":                 ( 104,   96,   56,   56, None, None),
    "owner":                   (None, None,   69,   70, None, None),
    "first_line":              (  40,   40,   72,   68, None, None),
    "file":                    ( 104,  104,  112,  112, None, None),
    "name":                    ( 112,  112,  120,  120, None, None),
    "qualified":               (None, None,  128,  128, None, None),
    "lines":                   ( 120,  120,  136,  136, None, None),
    "version":                 (None, None, None,   92, None, None),
    "traceable":               (None, None,  168,  176, None, None),
    "bytecode":                (None, None,  184,  192, None, None),
    "code_size":               ( 176,  176,  184,  192, None, None),
    "ascii_size":              (  48,   48,   48,   40, None, None),
    "text_size":               (  72,   72,   72,   56, None, None),
}

# Where the table that Python publishes (_Py_DebugOffsets, at the start of _PyRuntime) has the offsets.
# The last group is for the interface for debuggers (PEP 768), which Python has since 3.14.
# Source: Include/internal/pycore_runtime.h (3.13), Include/internal/pycore_debug_offsets.h (3.14).
PUBLISHED: dict[str, tuple[int | None, ...]] = {
    #                            3.9  3.10  3.11  3.12  3.13  3.14
    "runtime_size":            (None, None, None, None,   24,   24),
    "finalizing":              (None, None, None, None,   32,   32),
    "thread_size":             (None, None, None, None,  152,  176),
    "current_frame":           (None, None, None, None,  184,  208),
    "thread_id":               (None, None, None, None,  192,  216),
    "frame_size":              (None, None, None, None,  224,  248),
    "previous":                (None, None, None, None,  232,  256),
    "executable":              (None, None, None, None,  240,  264),
    "instruction":             (None, None, None, None,  248,  272),
    "owner":                   (None, None, None, None,  264,  288),
    "code_size":               (None, None, None, None,  272,  312),
    "file":                    (None, None, None, None,  280,  320),
    "name":                    (None, None, None, None,  288,  328),
    "qualified":               (None, None, None, None,  296,  336),
    "lines":                   (None, None, None, None,  304,  344),
    "first_line":              (None, None, None, None,  312,  352),
    "variables":               (None, None, None, None,  328,  368),
    "bytecode":                (None, None, None, None,  344,  384),
    "type":                    (None, None, None, None,  360,  408),
    "bytes_length":            (None, None, None, None,  520,  600),
    "bytes_data":              (None, None, None, None,  528,  608),
    "text_state":              (None, None, None, None,  544,  624),
    "text_length":             (None, None, None, None,  552,  632),
    "ascii_size":              (None, None, None, None,  560,  640),

    "head":                    (None, None, None, None, None,   40),
    "interpreter_size":        (None, None, None, None, None,   48),
    "interpreter_id":          (None, None, None, None, None,   56),
    "next":                    (None, None, None, None, None,   64),
    "main_thread":             (None, None, None, None, None,   80),
    "interpreter":             (None, None, None, None, None,  200),
    "native_id":               (None, None, None, None, None,  224),
    "eval_breaker":            (None, None, None, None, None,  712),
    "support":                 (None, None, None, None, None,  720),
    "enabled":                 (None, None, None, None, None,  728),
    "pending_call":            (None, None, None, None, None,  736),
    "script_path":             (None, None, None, None, None,  744),
    "script_path_size":        (None, None, None, None, None,  752),
}

# fmt: on


def select(table: dict[str, tuple[int | None, ...]], minor: int) -> dict[str, Any]:
    """The fields that Python 3.*minor* has in *table*."""
    column = MINORS.index(minor)
    return {name: row[column] for name, row in table.items() if row[column] is not None}
