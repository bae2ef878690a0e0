"""What frameworks know of the memory that they took from the driver, handed to the recorder.

The recorder runs this file once in a Python program that has initialised CUDA (VRAM_TRACE_PAYLOAD), or
`vram attach` does. PyTorch's own history is switched on, and its snapshot handed over at exit, at detach and
when memory ran out; CuPy's blocks are reported as they come and go; JAX's profile is taken at the end.

Standard library only, Python 3.9 and newer, one file. Nothing is imported or initialised for it, a
framework's settings that the program made itself stay, and no exception leaves it.

Names that the file finds, or else reads from the environment: ``__vram_tracer__``, the path of
libvramtracer.so; ``__vram_frameworks__``, which frameworks ("auto", some of "torch,cupy,jax", or "none": then
it only sees to it that the recording ends with the program's own work, before Python's clearing up).
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import sys
import threading
import time
import zlib
from typing import Any, Optional

MODULE = "_vram_tracer_frameworks"
"""This file's name in ``sys.modules`` of the program, where detaching finds ``finish``."""

KNOWN = ("torch", "cupy", "jax")
FORM = 1
MAX_ENTRIES = 250_000
"""Of PyTorch's history, per GPU. It keeps one to four kilobytes for each, in host memory."""
MAX_SNAPSHOT_ENTRIES = 1_000_000
"""Of all GPUs together, in one blob; the newest stay."""
MAX_PROFILE = 64 << 20
NO_GPU = {"cpu", "interpreter"}
"""Backends of JAX."""
OOM_SNAPSHOTS = 3
OOM_PAUSE_S = 10.0
CUPY_BLOCK = 17
HOOK_FILE = "<vram tracer>"
"""The file name of the one frame of ours that stands between CuPy and the recorder: reports leave it out."""

ACTIONS = {"alloc": 0, "free_completed": 1, "segment_alloc": 2, "segment_free": 3, "segment_map": 4}
ACTIONS.update({"segment_unmap": 5, "oom": 6})
STATES = {"active_allocated": 0, "active_awaiting_free": 1, "active_pending_free": 1, "inactive": 2}


class RecorderCalls:
    """The functions of libvramtracer.so, which the process has loaded already."""

    def __init__(self, path: str) -> None:
        loaded = os.RTLD_NOLOAD | os.RTLD_NOW
        long_calls = ctypes.CDLL(path, mode=loaded)
        # These two take a microsecond: giving up the interpreter's lock around them would cost more.
        short_calls = ctypes.PyDLL(path, mode=loaded)
        self._blob = long_calls.vram_tracer_blob
        self._blob.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64]
        number = ctypes.c_uint64
        self.exit: Any = getattr(long_calls, "vram_tracer_exit", lambda ended_ns: 1)
        self.exit.argtypes = [number]
        self.block_alloc = short_calls.vram_tracer_block_alloc
        self.block_alloc.argtypes = [ctypes.c_int, ctypes.c_int, number, number, number]
        self.block_free = short_calls.vram_tracer_block_free
        self.block_free.argtypes = [ctypes.c_int, ctypes.c_int, number]

    def blob(self, name: str, data: bytes) -> bool:
        return bool(self._blob(name.encode(), data, len(data)) == 0)


# ---- PyTorch ----


