"""A small machine of three users, made at random, of whom some do whatever may mislead root's vram.

It knows what the kernel knows: who forked whom, who executed a program, whose files are whose, and which
descriptors are on their way in a socket that nobody reads. From that come the observations that vram makes,
and from the same truth who may be ended: a process that was forked from a dead owner of memory, holds its
files, and nothing of anybody who lives. Everybody else is healthy.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.ledger.world import OVERHEAD, World
from vram.model.files import DeviceFile, ExportFacts, FilesFacts
from vram.model.process import ProcessRef
from vram.units import GIB, MIB

USERS = (0, 1000, 1001)
FULL, LOOKED = 20, 4  # descriptors on a GPU of a context, and of a process that only looked for GPUs


@dataclass
class Context:
    """Memory, and the open file descriptions that keep it. Not *charged* while it is being made."""

    owner: int
    nbytes: int
    numbers: range
    charged: bool = False


@dataclass
class Handle:
    """An exported allocation: part of its maker's charge while that lives."""

    maker: int
    nbytes: int
    number: int


@dataclass
class Process:
    """``inherited`` and ``own`` are mapped; ``received`` are descriptors alone."""

    pid: int
    uid: int
    parent: int
    group: int
    session: int
    forked: bool = False
    alive: bool = True
    zombie: bool = False
    watches: bool = False
    own: list[Context] = field(default_factory=list)
    inherited: list[Context] = field(default_factory=list)
    received: list[Context] = field(default_factory=list)
    handles: list[Handle] = field(default_factory=list)

    @property
    def contexts(self) -> list[Context]:
        return [*self.own, *self.inherited, *self.received]


