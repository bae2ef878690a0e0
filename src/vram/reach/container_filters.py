"""Whether a container's seccomp filters let vram's code run in a process of it: read by root, and judged.

Filters can be read only while a thread is stopped, and after a stop the kernel has a thread that waited
with a timeout call restart_syscall, which a filter may forbid on pain of death. So the filters are read in
the same stop, and where they do not plainly allow that call, such a wait returns EINTR instead, as after any
signal. One thread is stopped at a time.

A filter is a small program without loops (classic BPF). It is run for a call, and where it asks for what is
not known, both branches count. See docs/decisions/42-containers.md.
"""

from __future__ import annotations

import ctypes
import os
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from vram.host.local.seccomp import ThreadLimits, given_up, is_beside_us, limited_threads, read_limits
from vram.payloads import ptrace
from vram.payloads.procfs import ProcessFolder, read_status, started_at
from vram.reach.machines import this_machine
from vram.reach.machines.machine import EINTR, RESTART_BLOCK
from vram.reach.ptrace import StoppedThreads, TargetMemory, UnsafeToAttach, while_stopped
from vram.reach.waits import lasts, read_syscall

_GET_FILTER = 0x420C
_SYS_ADMIN = 1 << 21
_MAX_FILTERS, _MAX_INSTRUCTIONS = 64, 4096
_MAX_STEPS = 20_000
_INSTRUCTION = struct.Struct("<HBBI")
_EPOLL = (232, 281, 441)
_RESTARTED = (7, 35, 202, 230)  # poll, nanosleep, futex, clock_nanosleep
_TRIES, _PAUSE_S = 100, 0.005

# What a filter answers, without its data.
_ALLOW, _LOG, _ERRNO, _NOTIFY, _TRACE = 0x7FFF0000, 0x7FFC0000, 0x00050000, 0x7FC00000, 0x7FF00000
_MADE = frozenset((_ALLOW, _LOG))
_SURVIVED = frozenset((_ALLOW, _LOG, _ERRNO, _NOTIFY, _TRACE))

# x86-64. All that a visit must be able to do; with the arguments that matter.
_ARCHITECTURE = 0xC000003E
_THREAD_FLAGS = 0x3D0F00  # of clone, as the C library starts threads
_RESTART = 219
_NEEDED: Mapping[int, Mapping[int, int]] = {
    **{number: {} for number in (0, 1, 3, 7, 9, 10, 11, 13, 14, 15, 16, 28, 39, 42, 44, 45, 60)},
    **{number: {} for number in (186, 202, _RESTART, 257, 273, 319)},
    41: {0: 1},
    56: {0: _THREAD_FLAGS},
}
_LAST_CALL = 600

Program = tuple[tuple[int, int, int, int], ...]
_known: dict[tuple[int, int | None, frozenset[ThreadLimits]], bool] = {}
_MAX_KNOWN = 1000


def let_visits_pass(pid: int) -> bool:
    """Whether *pid* is in another container, and all filters there let a visit pass, and none kills at all.

    False where they cannot be read: that takes CAP_SYS_ADMIN, on x86-64. A thread is stopped for a moment.
    What a program of our own container gave up by itself is its own affair.
    """
    if given_up(pid) != "filters" or is_beside_us(pid):
        return False
    # Filters are only added, and then their number shows it.
    key = (pid, started_at(pid), frozenset(limited_threads(pid)))
    if key not in _known:
        if len(_known) >= _MAX_KNOWN:
            _known.clear()
        _known[key] = _may_read() and _judge(pid)
    return _known[key]


def _may_read() -> bool:
    lines = read_status(os.getpid())
    try:
        capable = int(lines[b"CapEff"], 16) & _SYS_ADMIN and int(lines[b"Seccomp"]) == 0
    except (KeyError, ValueError):
        return False
    return bool(capable) and os.uname().machine == "x86_64"


def _judge(pid: int) -> bool:
    programs: set[Program] = set()
    with suppress(UnsafeToAttach, OSError):
        memory = TargetMemory(pid)
        try:
            for tid in _threads_to_read(pid):
                programs |= _read_at_a_good_moment(pid, tid, memory)
        finally:
            memory.close()
        return all(map(_lets_visits_pass, programs))
    return False


def _threads_to_read(pid: int) -> list[int]:
    """One, where all have what root gave to their program before it started; else all that have filters."""
    with ProcessFolder("/proc", pid) as folder:
        found = {int(name): read_limits(folder, int(name)) for name in folder.names("task")}
    limited = {tid: each for tid, each in found.items() if each is not None and each.mode}
    if limited and all(each.imposed for each in limited.values()) and len(set(limited.values())) == 1:
        waits = {tid: read_syscall(pid, tid) for tid in limited}
        return sorted(limited, key=lambda tid: _risk(waits[tid]))[:1]
    return list(limited)


def _risk(call: tuple[int, Sequence[int], int, int] | None) -> int:
    """How little a stop suits that wait: were vram killed in it, one with a deadline is made anew by a call
    that the filter may forbid; an epoll wait shows that it was interrupted.
    """
    if call is None or call[0] in _EPOLL:
        return 2
    return 1 if call[0] in _RESTARTED else 0


