"""Starts and stops the recorder inside a live process, and says what the process held before.

The recorder is a library; it is loaded into the process and stays there. Verbs of a request: "start", "stop"
and "status". What cannot be done (the file, the library) is an answer, never an error in the program.
"""

from __future__ import annotations

import ctypes
import glob
import os
import sys
from ctypes import byref, c_char_p, c_int, c_uint64
from typing import Any

from ..libcuda import count_devices, loaded, read_uuid
from ..pace import Pace

FRAMEWORKS = "_vram_tracer_frameworks"
"""Where ``frameworks.py``, beside this file, leaves what must be called before recording ends."""
_ALREADY = 1


def answer(request: dict[str, Any], pace: Pace) -> dict[str, Any]:
    """Do what *request* asks; "outcome" says what came of it."""
    done = {"start": start, "stop": stop, "status": status}[request["verb"]](request)
    return {"status": "done", "python": sys.version.split()[0], **done}


# ---- the library ----


class TracerLibrary:
    """The calls of libvramtracer.so that are used here."""

    def __init__(self, path: str, mode: int = ctypes.DEFAULT_MODE) -> None:
        """Raises OSError where it cannot be loaded, or, with RTLD_NOLOAD, was not."""
        self.path = path
        self.library = ctypes.CDLL(path, mode=mode)
        self.library.vram_tracer_error.restype = c_char_p
        self.library.vram_tracer_file.restype = c_char_p
        self.library.vram_tracer_start.argtypes = [c_char_p]
        self.library.vram_tracer_before.argtypes = [c_int, c_uint64, c_char_p]

    @property
    def file(self) -> str:
        """The file being written; bytes that are no UTF-8, which JSON cannot carry, are spelled out."""
        return (self.library.vram_tracer_file() or b"").decode("utf-8", "backslashreplace")

    def counts(self) -> dict[str, int]:
        events, nbytes, lost = c_uint64(), c_uint64(), c_uint64()
        self.library.vram_tracer_counts(byref(events), byref(nbytes), byref(lost))
        return {"events": events.value, "nbytes": nbytes.value, "lost": lost.value}

    def error(self) -> str:
        return (self.library.vram_tracer_error() or b"").decode("utf-8", "backslashreplace")


def recorder_here() -> TracerLibrary | None:
    """The recorder that this process has loaded already, by vram or by the program."""
    try:
        with open("/proc/self/maps", "rb") as maps:
            lines = [line for line in maps.read().split(b"\n") if b"libvramtracer.so" in line]
    except OSError:
        return None
    for line in lines:
        path = os.fsdecode(line.split(None, 5)[5])
        if path.endswith(" (deleted)"):
            path = path[: -len(" (deleted)")]
        if path.startswith(
            "/memfd:"
        ):  # it came from another file system: the loader knows it by its own name
            path = path[len("/memfd:") :]
        try:
            return TracerLibrary(path, os.RTLD_NOLOAD | os.RTLD_NOW)
        except (OSError, AttributeError):
            continue
    return None


# ---- verbs ----


def start(request: dict[str, Any]) -> dict[str, Any]:
    recorder = recorder_here()
    if recorder is not None and recorder.file:
        return {"outcome": "already recording", "file": recorder.file, **recorder.counts()}
    settings = dict(request["settings"])
    settings["output"], reason = choose_output(settings["output"], request.get("folders"))
    if reason:
        return {"outcome": "output", "error": reason}
    try:
        recorder = recorder or TracerLibrary(request["library"])
    except (OSError, AttributeError) as error:
        return {"outcome": "no recorder", "error": str(error)}
    settings["cupti"] = ":".join(libraries(request))
    text = "".join(f"{name}={value}\n" for name, value in settings.items() if value)
    code = recorder.library.vram_tracer_start(os.fsencode(text))
    if code:
        outcome = "already recording" if code == _ALREADY else "failed"
        return {"outcome": outcome, "code": code, "error": recorder.error(), "file": recorder.file}
    if request.get("elsewhere"):
        data = request["elsewhere"].encode()
        recorder.library.vram_tracer_blob(b"elsewhere", data, c_uint64(len(data)))
    if request.get("for_s"):
        stop_later(recorder, float(request["for_s"]))
    frameworks = ask_frameworks(recorder, request)
    held = held_before(request, frameworks)
    for each in held:
        recorder.library.vram_tracer_before(each["device"], each["nbytes"], each["source"].encode()[:4096])
    return {
        "outcome": "recording",
        "file": recorder.file,
        "held": held,
        "frameworks": [each["framework"] for each in frameworks],
        "uses_cuda": count_devices(loaded()) > 0,
    }


def status(request: dict[str, Any]) -> dict[str, Any]:
    recorder = recorder_here()
    if recorder is None or recorder.file != request["file"]:
        return {"outcome": "not recording"}
    return {"outcome": "recording", "file": recorder.file, **recorder.counts()}


def stop(request: dict[str, Any]) -> dict[str, Any]:
    recorder = recorder_here()
    if recorder is None or not recorder.file:
        return {"outcome": "not recording"}
    frameworks: Any = sys.modules.get(FRAMEWORKS)
    if frameworks is not None:
        frameworks.finish("detach")  # raises nothing
    file, counts = recorder.file, recorder.counts()
    if recorder.library.vram_tracer_stop():
        return {"outcome": "not recording"}  # the timer came first
    return {"outcome": "stopped", "file": file, **counts}