class TorchAccount:
    """PyTorch's history, from its allocator's first block on."""

    name = "torch"

    def __init__(self, recorder: RecorderCalls) -> None:
        self.recorder = recorder
        self.ours = False
        self.active = False
        self._observed = False
        self._oom_times: list[float] = []

    def is_loaded(self) -> bool:
        return hasattr(sys.modules.get("torch.cuda"), "_queued_calls") and "torch.cuda.memory" in sys.modules

    def start(self) -> None:
        """Begin when PyTorch has initialised CUDA, now or later: beginning itself must not initialise it."""
        cuda = sys.modules["torch.cuda"]
        if not hasattr(sys.modules.get("torch._C"), "_cuda_record_memory_history"):
            return  # a build for the CPU
        if cuda.is_initialized():
            in_main_thread(self._begin)
        else:
            # This may run in the middle of PyTorch's initialisation, whose lock torch.cuda._lazy_call()
            # would wait for. What is in its list is called at the end of that, with no text to show.
            cuda._queued_calls.append((lambda: guarded(self._begin), []))

    def _begin(self) -> None:
        if self.active or os.getpid() != PID:
            return
        torch = sys.modules["torch"]
        self.active = True
        memory = torch.cuda.memory
        enabled = getattr(torch._C, "_cuda_isHistoryEnabled", lambda: False)
        if not enabled() or getattr(memory, LEFT_ON, False):
            # Since PyTorch 2.1; the older signature and the asynchronous backend raise.
            memory._record_memory_history(
                enabled="all", context="alloc", stacks="python", max_entries=MAX_ENTRIES
            )
            self.ours = True
            setattr(memory, LEFT_ON, False)
        self._send({"at": "begin"})
        observe = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
        if observe is not None and not self._observed:
            self._observed = True  # PyTorch has no call that takes an observer away
            observe(lambda *_: guarded(self._out_of_memory))

    def _out_of_memory(self) -> None:
        """A snapshot, unless the program makes a habit of it: each takes time."""
        now = time.monotonic()
        recent = self._oom_times and now - self._oom_times[-1] < OOM_PAUSE_S
        if not self.active or recent or len(self._oom_times) >= OOM_SNAPSHOTS:
            return
        self._oom_times.append(now)
        self.snapshot("oom")

    def snapshot(self, at: str) -> None:
        """Hand over what PyTorch holds now and its history up to now."""
        content = compact(snapshot_of(sys.modules["torch"]))
        content["at"] = at
        self._send(content)

    def finish(self, at: str) -> None:
        if not self.active:
            return
        self.active = False
        try:
            self.snapshot(at)
        finally:
            if self.ours and at == "detach":
                self.ours = False
                self._end_history()

    def _end_history(self) -> None:
        """Switch PyTorch's history off, first the reading of stacks and then the rest.

        PyTorch forgets the function that reads stacks before it stops calling it: a thread that allocates at
        that moment calls address 0 and the program dies (2.11, three threads that allocate all the time: once
        in 10,000 times). So the calls stop first, and the rest follows once every other thread has left the
        code where it may still make one. Where one stays there, because it is stopped, the rest stays on: a
        history of one entry, without stacks.
        """
        memory = sys.modules["torch.cuda.memory"]
        record = memory._record_memory_history
        setattr(memory, LEFT_ON, True)
        in_main_thread(lambda: record(enabled="state", context=None, stacks="python", max_entries=1))
        if others_have_moved_on():
            in_main_thread(lambda: record(enabled=None))
            setattr(memory, LEFT_ON, False)

    def _send(self, content: dict[str, Any]) -> None:
        torch = sys.modules["torch"]
        content.update(form=FORM, wall_ns=time.time_ns())  # PyTorch stamps by this clock
        content.update(ours=self.ours, version=str(getattr(torch, "__version__", "")), limit=MAX_ENTRIES)
        text = json.dumps(content, separators=(",", ":")).encode("utf-8", "replace")
        self.recorder.blob("torch", zlib.compress(text, 1))

    def held(self) -> list[tuple[int, int, str]]:
        """(GPU, bytes, words) of what PyTorch's allocator holds; nothing where it has not begun."""
        cuda = sys.modules.get("torch.cuda")
        if cuda is None or not getattr(cuda, "is_initialized", bool)():
            return []
        reserved: dict[int, list[int]] = {}
        for segment in cuda.memory_snapshot():
            totals = reserved.setdefault(segment["device"], [0, 0])
            totals[0] += segment["total_size"]
            totals[1] += segment["active_size"]
        return [
            (gpu, total, f"PyTorch's allocator: {mib(active)} in tensors, {mib(total - active)} cached")
            for gpu, (total, active) in sorted(reserved.items())
        ]


def snapshot_of(torch: Any) -> dict[str, Any]:
    """PyTorch's snapshot, without the import that it does for frames of compiled code.

    It asks ``torch._inductor``, which loads itself when it is first asked for: that takes seconds (10 on a
    busy machine, PyTorch 2.15), and may fail while the interpreter ends. Where it was never loaded there is
    no compiled code. The stand-in answers so, by a method that runs no Python code: no other thread meets it.
    """
    snapshot = torch.cuda.memory._snapshot
    if "_inductor" not in vars(torch) and "torch._inductor" not in sys.modules:
        known: dict[Any, Any] = {}
        stand_in: Any = type(sys)("torch._inductor")
        stand_in.codecache = type(sys)("torch._inductor.codecache")
        answer = {"stack_frames_for_code": staticmethod(known.__setitem__)}
        stand_in.codecache.PyCodeCache = type("PyCodeCache", (), answer)
        torch._inductor = stand_in
        try:
            return dict(snapshot())
        except Exception:  # another version asks for more
            pass
        finally:
            if vars(torch).get("_inductor") is stand_in:
                del torch._inductor
    return dict(snapshot())


