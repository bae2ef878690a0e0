"""Situations of stack_situations.py around the code: threads, trace functions, imports, sub-interpreters."""

import inspect
import os
import random
import sys
import tempfile
import threading

from stack_compare import (
    HARNESS,
    HOLDING,
    LIBRARY,
    Place,
    Result,
    compare,
    expected,
    function_name,
    read,
    text,
)


def threads():
    ready, done = threading.Barrier(17), threading.Event()
    failures = []

    def work(seed):
        chooser = random.Random(seed)

        def descend(depth):
            if depth:
                return descend(depth - 1)
            return compare()

        try:
            ready.wait()
            for _ in range(30):
                descend(chooser.randrange(60))
        except BaseException as error:
            failures.append(repr(error))

    def keep_busy():  # holds the GIL most of the time, in one long call and in short ones
        while not done.is_set():
            sorted(range(2000), key=str)

    workers = [threading.Thread(target=work, args=(each,)) for each in range(16)]
    busy = threading.Thread(target=keep_busy)
    for each in (*workers, busy):
        each.start()
    ready.wait()
    for each in workers:
        each.join()
    done.set()
    busy.join()
    Result.differences.extend(failures)


def foreign_thread():
    for library in (LIBRARY, HOLDING):
        Result.compared += 1
        if library.harness_foreign() != 0:
            Result.differ("a thread without Python has frames")


def tracing():
    events = []

    def trace(frame, event, argument):
        events.append(event)
        sys.settrace(None)
        compare()
        sys.settrace(trace)
        return trace

    def body():
        total = 0
        for each in range(3):
            total += each
        try:
            raise ValueError
        except ValueError:
            pass
        list(each for each in range(2))  # noqa: C400
        return total

    sys.settrace(trace)
    body()
    sys.settrace(None)
    sys.setprofile(lambda frame, event, argument: compare() if event in ("call", "return") else None)
    body()
    sys.setprofile(None)
    assert {"call", "line", "return", "exception"} <= set(events)


def imports():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "imported_module.py")
        with open(path, "w") as file:
            file.write("import builtins\nbuiltins.compare_here()\n")
        sys.modules["builtins"].compare_here = compare
        sys.path.insert(0, folder)
        import imported_module  # noqa: F401

        sys.path.remove(folder)
        del sys.modules["builtins"].compare_here


SUB = """
import ctypes, sys, threading
sys.argv = ["", {harness!r}]
def f():
    places = (Place * 64)()
    count, wanted = WALK(places, 64), expected(sys._getframe())
    got = read(places, count)
    open({out!r}, "a").write("same" if got == wanted else repr((got, wanted)))
{functions}
WALK = ctypes.PyDLL({harness!r}).harness_walk
f()
[f() for _ in range(2)]
"""


def sub_interpreter():
    functions = "\n".join(inspect.getsource(each) for each in (Place, text, function_name, expected, read))
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out")
        script = SUB.format(harness=HARNESS, functions=functions, out=out)
        run_in_sub_interpreter(script)
        with open(out) as file:
            answer = file.read()
    Result.compared += 3
    if answer != "same" * 3:
        Result.differ(answer[:2000] or "the sub-interpreter did nothing")
    compare()


def run_in_sub_interpreter(script):
    if sys.version_info >= (3, 13):
        import _interpreters

        number = _interpreters.create("legacy")
        error = _interpreters.run_string(number, script)
        if error is not None:
            raise RuntimeError(str(error))
    else:
        import _xxsubinterpreters as _interpreters

        number = _interpreters.create(isolated=False)
        _interpreters.run_string(number, script)
    _interpreters.destroy(number)
