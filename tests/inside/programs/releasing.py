"""A program that releases arrays during a search for their names; prints what happened."""

import json
import sys
import threading
import weakref

import stand_ins

from vram.payloads.inside import groups, read_arrays

torch = stand_ins.torch()
# Behind more objects than one portion of the search has, so that it comes to them late.
heap = [[[number]] for number in range(5000)]
deep = {"a": {"b": {"c": {"d": [stand_ins.TensorBase(512, 512) for _ in range(8)]}}}}
kept = [stand_ins.TensorBase(256, 256)]
others = []
watched = [weakref.ref(each) for each in deep["a"]["b"]["c"]["d"]]
parameter = stand_ins.Parameter(1024, 1024, requires_grad=True)
stand_ins.backward(parameter)
gradient = weakref.ref(stand_ins.HIDDEN(id(parameter)))
seen = {}
ready, go_on, gone = threading.Event(), threading.Event(), threading.Event()


def work():
    """A step that runs just then, with a batch of its own; its next one begins with a new batch."""
    batch = stand_ins.TensorBase(2, 1024)
    seen_locally.append(weakref.ref(batch))
    # As a NumPy array, which resizes itself only where nothing else refers to it.
    samples = bytes(len(others) + 1000)
    references = sys.getrefcount(samples)
    ready.set()
    go_on.wait()
    are_unheld.append(sys.getrefcount(samples) == references)
    del batch
    gone.set()
    threading.Event().wait()


seen_locally, are_unheld = [], []
threading.Thread(target=work, name="steps", daemon=True).start()
ready.wait()


def pause():
    """Between the walk, which met all arrays, and their names: as a training step does, free and allocate."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "complete_reached":
        frame = frame.f_back
    if frame is not None and not seen:
        del deep["a"]["b"]["c"]["d"][:]
        stand_ins.HIDDEN.drop(id(parameter))
        go_on.set()
        gone.wait()
        seen["freed"] = [each() is None for each in (*watched, gradient, *seen_locally)] + are_unheld
        # Where the old ones lay, new ones lie now, with the same id.
        others.extend(stand_ins.TensorBase(512, 512) for _ in range(8))
    return False


found = read_arrays(60.0, 0, pause, [])
# What was made meanwhile may be told or not: a new tensor has the id of an old one, its storage has not.
rows = [each for each in groups(found, pause) if each["dtype"] != "storage"]
told = {each["held_by"].partition(" local ")[2] or each["held_by"]: each["count"] for each in rows}
print(json.dumps([seen.get("freed"), told]))
