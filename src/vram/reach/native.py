"""Load a library into a running program of any language, through a thread of it that is at rest.

Every program that uses CUDA has such a thread: the driver's own, which waits in poll without a deadline. It
alone is stopped, for less than a millisecond, and made to call dlopen as if a signal had come
(:mod:`vram.reach.machines`); then it makes its system call once more, and nobody sees EINTR. The others
run on. The library (:mod:`vram.reach.visitor_library`) works in a thread of its own and unloads itself.

A thread in such a wait holds no lock of malloc or of the loader. Where another thread is loading a library
just then, the resting one waits for it, as every dlopen does.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from vram.errors import NotReachable
from vram.model.inside import Via
from vram.payloads.procfs import MapLine, ProcessFolder, is_driver_thread
from vram.reach import elf, visitor_library
from vram.reach.attachment import (
    FIRST_PAUSE_S,
    attach,
    once_it_is_safe,
    or_agent,
    require_same_process,
    verify_identity,
    why_unavailable,
)
from vram.reach.elf import ElfImage
from vram.reach.machines import Call, Detour, Interrupted, this_machine
from vram.reach.machines.machine import EINTR, TEXT, Registers
from vram.reach.payload import PayloadRequest, RawAnswer
from vram.reach.ptrace import (
    StoppedThreads,
    TargetEnded,
    TargetMemory,
    TraceDenied,
    UnsafeToAttach,
    while_stopped,
)
from vram.reach.target_process import TargetProcess
from vram.reach.visitor_library import LibraryDrop
from vram.reach.waits import (
    Restarts,
    find_chain_code,
    find_libc,
    has_pending_signal,
    is_pipe_or_terminal,
    keeps_first_argument,
    lasts,
    may_repeat,
    name_of,
    preference,
    read_syscall,
    uses_musl,
)

NAME: Via = "native"

_STACK_NEEDED = 192 << 10
_MAX_THREADS = 4096
_RTLD_NOW = 2
_CLOSE_ON_EXEC = 1  # of memfd_create
_PIDFD_GETFD = 438  # on every machine
# All signals but those that the C library sends to its own threads: who waits for the answer to these has a
# lock that starting a thread needs (pthread_cancel, setuid in a program with threads).
_OF_LIBC = 1 << 31 | 1 << 32
_ALL_SIGNALS = (1 << 64) - 1 & ~_OF_LIBC
_LOADER = "libdl.so"
# So often a thread was back in its wait, and nothing was loaded.
_NOT_LOADED = 2
_LOOKING_S = 0.2
_FIRST_LOOK_S = 0.0005
_MAX_PAUSE_S = 0.1


class RestingThread(Struct, frozen=True):
    """A thread in a wait that may be repeated, as far as is known without stopping it."""

    tid: int
    number: int
    arguments: tuple[int, ...]
    is_drivers: bool
    stack_pointer: int
    place: int

    @property
    def rank(self) -> tuple[bool, int]:
        return not self.is_drivers, preference(self.number)


class NativeVisit:
    """One process, and what must be known of it before one of its threads is stopped."""

    def __init__(self, process: TargetProcess, memory: TargetMemory) -> None:
        self._process, self._pid, self._memory = process, process.pid, memory
        self._about = verify_identity(process)
        self._maps = elf.mappings(self._pid)
        found = list(elf.images(memory, self._maps))
        libc = find_libc(found)
        if uses_musl(found):
            raise UnsafeToAttach(
                "it uses musl, which is not supported", f"run it with glibc{or_agent(process)}"
            )
        if not libc:
            raise UnsafeToAttach(
                f"it is not a program for {this_machine().name} that uses glibc: linked statically,"
                " or of another kind"
            )
        self._libc, self._restarts = libc, Restarts(memory, libc)
        self._dlopen = _function("dlopen", [*libc, *(each for each in found if _LOADER in each.path)])
        _function("pthread_create", libc)
        self._machine = this_machine()
        code = find_chain_code(libc, memory, self._maps)
        if code is None:
            raise UnsafeToAttach("its C library is not as expected")
        self._code = code
        self._unfit: dict[int, UnsafeToAttach] = {}
        self.stopped_s = 0.0

    # ---- which thread ----

    def require_resting_thread(self) -> None:
        """Raise where none of its threads may be used, now and for a moment more."""
        until = time.monotonic() + _LOOKING_S
        once_it_is_safe(self.choose_thread, until, _LOOKING_S / 10)

    def choose_thread(self) -> RestingThread:
        found = sorted(self._resting_threads(), key=lambda each: each.rank)
        if not found and self._unfit:
            raise next(iter(self._unfit.values()))
        if not found:
            raise UnsafeToAttach(
                "none of its threads waits in a system call without a deadline",
                f"try again: the CUDA driver's thread does so most of the time{or_agent(self._process)}",
                passing=True,
            )
        return found[0]

    def _resting_threads(self) -> Iterator[RestingThread]:
        with suppress(OSError), ProcessFolder("/proc", self._pid) as folder:
            for name in folder.names("task")[:_MAX_THREADS]:
                tid = int(name)
                stat = folder.stat(tid)
                if stat is None or stat.state != "S" or tid in self._unfit:
                    continue
                found = self._resting(tid, is_driver_thread(stat.name))
                if found is not None:
                    yield found

    def _resting(self, tid: int, is_drivers: bool) -> RestingThread | None:
        call = read_syscall(self._pid, tid)
        if call is None:
            return None
        number, arguments, stack_pointer, place = call
        if number == self._machine.restart:  # of all calls that last, only poll is restarted in this way
            number = self._machine.syscalls.get("poll", number)
        if not self._is_in_libc(place) or not lasts(number, arguments, self._memory):
            return None
        if name_of(number) == "read" and not is_pipe_or_terminal(self._pid, arguments[0]):
            return None
        if self._machine.loses_first_argument and not keeps_first_argument(self._pid, number, arguments[0]):
            return None
        # The driver's thread does not care for signals. Another may rely on being woken by one.
        if not is_drivers and _handles_signals(tid):
            return None
        return RestingThread(tid, number, arguments, is_drivers, stack_pointer, place)

    def _is_in_libc(self, place: int) -> bool:
        return any(place in part for each in self._libc for part in each.parts if b"x" in part.permissions)

    # ---- what is done to it ----

    def load(self, library: str, until: float) -> RestingThread:
        """Have one thread load *library* soon. Raises UnsafeToAttach, and then nothing was done."""
        return self._have_call(Call(self._dlopen, (TEXT, _RTLD_NOW)), library, until)

    def carry(self, content: bytes, name: str, pidfd: int, until: float) -> str:
        """Have the program make the file *name* in memory, and fill it: the path that leads it there.

        It belongs to the program, so no user's right, file system or namespace matters. The library closes
        it when it is loaded, and those of visits that were killed before that. Raises UnsafeToAttach.
        """
        make = Call(_function("memfd_create", self._libc), (TEXT, _CLOSE_ON_EXEC))
        thread = self._have_call(make, name, until)
        number, file = self._find_memory_file(name, thread, pidfd, until)
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(file, rest) :]
        except OSError as error:
            raise UnsafeToAttach(f"its file cannot be filled: {error.strerror}") from error
        finally:
            os.close(file)
        # No program spells it so: the loader takes a library whose path it knows for that one.
        return f"/proc/self/fd/.//{number}"

    def _find_memory_file(
        self, name: str, thread: RestingThread, pidfd: int, until: float
    ) -> tuple[int, int]:
        """The number of the file *name* in the program, and a descriptor of ours for it."""
        pause_s = _FIRST_LOOK_S
        was_back = False
        while True:
            with suppress(OSError), ProcessFolder("/proc", self._pid) as folder:
                for each in folder.names("fd"):
                    if folder.link(f"fd/{each}") == f"/memfd:{name} (deleted)".encode():
                        return int(each), _copied(pidfd, int(each), name)
            self._memory.require_same_program()
            if was_back:
                raise UnsafeToAttach("it may make no file in memory: a security module may forbid it")
            was_back = self._is_back(thread)
            if time.monotonic() + pause_s > until:
                raise UnsafeToAttach("it made no file in memory in time", "wait longer with --deadline")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, FIRST_PAUSE_S)

    def remove(self, library: str, name: str) -> None:
        """Have the program close what :meth:`carry` made, where that was not loaded."""
        number = int(library.rpartition("/")[2])
        with suppress(OSError, UnsafeToAttach), ProcessFolder("/proc", self._pid) as folder:
            if folder.link(f"fd/{number}") == f"/memfd:{name} (deleted)".encode():
                close = Call(_function("close", self._libc), (number,))
                self._have_call(close, "", time.monotonic() + _LOOKING_S)

    def _have_call(self, call: Call, text: str, until: float) -> RestingThread:
        """Have one thread make *call*, in which TEXT is the address of *text*."""
        used: list[RestingThread] = []

        def attempt() -> None:
            thread = self.choose_thread()
            self._maps = elf.mappings(self._pid)
            try:
                _, stopped_s = while_stopped(
                    self._pid,
                    lambda threads: self._call_while_stopped(threads, thread, call, text),
                    thread.tid,
                )
            except (TargetEnded, TraceDenied):
                raise
            except UnsafeToAttach as error:
                if error.passing:
                    raise
                self._unfit[thread.tid] = error
                raise UnsafeToAttach(str(error), error.hint, passing=True) from error
            self.stopped_s += stopped_s
            used.append(thread)

        once_it_is_safe(attempt, until, _MAX_PAUSE_S)
        return used[0]

    def _call_while_stopped(
        self, threads: StoppedThreads, thread: RestingThread, call: Call, text: str
    ) -> None:
        tid = thread.tid
        require_same_process(self._pid, self._about)
        self._memory.require_same_program()
        registers = threads.registers(tid)
        interrupted = self._interrupted(thread, registers)
        try:
            self._require_repeatable(threads, tid, registers, interrupted)
            detour = self._detour(threads, tid, registers, interrupted, call, text)
        except UnsafeToAttach:
            # epoll_wait, and a socket that has a deadline, would return EINTR because we were here.
            same = interrupted.result == EINTR and interrupted.number == thread.number
            if same and not threads.signal(tid):
                threads.set_registers(tid, self._machine.repeating(registers, interrupted))
            raise
        self._memory.write_to_program(detour.begins, detour.data)
        threads.set_registers(tid, detour.registers)
        # After the step that decides: killed before it, its mask would stay like this.
        threads.set_signal_mask(tid, _ALL_SIGNALS)

    def _interrupted(self, thread: RestingThread, registers: Registers) -> Interrupted:
        """The call that the stopped thread is in. Raises where it is not the one that was chosen."""
        call = self._restarts.find(registers)
        if call is None:
            raise _moved()
        if call.first_known:
            return call
        if (call.number, call.arguments[1:]) != (thread.number, thread.arguments[1:]):
            raise _moved()
        # It would not have returned EINTR for any other descriptor: see keeps_first_argument().
        return replace(call, arguments=thread.arguments, first_known=True)

    def _require_repeatable(
        self, threads: StoppedThreads, tid: int, registers: Registers, call: Interrupted
    ) -> None:
        if not self._is_in_libc(registers[self._machine.frames.pc]):
            raise _moved()
        if not lasts(call.number, call.arguments, self._memory):
            raise _moved()
        if threads.signal(tid) or has_pending_signal(tid):
            raise UnsafeToAttach("it is about to handle a signal", passing=True)
        if not self._machine.made_as_usual(registers, self._memory.read):
            raise UnsafeToAttach("its thread waits in an unexpected way")
        if not may_repeat(call.number, call.result):
            raise UnsafeToAttach("its wait has a deadline that cannot be read")
        if self._machine.has_shadow_stack(tid):
            raise UnsafeToAttach("its return addresses are protected by a shadow stack")

    def _detour(
        self,
        threads: StoppedThreads,
        tid: int,
        registers: Registers,
        interrupted: Interrupted,
        call: Call,
        text: str,
    ) -> Detour:
        floor = self._stack_floor(tid, registers)
        detour = self._machine.detour(
            registers,
            self._machine.repeating(registers, interrupted),
            (call,),
            self._code,
            threads.floating_point(tid),
            threads.signal_mask(tid),
            os.fsencode(text) + b"\0",
        )
        if detour.begins - _STACK_NEEDED < floor:
            raise UnsafeToAttach("its thread has too little stack left")
        return detour

    def _stack_floor(self, tid: int, registers: dict[str, int]) -> int:
        """The lowest address of the thread's stack. Raises where it is on another one, as coroutines are.

        The C library puts a thread's own record at the upper end of its stack, and a page below that nobody
        may touch. Programs may bring stacks of their own, which end where nobody can tell.
        """
        sp, record = registers[self._machine.frames.sp], self._machine.thread_pointer(registers)
        at, stack = next(((at, line) for at, line in enumerate(self._maps) if sp in line), (0, None))
        if stack is None or not stack.permissions.startswith(b"rw") or stack.path.startswith(b"/"):
            raise UnsafeToAttach("its thread's stack was not found")
        if stack.path == b"[stack]" and tid == self._pid:
            return stack.start - _growth(self._pid, stack)
        below = self._maps[at - 1] if at else None
        guarded = below is not None and below.end == stack.start and below.permissions.startswith(b"---")
        if record not in stack or record < sp or not guarded:
            raise UnsafeToAttach("its thread has a stack of its own making")
        return stack.start

    # ---- afterwards ----

    def has_not_loaded(self, thread: RestingThread, library: str) -> bool:
        """Whether that thread is back in its wait, and the library is not there. Raises after an exec."""
        self._memory.require_same_program()
        if not self._is_back(thread):
            return False
        names = (os.fsencode(library), visitor_library.MEMORY_FILE.encode())
        return not any(name in line.path for line in elf.mappings(self._pid) for name in names)

    def _is_back(self, thread: RestingThread) -> bool:
        now = read_syscall(self._pid, thread.tid)
        return now is not None and now[2:] == (thread.stack_pointer, thread.place)


def _copied(pidfd: int, number: int, name: str) -> int:
    """A descriptor of ours for the file that the program has just made in memory, and for no other.

    Not opened by its path: by now there may be a pipe or a device under that number.
    """
    file = _pidfd_getfd(pidfd, number)
    with suppress(OSError):
        fcntl.fcntl(file, fcntl.F_GET_SEALS)  # only of files in memory: none of those keeps a writer waiting
        if os.readlink(f"/proc/self/fd/{file}") == f"/memfd:{name} (deleted)":
            return file
    os.close(file)
    raise UnsafeToAttach("it closes files that vram makes in it")


def _pidfd_getfd(pidfd: int, number: int) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    file: int = libc.syscall(_PIDFD_GETFD, pidfd, number, 0)
    if file < 0:
        raise UnsafeToAttach(f"its file cannot be filled: {os.strerror(ctypes.get_errno())}")
    return file


def _moved() -> UnsafeToAttach:
    return UnsafeToAttach("the thread that was chosen went on", passing=True)


def _function(name: str, libraries: list[ElfImage]) -> int:
    found = next(filter(None, (each.symbol(name) for each in libraries)), None)
    if found is None:
        raise UnsafeToAttach(f"its C library has no {name}: it is linked statically, or too old")
    return found


def _handles_signals(tid: int) -> bool:
    """Whether the program has a handler that may run in this thread; assumed where that cannot be read."""
    with suppress(OSError, KeyError, ValueError), ProcessFolder("/proc", tid) as folder:
        lines = folder.status()
        caught, blocked = int(lines[b"SigCgt"], 16), int(lines[b"SigBlk"], 16)
        return bool(caught & ~blocked & ~_OF_LIBC)
    return True


def _growth(pid: int, stack: MapLine) -> int:
    """By how much the kernel may still extend the main thread's stack downwards."""
    limit = 8 << 20
    with suppress(OSError, StopIteration, ValueError), open(f"/proc/{pid}/limits", encoding="ascii") as file:
        limit = int(next(line.split()[3] for line in file if line.startswith("Max stack size")))
    return max(0, min(limit, 8 << 20) - stack.nbytes)