class HostileMachine:
    """Made by *chance*; :meth:`observed` is what root sees of it."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._pid, self._number = 100, 0
        self.processes: dict[int, Process] = {1: Process(1, 0, 0, 1, 1)}
        self.in_flight: list[Handle] = []
        # Whether the driver starts a thread in whoever initialises it: all that we know do.
        self.has_driver_threads = chance.random() < 0.7
        # Whether the kernel compares descriptions, and how much a flood leaves no time for.
        self._numbers = chance.random() < 0.7
        self._flooded = chance.choice((0.0, 0.0, 0.3, 1.0))
        self._unread = chance.choice((0.0, 0.0, 0.0, 0.3))
        for _ in range(chance.randint(4, 40)):
            chance.choice(self._moves())()

    def _moves(self) -> list:
        often = [self._start, self._start, self._fork, self._begin, self._begin, self._finish, self._finish]
        return [
            *often,
            self._leave_behind,
            self._daemonize,
            self._die,
            self._die,
            self._export,
            self._send_and_exit,
            self._hand_over,
            self._execute,
            self._execute_and_keep,
            self._look,
        ]

    # ---- what processes do ----

    def _living(self) -> list[Process]:
        return [each for each in self.processes.values() if each.alive and each.pid != 1]

    def _somebody(self) -> Process | None:
        living = self._living()
        return self._chance.choice(living) if living else None

    def _new(self, **fields: object) -> Process:
        self._pid += 1
        made = Process(self._pid, **fields)  # type: ignore[arg-type]
        self.processes[made.pid] = made
        return made

    def _start(self) -> None:
        """A program that somebody starts: as a session of its own, as a job of a shell, or in a script."""
        uid = self._chance.choice(USERS)
        shells = [each for each in self._living() if each.uid == uid and each.session == each.pid]
        made = self._new(uid=uid, parent=1, group=0, session=0)
        shell = self._chance.choice(shells) if shells and self._chance.random() < 0.6 else None
        if shell is None:
            made.group = made.session = made.pid
            return
        made.parent, made.session = shell.pid, shell.session
        made.group = made.pid if self._chance.random() < 0.5 else shell.group

    def _fork(self, parent: Process | None = None) -> Process | None:
        parent = parent or self._somebody()
        if parent is None:
            return None
        return self._new(
            uid=parent.uid,
            parent=parent.pid,
            group=parent.group,
            session=parent.session,
            forked=True,
            inherited=[*parent.own, *parent.inherited],
            received=[*parent.received],
            handles=[*parent.handles],
        )

    def _leave_behind(self) -> None:
        """A trainer dies, and its workers live on."""
        self._start()
        trainer = self.processes[self._pid]
        self._begin(trainer)
        for context in trainer.own:
            context.charged, context.numbers = True, range(self._number, self._number + FULL)
        for _ in range(self._chance.randint(1, 3)):
            self._fork(trainer)
        self._end(trainer, zombie=self._chance.random() < 0.3)

    def _daemonize(self) -> None:
        """Fork, a session of its own, fork again: nobody above it lives, and it executed nothing."""
        between = self._fork()
        if between is None:
            return
        between.group = between.session = between.pid
        self._fork(between)
        self._end(between, zombie=False)

    def _begin(self, one: Process | None = None) -> None:
        """Make a context: the files come first, the charge later."""
        one = one or self._somebody()
        if one is not None and not one.own and not one.inherited:
            self._number += 100
            few = self._chance.choice((FULL, FULL, 11, 6))
            numbers = range(self._number, self._number + few)
            one.own.append(Context(one.pid, self._chance.randint(1, 8) * GIB, numbers))

    def _finish(self) -> None:
        for one in self._living():
            for context in one.own:
                if not context.charged and self._chance.random() < 0.8:
                    context.charged = True
                    context.numbers = range(context.numbers.start, context.numbers.start + FULL)

    def _die(self) -> None:
        one = self._somebody()
        if one is not None:
            self._end(one, zombie=self._chance.random() < 0.3)

    def _end(self, one: Process, *, zombie: bool) -> None:
        one.alive, one.zombie = False, zombie and self.processes[one.parent].alive
        for each in self.processes.values():
            if each.parent == one.pid:
                each.parent = 1
        one.inherited, one.received, one.handles = [], [], []

    def _export(self) -> None:
        """Anybody who has a context hands an allocation to anybody who takes descriptors, and may end."""
        makers = [each for each in self._living() if any(context.charged for context in each.own)]
        taker = self._somebody()
        if makers and taker is not None:
            maker = self._chance.choice(makers)
            taker.handles.append(self._made(maker))
            if self._chance.random() < 0.5 and maker is not taker:
                self._end(maker, zombie=False)

    def _send_and_exit(self) -> None:
        """Into a socket that is never read: the memory stays, and no process has it open."""
        makers = [each for each in self._living() if any(context.charged for context in each.own)]
        if makers:
            maker = self._chance.choice(makers)
            self.in_flight.append(self._made(maker))
            self._end(maker, zombie=False)

    def _made(self, maker: Process) -> Handle:
        self._number += 100
        context = next(each for each in maker.own if each.charged)
        handle = Handle(maker.pid, self._chance.choice((1, 2)) * GIB, self._number)
        context.nbytes += handle.nbytes
        return handle

    def _hand_over(self) -> None:
        """A context's descriptors, to anybody: nothing is mapped by that."""
        giver, taker = self._somebody(), self._somebody()
        if giver is not None and taker is not None and giver is not taker:
            taker.received += giver.contexts

    def _execute(self) -> None:
        one = self._somebody()
        if one is not None:
            one.forked = False
            one.own, one.inherited = [], []

    def _execute_and_keep(self) -> None:
        """A program that keeps the descriptors although they should close: it maps nothing any more."""
        one = self._somebody()
        if one is not None:
            one.forked = False
            one.received += [*one.own, *one.inherited]
            one.own, one.inherited = [], []

    def _look(self) -> None:
        one = self._somebody()
        if one is not None:
            one.watches = True

    # ---- the truth ----

    def kept(self) -> list[Context]:
        """Contexts whose memory is still there: somebody who lives has their files."""
        found = {id(each): each for one in self._living() for each in one.contexts}
        return list(found.values())

    def dead_owners(self) -> set[int]:
        return {each.owner for each in self.kept() if each.charged and not self._owns(each)}

    def _owns(self, context: Context) -> bool:
        owner = self.processes[context.owner]
        return owner.alive and any(each is context for each in owner.own)

    def healthy(self) -> set[int]:
        """Everybody who must not be ended by itself."""
        return {one.pid for one in self._living() if not self._is_leftover(one)}

    def _is_leftover(self, one: Process) -> bool:
        # What others handed it makes it neither healthy nor left behind.
        living = [each for each in (*one.own, *one.inherited) if self._owns(each)]
        if not one.forked or any(each.charged or self.has_driver_threads for each in living):
            return False
        # A worker of a dead program, of its session or group: without the driver's threads nobody can tell
        # whether it, or its parent, is making a context.
        if {one.group, one.session, one.parent} & self.dead_owners():
            return True
        return bool(one.inherited and not one.own and not any(map(self._owns, one.inherited)))

    def finish_all(self) -> None:
        """Seconds later: whoever was making a context has it. The driver's threads need no time to tell."""
        if self.has_driver_threads:
            return
        for one in self._living():
            for context in one.own:
                context.charged = True

    # ---- what root sees ----

    def observed(self) -> World:
        world = World()
        kept = [each for each in self.kept() if each.charged]
        loose = {
            id(each): each
            for each in (*self.in_flight, *(each for one in self._living() for each in one.handles))
            if not self.processes[each.maker].alive
        }
        used = sum(each.nbytes for each in kept) + sum(each.nbytes for each in loose.values())
        world.gpu(used=used + OVERHEAD + 3 * MIB, total=1 << 50)
        for context in kept:
            world.charge(context.owner, context.nbytes)
        if self._unread:
            world.out_of_time()
        for one in self.processes.values():
            if one.alive or one.zombie:
                world.process(
                    one.pid,
                    parent=one.parent,
                    group=one.group,
                    session=one.session,
                    uid=one.uid,
                    forked=one.forked,
                    initialised_cuda=(self.has_driver_threads and bool(one.own)) if one.forked else None,
                    state="Z" if one.zombie else "S",
                )
            if one.alive and self._chance.random() >= self._unread:
                self._see_files(world, one)
        return world

    def _see_files(self, world: World, one: Process) -> None:
        numbers = [number for context in one.contexts for number in context.numbers]
        if one.watches:
            numbers += [-one.pid * 10 - at for at in range(LOOKED)]
        numbered = self._numbers and self._chance.random() >= self._flooded
        for handle in one.handles:
            facts = ExportFacts(fd=7, description=handle.number if numbered else None)
            world._see(
                "driver.exports", gpu=0, process=ProcessRef(one.pid), nbytes=handle.nbytes, facts=facts
            )
        if not numbers:
            return
        shown = [number if numbered else None for number in numbers]
        if not numbered and self._chance.random() < 0.5:  # the time was over in the middle
            shown[: len(shown) // 2] = numbers[: len(shown) // 2]
        files = [DeviceFile(10 + at, "gpu", "/dev/nvidia0", 0, each) for at, each in enumerate(shown)]
        mappings = 31 if one.own or one.inherited else 0
        world._see("proc.files", process=ProcessRef(one.pid), facts=FilesFacts(tuple(files), mappings, 0))
