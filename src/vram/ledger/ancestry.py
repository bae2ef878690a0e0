"""Who is above whom among all processes. A chain of ten thousand forks costs each of them one step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

NO_RANK = 1 << 64
"""A rank that is worse than every other."""


class Ancestry:
    """Parents by pid, as far as /proc reports them.

    A pid that was reused while processes were read can make a circle: each process in it is above each
    of them, itself included.
    """

    def __init__(self, parents: Mapping[int, int]) -> None:
        self._parents = parents
        self._tour: _Tour | None = None

    def least_above(self, ranks: Mapping[int, int]) -> Callable[[int], int]:
        """Return a function from a pid to the least of the *ranks* of all processes above it."""
        parents = self._parents
        found: dict[int, int] = {}

        def least(pid: int) -> int:
            path: list[int] = []
            place: dict[int, int] = {}
            at = pid
            while at in parents and at not in found and at not in place:
                place[at] = len(path)
                path.append(at)
                at = parents[at]
            if at in place:
                circle = path[place[at] :]
                found.update(dict.fromkeys(circle, min(ranks.get(each, NO_RANK) for each in circle)))
                del path[place[at] :]
            best = found.get(at, NO_RANK)
            for below in reversed(path):
                best = found[below] = min(best, ranks.get(parents[below], NO_RANK))
            return found.get(pid, NO_RANK)

        return least

    def below_others(self, pids: Collection[int]) -> set[int]:
        """Those of *pids* that have another one of *pids* above them."""
        if len(pids) < 2:
            return set()
        self._tour = self._tour or _Tour(self._parents)
        return self._tour.below_others(pids)


class _Tour:
    """A walk down from every root: a process that is entered before another is left is below that one."""

    def __init__(self, parents: Mapping[int, int]) -> None:
        self._children: dict[int, list[int]] = {}
        for pid, parent in parents.items():
            self._children.setdefault(parent, []).append(pid)
        self._entered: dict[int, int] = {}
        self._left: dict[int, int] = {}
        self._circles: list[frozenset[int]] = []
        self._circle_above: dict[int, int] = {}
        for pid in self._children:
            if pid not in parents:
                self._walk(pid)
        for pid in parents:
            if pid not in self._entered:  # no root is above it: a circle is
                circle = _circle(parents, pid)
                below = self._walk(min(circle))
                self._circle_above.update(dict.fromkeys(below, len(self._circles)))
                self._circles.append(circle)

    def _walk(self, root: int) -> list[int]:
        reached, waiting = [], [root]
        while waiting:
            pid = waiting.pop()
            if pid < 0:
                self._left[~pid] = len(self._entered)
            elif pid not in self._entered:
                self._entered[pid] = len(self._entered)
                reached.append(pid)
                waiting.append(~pid)
                waiting += self._children.get(pid, ())
        return reached

    def below_others(self, pids: Iterable[int]) -> set[int]:
        wanted = {pid for pid in pids if pid in self._entered}
        below: set[int] = set()
        above: list[int] = []
        for pid in sorted(wanted, key=self._entered.__getitem__):
            while above and self._left[above[-1]] <= self._entered[pid]:
                above.pop()
            if above:
                below.add(pid)
            above.append(pid)
        for pid in wanted & self._circle_above.keys():
            circle = self._circles[self._circle_above[pid]]
            if not wanted.isdisjoint(circle - {pid}):
                below.add(pid)
        return below


def _circle(parents: Mapping[int, int], pid: int) -> frozenset[int]:
    path: dict[int, int] = {}
    while pid not in path:
        path[pid] = len(path)
        pid = parents[pid]
    return frozenset(list(path)[path[pid] :])