# ---- a recording that ends by itself ----

# Runs in a thread of its own, with these names: seconds, path (of the library), file, frameworks. By then
# nothing else of the payload is there. A recording that was stopped meanwhile, or begun anew, is left alone.
TIMER = r"""
try:
    import ctypes, os, sys, time
    time.sleep(seconds)
    library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    library.vram_tracer_file.restype = ctypes.c_char_p
    if (library.vram_tracer_file() or b"").decode("utf-8", "backslashreplace") == file:
        if frameworks in sys.modules:
            sys.modules[frameworks].finish("detach")
        library.vram_tracer_stop()
except Exception:
    pass
"""


def stop_later(recorder: TracerLibrary, for_s: float) -> None:
    """Stop in a thread of its own, whatever becomes of vram: its text needs nothing of this module."""
    import _thread

    names = {"seconds": for_s, "path": recorder.path, "file": recorder.file, "frameworks": FRAMEWORKS}
    _thread.start_new_thread(exec, (TIMER, names))


# ---- what it needs ----


def choose_output(output: str, folders: Any) -> tuple[str, str]:
    """Where the trace goes, and why it cannot; *output* is a name in the first of *folders* that will do."""
    reasons = []
    for path in [os.path.join(folder, output) for folder in folders or ()] or [output]:
        reason = why_unwritable(path)
        if not reason:
            return path, ""
        reasons.append(reason)
    return output, "; ".join(reasons)


def why_unwritable(output: str) -> str:
    """Why the trace cannot be written to *output* by this process; empty where it can."""
    if os.path.lexists(output):
        return f"{output} exists already"
    trial = f"{output}.{os.getpid()}.trial"
    try:
        os.close(os.open(trial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        os.unlink(trial)
    except OSError as error:
        return f"{os.path.dirname(output)}: {error.strerror}"
    return ""


def libraries(request: dict[str, Any]) -> list[str]:
    """Where libcupti may be: what the loader would take first, this Python's own packages, then the rest."""
    own = []
    for folder in sys.path:
        if folder.endswith("-packages"):
            pattern = os.path.join(glob.escape(folder), "nvidia", "*", "lib", "libcupti.so.*")
            own += sorted(glob.glob(pattern), reverse=True)
    newest = request.get("newest_cuda")
    allowed = [path for path in own if not newest or major(path) <= newest]
    found = [*request.get("cupti_first", ()), *allowed, *request.get("cupti", ())]
    return [path for path in dict.fromkeys(map(os.path.realpath, found)) if ":" not in path]


def major(path: str) -> int:
    word = path.rpartition(".so.")[2].partition(".")[0]
    return int(word) if word.isdigit() else 0


# ---- what it held before ----


def ask_frameworks(recorder: TracerLibrary, request: dict[str, Any]) -> list[dict[str, Any]]:
    """Have PyTorch hand over its own account; with "framework", that goes on until recording ends.

    Returns what each holds: {"framework", "device", "nbytes", "words"}.
    """
    path, wanted = request.get("frameworks_file"), request.get("framework") or "none"
    # Without a framework the file only ends the recording before the interpreter ends: once is enough.
    begins = wanted != "none" or FRAMEWORKS not in sys.modules
    if not path or not (begins or "torch" in sys.modules):
        return []
    try:
        with open(path, encoding="utf-8") as file:
            code = compile(file.read(), path, "exec")
        names: dict[str, Any] = {"__name__": f"{FRAMEWORKS}_once"}
        exec(code, names)
        found = []
        torch = names["TorchAccount"](names["RecorderCalls"](recorder.path))
        if torch.is_loaded():
            lines = torch.held()
            found = [
                {"framework": "PyTorch", "device": gpu, "nbytes": nbytes, "words": words}
                for gpu, nbytes, words in lines
            ]
            if lines:
                torch.snapshot("attach")
        if begins:
            names = {"__name__": FRAMEWORKS, "__vram_tracer__": recorder.path, "__vram_frameworks__": wanted}
            exec(code, names)
        return found
    except Exception:  # a version that does all this differently: the driver's figures remain
        return []


def held_before(request: dict[str, Any], frameworks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """{"device", "nbytes", "source"}: what the driver charged this process with, and what it knows itself."""
    cuda = loaded()
    uuids = [read_uuid(cuda, ordinal) for ordinal in range(count_devices(cuda))]
    numbers = {uuid: ordinal for ordinal, uuid in enumerate(uuids) if uuid}
    words = {each["device"]: each["words"] for each in frameworks}
    found = []
    for each in request.get("held", ()):
        device = numbers.get(each["uuid"], -1)
        source = "; ".join(filter(None, [str(each["source"]), words.pop(device, "")]))
        found.append({"device": device, "nbytes": int(each["nbytes"]), "source": source})
    # Where the driver's figures are not to be had, the framework's own are all there is.
    for each in frameworks:
        if each["device"] in words:
            found.append({"device": each["device"], "nbytes": each["nbytes"], "source": each["words"]})
    return found