def _read_at_a_good_moment(pid: int, tid: int, memory: TargetMemory) -> set[Program]:
    """Not while it is in an epoll_wait with a deadline, which would return EINTR."""
    for _ in range(_TRIES):
        call = read_syscall(pid, tid)
        if call is None or call[0] not in _EPOLL or lasts(call[0], call[1], memory):
            try:
                return while_stopped(pid, lambda threads: _read_stopped(threads, tid, memory), tid)[0]
            except UnsafeToAttach as error:
                if not os.path.exists(f"/proc/{pid}/task/{tid}"):
                    return set()
                if not error.passing:
                    raise
        time.sleep(_PAUSE_S)
    raise UnsafeToAttach("one of its threads cannot be stopped without being noticed")


def _read_stopped(threads: StoppedThreads, tid: int, memory: TargetMemory) -> set[Program]:
    """The filters of a stopped thread; what it waits for goes on as if nothing had been, or returns EINTR."""
    found: list[Program] = []
    try:
        found = _read(tid)
    finally:
        machine, registers = this_machine(), threads.registers(tid)
        call = machine.interrupted(registers, memory.read)
        may_restart = bool(found) and all(_run(each, _RESTART, {}) <= _MADE for each in found)
        if call is not None and call.number in _EPOLL and call.result == EINTR:
            if not threads.signal(tid) and lasts(call.number, call.arguments, memory):
                threads.set_registers(tid, machine.repeating(registers, call))
        elif call is not None and call.result == RESTART_BLOCK and not may_restart:
            threads.set_registers(tid, machine.after_eintr(registers, call))
    return set(found)


def _read(tid: int) -> list[Program]:
    """The filters of one stopped thread. Raises OSError where they cannot be read."""
    programs: list[Program] = []
    for number in range(_MAX_FILTERS):
        try:
            count = ptrace.request(_GET_FILTER, tid, number)
        except FileNotFoundError:  # that was the last one
            return programs
        if count > _MAX_INSTRUCTIONS:
            break
        buffer = ctypes.create_string_buffer(count * _INSTRUCTION.size)
        ptrace.request(_GET_FILTER, tid, number, buffer)
        programs.append(tuple(_INSTRUCTION.iter_unpack(buffer.raw)))
    raise UnsafeToAttach("it has more filters than vram reads")


def _lets_visits_pass(program: Program) -> bool:
    needed = all(_run(program, number, values) <= _MADE for number, values in _NEEDED.items())
    return needed and all(_run(program, number, {}) <= _SURVIVED for number in range(_LAST_CALL))


# ---- classic BPF ----

_WORD = 0xFFFFFFFF
_STATE = tuple[int, "int | None", "int | None", "tuple[int | None, ...]"]


def _run(program: Program, number: int, arguments: Mapping[int, int]) -> frozenset[int]:
    """Every action that *program* may answer to a call with these *arguments*; others are not known."""
    known: dict[int, int] = {0: number, 4: _ARCHITECTURE}
    for at, value in arguments.items():
        known |= {16 + 8 * at: value & _WORD, 20 + 8 * at: value >> 32}
    answers: set[int] = set()
    waiting: list[_STATE] = [(0, 0, 0, (None,) * 16)]
    seen: set[_STATE] = set()
    while waiting:
        state = waiting.pop()
        if state in seen:
            continue
        seen.add(state)
        if len(seen) > _MAX_STEPS or state[0] >= len(program):
            return frozenset((-1,))  # no such filter is accepted by the kernel
        answer, following = _step(program[state[0]], state, known)
        waiting += following
        if answer is not None:
            answers.add(answer & 0xFFFF0000)
    return frozenset(answers)


def _step(
    instruction: tuple[int, int, int, int], state: _STATE, known: Mapping[int, int]
) -> tuple[int | None, Sequence[_STATE]]:
    """What is answered, or the states after one instruction."""
    code, then, otherwise, k = instruction
    at, a, x, memory = state
    kind = code & 7
    if kind == 6:  # return a constant, or what was computed
        return (k if code & 0x18 == 0 else -1 if a is None else a), ()
    if kind == 5:
        if code & 0xF0 == 0:
            return None, ((at + 1 + k, a, x, memory),)
        met = _compare(code & 0xF0, a, x if code & 8 else k)
        ways = [then] * (met is not False) + [otherwise] * (met is not True)
        return None, tuple((at + 1 + way, a, x, memory) for way in ways)
    mode = code & 0xE0
    loaded = {0x00: k, 0x20: known.get(k), 0x60: memory[k & 15], 0x80: 64}.get(mode)
    if kind == 0:
        a = loaded
    elif kind == 1:
        x = loaded
    elif kind in (2, 3):
        memory = (*memory[: k & 15], a if kind == 2 else x, *memory[(k & 15) + 1 :])
    elif kind == 4:
        a = _compute(code & 0xF0, a, x if code & 8 else k)
    elif code & 0x80:
        a = x
    else:
        x = a
    return None, ((at + 1, a, x, memory),)


def _compare(operation: int, a: int | None, value: int | None) -> bool | None:
    if a is None or value is None:
        return None
    return {0x10: a == value, 0x20: a > value, 0x30: a >= value, 0x40: bool(a & value)}.get(operation)


def _compute(operation: int, a: int | None, value: int | None) -> int | None:
    if operation == 0x80:
        return None if a is None else -a & _WORD
    if a is None or value is None:
        return None
    results = {
        0x00: a + value,
        0x10: a - value,
        0x20: a * value,
        0x40: a | value,
        0x50: a & value,
        0x60: a << (value & 31),
        0x70: a >> (value & 31),
        0xA0: a ^ value,
    }
    found = results.get(operation)
    return None if found is None else found & _WORD