def unavailable_reason(process: TargetProcess) -> str | None:
    missing = visitor_library.why_missing()
    return missing or why_unavailable(process, NativeVisit, NativeVisit.require_resting_thread)


def run(process: TargetProcess, request: PayloadRequest, deadline_s: float) -> RawAnswer:
    until = time.monotonic() + deadline_s
    with attach(process, NativeVisit, lambda: LibraryDrop(request, process, until)) as (visit, drop, pidfd):
        library = drop.library or visit.carry(drop.content, drop.memory_file, pidfd, until)
        try:
            thread = visit.load(library, until)
        except UnsafeToAttach:
            if drop.library is None:
                visit.remove(library, drop.memory_file)
            raise
        missing = 0
        while not drop.wait(pidfd, min(until, time.monotonic() + FIRST_PAUSE_S)):
            if time.monotonic() >= until:
                raise drop.timed_out()
            missing = missing + 1 if visit.has_not_loaded(thread, library) else 0
            if missing > _NOT_LOADED:
                if drop.library is None:
                    visit.remove(library, drop.memory_file)
                raise NotReachable(
                    f"pid {process.pid} was asked to load vram's library, and did not; nothing was done",
                    hint="a security module may forbid it",
                )
        return RawAnswer(drop.answer(pidfd), visit.stopped_s)