LEFT_ON = "_vram_history_left_on"
"""Set in ``torch.cuda.memory`` where the history that is on is ours, and of no use."""
MOVED_NS = 1_000_000
"""Of processor time. From a look at a variable to the call that follows it takes a thousandth of that."""
MOVED_TIMEOUT_S = 2.0


def others_have_moved_on() -> bool:
    """Whether every other thread has left the code of its own that it was in when this was called.

    A thread has that sleeps in a system call, or has run for a while since; one that has not run is where it
    was, be it that no processor was free for it or that it was stopped.
    """
    until = time.monotonic() + MOVED_TIMEOUT_S
    own = threading.get_native_id()
    waiting = {each: ran_ns(each) for each in map(int, os.listdir("/proc/self/task")) if each != own}
    while waiting:
        for thread, before in list(waiting.items()):
            now = ran_ns(thread)
            if now is None or (before is not None and now > before + MOVED_NS):
                del waiting[thread]
        if waiting:
            if time.monotonic() > until:
                return False
            time.sleep(0.001)
    return True


def ran_ns(thread: int) -> Optional[int]:
    """For how long a thread of this process has run; None where it sleeps in a system call or has ended."""
    try:
        with open(f"/proc/self/task/{thread}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        if fields[0] in (b"S", b"Z", b"X"):
            return None
        with open(f"/proc/self/task/{thread}/schedstat", "rb") as file:
            return int(file.read().split()[0])
    except (FileNotFoundError, ProcessLookupError):
        return None


MAIN_THREAD_S = 1.0
_pending: list[Any] = []


def in_main_thread(call: Any) -> None:
    """Run *call* in the main thread, or here if that is in a long call of its own.

    PyTorch ties its history to the thread that switches it on, and warns on standard error if another one
    switches it off.
    """
    if threading.current_thread() is threading.main_thread():
        call()
        return
    turn, done = threading.Lock(), threading.Event()

    def run(_: object = None) -> int:
        if turn.acquire(blocking=False):
            guarded(call)
            done.set()
        return 0

    callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(run)
    _pending.append(callback)  # the interpreter keeps only its address, and may call it much later
    ctypes.pythonapi.Py_AddPendingCall(callback, None)
    if not done.wait(MAIN_THREAD_S):
        run()


class Interned:
    """Texts, frames and stacks, each once, by number. Stack 0 is the empty one."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}
        self.frames: dict[tuple[int, int, int], int] = {}
        self.stacks: dict[tuple[int, ...], int] = {(): 0}
        self._by_identity: dict[tuple[int, ...], int] = {}
        self._frame_numbers: dict[int, int] = {}

    def stack(self, frames: Optional[list[dict[str, Any]]]) -> int:
        """The number of a stack of PyTorch's, innermost first, as it gives them."""
        if not frames:
            return 0
        # PyTorch uses the same dictionary for equal frames of one snapshot, which is alive meanwhile.
        identity = tuple(map(id, frames))
        known = self._by_identity.get(identity)
        if known is None:
            key = tuple(self._frame(each) for each in frames)
            known = self._by_identity[identity] = self.stacks.setdefault(key, len(self.stacks))
        return known

    def _frame(self, frame: dict[str, Any]) -> int:
        number = self._frame_numbers.get(id(frame))
        if number is None:
            file, name = self._text(frame.get("filename")), self._text(frame.get("name"))
            key = (name, file, int(frame.get("line") or 0))
            number = self._frame_numbers[id(frame)] = self.frames.setdefault(key, len(self.frames))
        return number

    def _text(self, text: object) -> int:
        return self.texts.setdefault(str(text)[:4096], len(self.texts))


def compact(snapshot: dict[str, Any]) -> dict[str, Any]:
    """PyTorch's snapshot without repetitions: columns of numbers, each stack once."""
    interned = Interned()
    traces = snapshot.get("device_traces") or []
    kept, left_out = newest([[each for each in trace if each["action"] in ACTIONS] for trace in traces])
    return {
        "segments": [_segment(each, interned) for each in snapshot.get("segments") or []],
        "traces": [_columns(each, interned) for each in kept],
        "left_out": left_out,
        "expandable": bool((snapshot.get("allocator_settings") or {}).get("expandable_segments")),
        "texts": list(interned.texts),
        "frames": list(interned.frames),
        "stacks": list(interned.stacks),
    }


def newest(traces: list[list[Any]]) -> tuple[list[list[Any]], list[int]]:
    """At most MAX_SNAPSHOT_ENTRIES of all, the last of each; and how many of each were left out."""
    share = MAX_SNAPSHOT_ENTRIES // max(1, sum(1 for each in traces if each))
    return [each[-share:] for each in traces], [max(0, len(each) - share) for each in traces]


def _segment(segment: dict[str, Any], interned: Interned) -> list[Any]:
    """[GPU, address, bytes, expandable, block after block as (bytes, bytes asked for, state, stack)]."""
    blocks: list[int] = []
    for block in segment["blocks"]:
        # Before 2.1 a block's frames are in its history.
        history = block.get("history") or [{}]
        frames = block.get("frames") or history[0].get("frames")
        state = STATES.get(block["state"], 2)
        # An unused block keeps the size that was asked for when it was last used.
        asked = 0 if state == 2 else block.get("requested_size", block["size"])
        blocks += (block["size"], asked, state, interned.stack(frames))
    expandable = bool(segment.get("is_expandable"))
    return [segment["device"], segment["address"], segment["total_size"], expandable, blocks]


def _columns(trace: list[dict[str, Any]], interned: Interned) -> dict[str, list[int]]:
    """The history of one GPU, oldest first."""
    return {
        "action": [ACTIONS[each["action"]] for each in trace],
        "address": [each.get("addr", 0) for each in trace],
        "nbytes": [each["size"] for each in trace],
        "time_us": [each.get("time_us", 0) for each in trace],
        "stack": [interned.stack(each.get("frames")) for each in trace],
    }


# ---- CuPy ----

_HOOK = """
def make(base, alloc, free, kind):
    class Hook(base):
        name = "vram"

        def malloc_postprocess(self, device_id=0, size=0, mem_size=0, mem_ptr=0, pmem_id=0, **more):
            if mem_ptr:
                alloc(kind, device_id, mem_ptr, mem_size, 0)

        def free_preprocess(self, device_id=0, mem_size=0, mem_ptr=0, pmem_id=0, **more):
            free(kind, device_id, mem_ptr)

    return Hook()
"""


class CupyAccount:
    """CuPy's blocks, as its memory pool hands them out. Its hooks belong to threads, so each gets one."""

    name = "cupy"

    def __init__(self, recorder: RecorderCalls) -> None:
        self.recorder = recorder
        self._hook: Any = None

    def is_loaded(self) -> bool:
        return hasattr(sys.modules.get("cupy.cuda.memory_hook"), "MemoryHook")

    def start(self) -> None:
        names: dict[str, Any] = {}
        exec(compile(_HOOK, HOOK_FILE, "exec"), names)
        base = sys.modules["cupy.cuda.memory_hook"].MemoryHook
        recorder = self.recorder
        self._hook = names["make"](base, recorder.block_alloc, recorder.block_free, CUPY_BLOCK)
        in_main_thread(self._hook.__enter__)  # `vram attach` runs this in a thread of its own
        # A thread that begins later runs this once, before its first line. A program that profiles its
        # threads itself keeps its own function.
        if getattr(threading, "_profile_hook", None) is None:
            threading.setprofile(self._thread_begins)

    def _thread_begins(self, *_: object) -> None:
        sys.setprofile(None)
        guarded(lambda: self._hook is not None and self._hook.__enter__())

    def finish(self, at: str) -> None:
        hook, self._hook = self._hook, None
        if hook is None:
            return
        if getattr(threading, "_profile_hook", None) == self._thread_begins:
            threading.setprofile(None)
        # Threads' own hooks stay: the recorder answers them that nothing is being recorded.
        in_main_thread(lambda: hook.__exit__(None, None, None))


# ---- JAX ----


class JaxAccount:
    """JAX's profile of live buffers, a gzipped pprof file."""

    name = "jax"

    def __init__(self, recorder: RecorderCalls) -> None:
        self.recorder = recorder

    def is_loaded(self) -> bool:
        return "jax" in sys.modules and "jax._src.xla_bridge" in sys.modules

    def start(self) -> None:
        """Nothing: JAX keeps the stacks of its buffers anyway."""

    def finish(self, at: str) -> None:
        profiler = sys.modules.get("jax.profiler")
        backends = getattr(sys.modules["jax._src.xla_bridge"], "_backends", None) or {}
        # Only where a GPU's backend exists: asking for a profile would make one.
        if profiler is None or not set(backends) - NO_GPU:
            return
        profile = profiler.device_memory_profile()
        if len(profile) <= MAX_PROFILE:
            self.recorder.blob("jax", bytes(profile))
        pools = [line for name, made in backends.items() if name not in NO_GPU for line in _pools(made)]
        self.recorder.blob("jax-pools", json.dumps({"form": FORM, "pools": pools}).encode())


def _pools(backend: Any) -> list[list[int]]:
    """[GPU, bytes taken from the driver, bytes in use] for each device of a backend."""
    lines = []
    for device in backend.local_devices():
        stats = device.memory_stats() or {}
        used = stats.get("bytes_in_use") or 0
        taken = stats.get("pool_bytes") or stats.get("bytes_reserved") or used
        lines.append([int(getattr(device, "local_hardware_id", device.id)), int(taken), int(used)])
    return lines


# ---- which of them the program has ----


class Watch:
    """A finder of modules that finds none: it notices that a framework was loaded, at the next import."""

    def __init__(self, waiting: list[Any]) -> None:
        self.waiting = waiting

    def find_spec(self, *_: object) -> None:
        loaded = [each for each in self.waiting if guarded(each.is_loaded)]
        if loaded:
            self.waiting = [each for each in self.waiting if each not in loaded]
            guarded(lambda: begin(loaded))
            if not self.waiting and self in sys.meta_path:
                sys.meta_path.remove(self)

    def stop(self) -> None:
        self.waiting = []
        if self in sys.meta_path:
            sys.meta_path.remove(self)


PID = os.getpid()
_started: list[Any] = []
_watch: Optional[Watch] = None
_recorder: Optional[RecorderCalls] = None


def mib(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):.1f} MiB"


