"""The waker: a process of a user's that puts programs to sleep, watches them, and wakes the wanted ones.

It has a session of its own, and ends when no program is left for it. A second process, the standby, starts it
anew where it is killed; then what sleeps is found in the records, and what arrived meanwhile is found unread.
While a program sleeps, its waker has the claim on it: no other vram moves it.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import replace

from vram import untrusted
from vram.children import Child, LocalPidHandle, interpreter, spawn
from vram.errors import AuditUnavailable, CannotPark, NoRoom, NoSuchProcess, VramError
from vram.host.local import LocalHost
from vram.model.parking import Parked
from vram.model.plan import Target
from vram.model.sleeping import Sleeper, SleepOptions, SleepState, WakeReason
from vram.reclaim import state
from vram.reclaim.journal import Journal
from vram.reclaim.parking import Parking
from vram.sleeping import moves, records, turns
from vram.sleeping.hold import CannotTrace, ThreadHolder, stop_again
from vram.sleeping.programs import SleepingProgram
from vram.sleeping.protocol import MAX_LINE, WakerAnswer, WakerRequest, error_of

# Nothing to do for so long: then it ends.
LINGER_S = 2.0
LOCK_S = 2.0
# How often the processes of sleeping programs are looked at for a signal that waits, and for whether they are
# still stopped; with many of them less often, so that a thousand cost next to nothing.
LOOK_S, LOOKS_PER_S = 0.25, 150
IDLE_LOOK_S = 0.5
# A program that could not be put to sleep, or woken, is tried again after this, and later and later.
RETRY_S, MAX_RETRY_S = 0.2, 10.0
_KEPT_WAKES = 5


class Waker:
    """All programs of this user on this machine, and the socket by which `vram sleep` asks."""

    def __init__(self) -> None:
        self.host = LocalHost()
        self.journal = Journal(self.host)
        self.lanes = moves.Lanes()
        self.holder = ThreadHolder()
        self.budgets: defaultdict[str, turns.SwapBudget] = defaultdict(turns.SwapBudget)
        self.programs: dict[int, SleepingProgram] = {}
        self._number = 0
        self._asked_at = time.monotonic()
        self._queue: list[SleepingProgram] = []
        """Who waits for room, in the order in which they were wanted."""
        self._moved = asyncio.Event()
        """Set when a program has gone to sleep or has ended: there may be room."""
        self._standby: Child | None = None
        self._standby_pidfd = -1
        self._leaving = asyncio.Event()

    # ---- from start to end ----

    async def run(self, standby: Child | None) -> None:
        if standby is not None:
            self._use_standby(standby)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._leaving.set)
        folder = state.open_folder()
        path = f"/proc/self/fd/{folder}/{socket_name(self.host)}"
        with suppress(FileNotFoundError):
            os.unlink(path)
        server = await asyncio.start_unix_server(self._serve, path, limit=MAX_LINE)
        os.chmod(path, 0o600)
        self._restore()
        try:
            async with server:
                looking = [
                    asyncio.create_task(self._look_at_sleepers()),
                    asyncio.create_task(self._look_for_work()),
                ]
                await self._until_nothing_is_left()
                for each in looking:
                    each.cancel()
            await self._wake_all()
        finally:
            with suppress(OSError):
                os.unlink(path)
            _dismiss(self._standby)
            self.lanes.close()
            os.close(folder)

    async def _until_nothing_is_left(self) -> None:
        while not self._leaving.is_set():
            self._watch_standby()
            idle_s = time.monotonic() - self._asked_at
            if not self.programs and idle_s > LINGER_S:
                return
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), LINGER_S / 4)

    async def _wake_all(self) -> None:
        """Asked to end: what fits on its GPU runs again; what does not, `vram sleep` finds in the records."""
        for program in list(self.programs.values()):
            program.forgotten = True
            program.want(WakeReason(cause="other", detail="the waker ends"))
        tasks = [each.task for each in self.programs.values() if each.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=60.0)

    # ---- a standby that starts another waker where this one is killed ----

    def _watch_standby(self) -> None:
        """Have a standby for as long as there is something to lose."""
        if self._standby is not None and self._standby.wait(0.0):
            asyncio.get_running_loop().remove_reader(self._standby_pidfd)
            self._standby.hang_up()
            self._standby = None
        if self._standby is None and self.programs and not self._leaving.is_set():
            with suppress(OSError):
                self._use_standby(spawn(interpreter("vram.sleeping.standby"), apart="session", link="stream"))

    def _use_standby(self, standby: Child) -> None:
        self._standby, self._standby_pidfd = standby, standby.pidfd
        asyncio.get_running_loop().add_reader(standby.pidfd, self._watch_standby)

    # ---- what is asked ----

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._asked_at = time.monotonic()
        try:
            if not _is_trusted(writer):
                return
            request = untrusted.decode(await reader.readline(), WakerRequest)
            answer = WakerAnswer(sleepers=tuple(await self._do(request)))
        except VramError as error:
            answer = WakerAnswer(error=error_of(error))
        except (OSError, ValueError, asyncio.IncompleteReadError):
            return
        finally:
            self._asked_at = time.monotonic()
        with suppress(OSError):
            writer.write(msgspec.json.encode(answer) + b"\n")
            await writer.drain()
            writer.close()

    async def _do(self, request: WakerRequest) -> list[Sleeper]:
        match request.do:
            case "sleep" | "watch":
                return [await self._take(request)]
            case "wake":
                meant = self._meant(request)
                await asyncio.gather(*(self._wake_asked(each) for each in meant))
                return [each.sleeper() for each in meant]
            case "forget":
                meant = self._meant(request)
                for each in meant:
                    each.forgotten = True
                await asyncio.gather(*(self._wake_asked(each) for each in meant))
                return [each.sleeper() for each in meant]
        return [each.sleeper() for each in self.programs.values()]

    def _meant(self, request: WakerRequest) -> list[SleepingProgram]:
        wanted = {pid for pid, _ in request.targets}
        found = [each for each in self.programs.values() if not wanted or not wanted.isdisjoint(each.pids)]
        missing = wanted.difference(pid for each in found for pid in each.pids)
        if missing:
            pid = min(missing)
            raise CannotPark(f"pid {pid} does not sleep", hint="`vram sleep` lists those that do")
        return found

    async def _take(self, request: WakerRequest) -> Sleeper:
        """Lead a program from now on; with "sleep", come back when it is asleep."""
        wanted = {pid for pid, _ in request.targets}
        same = next((each for each in self.programs.values() if set(each.pids) == wanted), None)
        others = [
            each for each in self.programs.values() if each is not same and not wanted.isdisjoint(each.pids)
        ]
        if others:
            raise CannotPark(
                f"pid {min(wanted.intersection(others[0].pids))} sleeps as a part of another program"
                f" (pid {', '.join(map(str, others[0].pids))})",
                hint=f"`vram wake --forget {others[0].pids[0]}` first",
            )
        program = same or self._open(request.targets, request.options)
        if same is not None and request.options != SleepOptions():
            # Asked to sleep now, it still sleeps whenever it is idle, if that was wanted before.
            idle_s = same.options.idle_s if request.options.idle_s is None else request.options.idle_s
            program.options = replace(request.options, idle_s=idle_s)
        if request.do == "watch" or program.asleep is not None:
            self._lead(program)
            self._write()
            return program.sleeper()
        program.anyway = request.anyway
        asked = program.sleep_asked = asyncio.get_running_loop().create_future()
        self._lead(program)
        async with program.changed:
            program.changed.notify_all()
        await asked
        return program.sleeper()

    def _open(self, pids: Sequence[tuple[int, int]], options: SleepOptions) -> SleepingProgram:
        handles: list[LocalPidHandle] = []
        try:
            for pid, started_at in pids:
                handles.append(moves.open_process(pid, started_at))
            targets = tuple(moves.identify(each.pid) for each in handles)
        except BaseException:
            for each in handles:
                each.close()
            raise
        return self._add(targets, handles, options)

    def _add(
        self, targets: Sequence[Target], handles: Sequence[LocalPidHandle], options: SleepOptions
    ) -> SleepingProgram:
        self._number += 1
        program = SleepingProgram(self._number, targets, handles, options)
        self.programs[program.number] = program
        for handle in handles:
            asyncio.get_running_loop().add_reader(handle.pidfd, self._note_end, program, handle.pidfd)
        return program

    def _note_end(self, program: SleepingProgram, pidfd: int) -> None:
        asyncio.get_running_loop().remove_reader(pidfd)
        # Copies of its files keep its ports in use: another may want to listen there now.
        if program.asleep is not None and program.has_ended():
            self._unwatch(program)
        program.want(WakeReason(cause="ended"))
        self._moved.set()

    async def _wake_asked(self, program: SleepingProgram) -> None:
        """Wake it; raises what kept it asleep, once that is known."""
        if program.state == "awake" and program.forgotten:
            program.want(WakeReason(cause="asked"))
        if program.state == "awake":
            program.forget_work()
            return
        program.trouble = ""
        program.want(WakeReason(cause="asked"))
        async with program.changed:
            await program.changed.wait_for(lambda: program.state == "awake" or program.trouble)
        if program.trouble:
            raise CannotPark(program.trouble, hint="it is woken as soon as that is possible")

    # ---- the life of a program ----

    def _lead(self, program: SleepingProgram) -> None:
        if program.task is None:
            program.task = asyncio.create_task(self._live(program))

    async def _live(self, program: SleepingProgram) -> None:
        while not program.has_ended():
            try:
                if program.asleep is not None:
                    await program.wanted.wait()
                    await self._wake(program)
                elif await self._until_to_sleep(program):
                    await self._put_to_sleep(program)
                else:
                    break
            except Exception as error:  # a fault of ours must not leave it asleep for good
                program.trouble = f"{type(error).__name__}: {error}"
                self._log(traceback.format_exc())
                await asyncio.sleep(MAX_RETRY_S)
                self._adopt(program, "an error in vram")
        self._drop(program)

    async def _until_to_sleep(self, program: SleepingProgram) -> bool:
        """Come back when it is to sleep; False where it needs no more care of ours."""
        retry_s = RETRY_S
        while not program.has_ended() and not program.forgotten:
            if program.sleep_asked is not None:
                return True
            idle_s = program.options.idle_s
            if idle_s is None:
                return False
            left_s = idle_s - (time.monotonic() - program.used_at)
            if left_s <= 0:
                return True
            async with program.changed:
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(program.changed.wait(), max(retry_s, min(left_s, 1.0)))
        return False

    async def _put_to_sleep(self, program: SleepingProgram) -> None:
        """Who asked for it learns why it stays awake, where it does."""
        asked, program.sleep_asked = program.sleep_asked, None
        anyway, program.anyway = program.anyway, False
        await self._set(program, "going to sleep")
        program.wanted.clear()
        try:
            asleep = await self._move(
                lambda parking: moves.put_to_sleep(
                    parking, program.targets, program.handles, program.options, anyway=anyway
                )
            )
        except VramError as error:
            program.forget_work()
            program.trouble = "" if isinstance(error, moves.Works) else str(error)
            await self._set(program, "awake")
            if asked is not None and not asked.done():
                asked.set_exception(error)
            elif program.trouble and program.options.idle_s is not None:
                # Tried again, and not at once: what keeps it awake seldom changes.
                program.used_at += MAX_RETRY_S
            self._adopt(program, str(error))
            return
        self._begin_watch(program, asleep)
        program.trouble = ""
        program.shares = tuple(share for entry in asleep.entries for share in entry.shares)
        await self._set(program, "asleep")
        self._moved.set()
        self.lanes.warm_up()
        for each in (asked, program.sleep_asked):  # one may have come meanwhile
            if each is not None and not each.done():
                each.set_result(True)
        program.sleep_asked = None

    def _adopt(self, program: SleepingProgram, trouble: str) -> None:
        """It may be asleep all the same, and could not be brought back: then it is wanted at once."""
        entries = self._entries_of(program)
        if entries and program.asleep is None and not program.has_ended():
            self._begin_watch(program, moves.Asleep(entries, {}))
            program.want(WakeReason(cause="other", detail=trouble))

    def _entries_of(self, program: SleepingProgram) -> list[Parked]:
        found = [self.journal.find(pid) for pid in program.pids]
        return [entry for entry in found if entry is not None and entry.purpose == "sleep"]

    def _begin_watch(self, program: SleepingProgram, asleep: moves.Asleep) -> None:
        program.asleep = asleep
        program.note_stop()
        self._keep(program)
        loop = asyncio.get_running_loop()
        for watch in asleep.watches:
            loop.add_reader(watch.fileno(), self._note_arrival, program)
        found = asleep.wanted(all_files=True)
        if found is not None:
            program.want(WakeReason(cause="file", file=found))

    def _note_arrival(self, program: SleepingProgram) -> None:
        found = program.asleep.wanted() if program.asleep is not None else None
        if found is not None:
            program.want(WakeReason(cause="file", file=found))

    def _unwatch(self, program: SleepingProgram) -> None:
        assert program.asleep is not None
        for watch in program.asleep.watches:
            asyncio.get_running_loop().remove_reader(watch.fileno())
        program.asleep.close()

    async def _wake(self, program: SleepingProgram) -> None:
        """Bring it back as soon as there is room; until then the kernel keeps what arrives."""
        assert program.asleep is not None
        entries = program.asleep.entries
        self._unwatch(program)
        self._queue.append(program)
        retry_s, try_at, missing = RETRY_S, 0.0, dict[str, int]()
        try:
            while True:
                pause_s = RETRY_S
                if not self._is_first(program):
                    program.trouble = "another program is woken first"
                elif time.monotonic() >= try_at:
                    error = await self._try_to_wake(program, entries)
                    if error is None:
                        return
                    program.trouble = str(error)
                    missing = error.missing if isinstance(error, NoRoom) else {}
                    try_at, retry_s = time.monotonic() + retry_s, min(2 * retry_s, MAX_RETRY_S)
                if missing and self._is_first(program):
                    turn, has_slept = await self._make_room(program, missing)
                    if has_slept:
                        try_at = 0.0
                        continue
                    program.trouble = f"{program.trouble.partition(';')[0]}; {turn.why}"
                    pause_s = min(max(turn.again_s, RETRY_S), 1.0)
                await self._set(program, "waiting for room" if missing else "asleep")
                self._moved.clear()
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._moved.wait(), pause_s)
                    try_at = 0.0
        finally:
            self._queue.remove(program)
            self._moved.set()

    def _is_first(self, program: SleepingProgram) -> bool:
        """Whether none that has waited for longer needs a GPU that it needs, too."""
        mine = set(program.nbytes)
        earlier = self._queue[: self._queue.index(program)]
        return not any(mine.intersection(each.nbytes) for each in earlier)

    async def _try_to_wake(self, program: SleepingProgram, entries: Sequence[Parked]) -> VramError | None:
        """Why it sleeps on; None: it runs, or has ended."""
        await self._set(program, "waking")
        program.release_claims()
        began = time.monotonic()
        try:
            await self._move(lambda parking: moves.wake(parking, entries, self.holder.release))
        except VramError as error:
            if not program.has_ended():
                self._keep(program)
                return error
        for pid in program.pids:
            self.holder.release(pid)
        self._note_wake(program, began)
        await self._set(program, "awake")
        return None

    def _note_wake(self, program: SleepingProgram, began: float) -> None:
        now = time.monotonic()
        program.asleep = None
        program.forget_stop()
        program.trouble = ""
        program.wakes += 1
        if program.wanted_at is not None:
            took_s = round(now - program.wanted_at, 4)
            program.last_wake_s = (*program.last_wake_s[1 - _KEPT_WAKES :], took_s)
        if program.made_room_s:
            for uuid in program.nbytes:
                self.budgets[uuid].note(now, program.made_room_s + now - began)
            program.made_room_s = 0.0
        program.woken_at = now
        program.forget_work()
        program.wanted.clear()

    def _keep(self, program: SleepingProgram) -> None:
        """While it sleeps no other vram moves it, and none of its threads runs."""
        for handle in program.handles:
            claim = self.journal.try_claim(handle.pid)
            if claim is not None:
                program.claims.append(claim)
            with suppress(CannotTrace):  # it is stopped all the same, until it is continued by hand
                self.holder.hold(handle)

    async def _make_room(
        self, program: SleepingProgram, missing: Mapping[str, int]
    ) -> tuple[turns.Turn, bool]:
        """Put others to sleep for it, where that is due; also, whether one of them does."""
        began = time.monotonic()
        awake = [each for each in self.programs.values() if each.state == "awake" and each is not program]
        turn = turns.make_room(
            missing,
            [each.candidate(began) for each in awake],
            began - (program.wanted_at or began),
            max(self.budgets[uuid].wait_s(began) for uuid in missing),
        )
        slept = await asyncio.gather(*(self._ask_to_sleep(self.programs[number]) for number in turn.sleep))
        if any(slept):
            program.made_room_s += time.monotonic() - began
        return turn, any(slept)

    async def _ask_to_sleep(self, program: SleepingProgram) -> bool:
        asked = program.sleep_asked
        if asked is None:
            asked = program.sleep_asked = asyncio.get_running_loop().create_future()
        self._lead(program)
        async with program.changed:
            program.changed.notify_all()
        try:
            return await asyncio.shield(asked)
        except VramError:
            return False

    async def _move(self, job: Any) -> Any:
        return await asyncio.wrap_future(self.lanes.submit(job))

    async def _set(self, program: SleepingProgram, state: SleepState) -> None:
        if program.state != state:
            program.state, program.since = state, time.time()
            why = records.fields_of(program.reason) if state == "waking" else program.trouble
            pids = ", ".join(map(str, program.pids))
            self._log(f"pid {pids} {state}: {why}" if why else f"pid {pids} {state}")
            self._write()
        async with program.changed:
            program.changed.notify_all()

    def _log(self, line: str) -> None:
        records.log(self.host, line)

    def _drop(self, program: SleepingProgram) -> None:
        """It has ended, or is awake and stays so."""
        self.programs.pop(program.number, None)
        loop = asyncio.get_running_loop()
        for handle in program.handles:
            loop.remove_reader(handle.pidfd)
        if program.sleep_asked is not None and not program.sleep_asked.done():
            program.sleep_asked.set_exception(NoSuchProcess(f"process {program.pids[0]} has exited"))
        program.close()
        self._asked_at = time.monotonic()
        self._moved.set()
        self._write()

    # ---- what no event tells ----

    async def _look_at_sleepers(self) -> None:
        """Signals that wait for a stopped process, and processes that were continued by hand."""
        while True:
            asleep = [each for each in self.programs.values() if each.state in ("asleep", "waiting for room")]
            count = sum(len(each.handles) for each in asleep)
            await asyncio.sleep(max(LOOK_S, count / LOOKS_PER_S))
            for program in asleep:
                if program.state in ("asleep", "waiting for room") and (found := program.signal_that_waits()):
                    program.want(WakeReason(cause="signal", signal=found))
                    if found == "SIGCONT":
                        for handle in program.handles:
                            stop_again(handle)

    async def _look_for_work(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(max(IDLE_LOOK_S, len(self.programs) / LOOKS_PER_S))
            now = time.monotonic()
            for program in self.programs.values():
                if program.state == "awake":
                    program.look_for_work(now - last)
            last = now

    # ---- what outlives us ----

    def _write(self) -> None:
        # Where the disk is full, a waker that is killed forgets what is newest.
        with suppress(AuditUnavailable):
            records.write(self.host, tuple(each.record() for each in self.programs.values()))

    def _restore(self) -> None:
        """Go on where a waker was killed: what it was moving is undone or done, and the rest sleeps."""
        found = records.read(self.host)
        if not found:
            return
        with Parking(LocalHost()) as parking:
            parking.recover()
        for record in found:
            handles = []
            for target in record.targets:
                with suppress(VramError):  # it has ended meanwhile
                    handles.append(moves.open_process(target.process.pid, target.process.started_at))
            if handles:
                self._go_on(record, handles)
        self._write()

    def _go_on(self, record: records.SleepRecord, handles: Sequence[LocalPidHandle]) -> None:
        living = {handle.pid for handle in handles}
        targets = [target for target in record.targets if target.process.pid in living]
        program = self._add(targets, handles, record.options)
        program.shares, program.wakes = record.shares, record.wakes
        program.last_wake_s, program.reason = record.last_wake_s, record.reason
        entries = self._entries_of(program)
        if entries:
            self._resume_sleep(program, entries, record)
        if len(targets) < len(record.targets):
            program.want(WakeReason(cause="ended"))
        self._lead(program)

    def _resume_sleep(
        self, program: SleepingProgram, entries: Sequence[Parked], record: records.SleepRecord
    ) -> None:
        asleep = moves.Asleep(entries, {(pid, fd): count for pid, fd, count in record.ignored})
        program.state = "asleep"
        try:
            asleep.watch(program.handles, program.options)
        except OSError as error:
            asleep.close()
            detail = f"its files cannot be watched: {error.strerror}"
            program.want(WakeReason(cause="other", detail=detail))
        self._begin_watch(program, asleep)


def _is_trusted(writer: asyncio.StreamWriter) -> bool:
    """Whether the other end is this user's, or root's."""
    raw = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    uid = int.from_bytes(raw[4:8], sys.byteorder)
    return uid in (0, os.geteuid())


def socket_name(host: LocalHost) -> str:
    return f"waker-{records.name_here(host)}.sock"


def main() -> None:
    """Run as a process of its own, if no other has the lock."""
    os.chdir("/")
    host = LocalHost()
    lock = state.open_file(f"waker-{records.name_here(host)}.lock", os.O_RDWR | os.O_CREAT)
    standby = _inherited_standby()
    if not _take(lock, LOCK_S if standby else 0.0):
        _dismiss(standby)  # another one is there
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(_run(standby))


def _take(lock: int, wait_s: float) -> bool:
    """Whether we are the only one. One that was killed has its lock until the kernel has closed its files."""
    import fcntl

    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            if time.monotonic() >= deadline:
                return False
        time.sleep(0.01)


def _dismiss(standby: Child | None) -> None:
    """Tell the standby that we end by ourselves."""
    if standby is not None:
        with suppress(OSError):
            os.write(standby.pipe, b"done")
        standby.hang_up()


def _inherited_standby() -> Child | None:
    """The standby that started us by becoming us, where one did: our end of its pipe, and its pid."""
    if len(sys.argv) < 3:
        return None
    pipe, pid = map(int, sys.argv[1:3])
    os.set_inheritable(pipe, False)
    return Child(pid, pipe)


async def _run(standby: Child | None) -> None:
    await Waker().run(standby)