def guarded(call: Any) -> Any:
    """What *call* returns; None where it raises. The program, which did not ask for this, is never told."""
    try:
        return call()
    except Exception:
        return None


def begin(loaded: list[Any]) -> None:
    """Start frameworks that are loaded."""
    for each in loaded:
        guarded(each.start)
        _started.append(each)
    _end_with_the_program()


def _end_with_the_program() -> None:
    """Have the recording end before the interpreter takes the program apart.

    What its objects hold is freed there, and a list that grew to the end would look as if the program had
    freed it. Functions at exit run backwards, so ours goes to the front whenever a framework is new; those
    of threading run before all of them.
    """
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)
    if _at_shutdown not in getattr(threading, "_threading_atexits", ()):
        guarded(lambda: threading._register_atexit(_at_shutdown))  # type: ignore[attr-defined]


def _at_shutdown() -> None:
    """The main thread is done. Where others still work, `_at_exit` comes after them."""
    if all(each.daemon or each is threading.main_thread() for each in threading.enumerate()):
        _at_exit()


def _at_exit() -> None:
    ended_ns = time.monotonic_ns()
    finish("exit")
    # In a program that only embeds Python, work may go on when the interpreter has ended.
    if os.getpid() == PID and guarded(lambda: os.path.samefile("/proc/self/exe", sys.executable)):
        guarded(lambda: _recorder is not None and _recorder.exit(ended_ns))


def finish(at: str = "detach") -> None:
    """Hand over what frameworks know and stop asking them; called before the recorder is detached."""
    if os.getpid() != PID:
        return  # a forked child: its frameworks' GPU is gone
    if _watch is not None:
        _watch.stop()
    if at == "detach":
        atexit.unregister(_at_exit)
    while _started:
        each = _started.pop()
        guarded(lambda each=each: each.finish(at))


def start(library: str, wanted: str = "auto") -> bool:
    """Begin with *wanted* frameworks; those that are not loaded yet begin when they are."""
    global _watch, _recorder
    _recorder = recorder = RecorderCalls(library)
    names = KNOWN if wanted == "auto" else tuple(wanted.split(","))
    kinds = [kind(recorder) for kind in (TorchAccount, CupyAccount, JaxAccount) if kind.name in names]
    loaded = [each for each in kinds if each.is_loaded()]
    waiting = [each for each in kinds if each not in loaded]
    begin(loaded)
    if waiting:
        _watch = Watch(waiting)
        sys.meta_path.insert(0, _watch)
    return True


def _start_once(names: dict[str, Any]) -> None:
    """Start, unless it has started in this process; leave ``finish`` where detach looks."""
    earlier = sys.modules.get(MODULE)
    if earlier is not None and earlier.is_running():
        return
    wanted = names.get("__vram_frameworks__") or os.environ.get("VRAM_TRACE_FRAMEWORKS") or "auto"
    if start(os.fsdecode(names["__vram_tracer__"]), wanted):
        module: Any = type(sys)(MODULE)
        module.finish = finish
        module.is_running = lambda: bool(_started or (_watch is not None and _watch.waiting))
        sys.modules[MODULE] = module


if "__vram_tracer__" in globals():
    guarded(lambda: _start_once(globals()))
