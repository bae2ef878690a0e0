"""The five questions people ask about GPU memory, each as a scene with a way out."""

from __future__ import annotations

from collections.abc import Callable
from signal import SIGTERM
from typing import NamedTuple

from vram.virtualgpu.scene import Scene


class Story(NamedTuple):
    """A question, the scene that raises it, and what answers it.

    ``raise_it`` brings the scene to where the question comes up, ``cure`` follows the
    advice. Sentences may name processes by their part: ``{child}`` becomes a pid.
    """

    name: str
    question: str
    scene: str
    size: str
    happened: str
    raise_it: Callable[[Scene], None]
    advice: str
    deed: str
    cure: Callable[[Scene], None]


def _as_it_starts(scene: Scene) -> None:
    """The first stage already raises the question."""


def _go(scene: Scene) -> None:
    scene.go()


def _kill_parent(scene: Scene) -> None:
    scene.kill("parent")


def _end_child(scene: Scene) -> None:
    scene.kill("child", SIGTERM)


def _export_and_die(scene: Scene) -> None:
    scene.go()
    scene.go()


THREAD = Story(
    name="thread",
    question="The thread has ended. Why is its memory still in use?",
    scene="threads",
    size="1GiB",
    happened="Four threads of one process allocated 1 GiB each through raw pointers, and ended.",
    raise_it=_as_it_starts,
    advice="Device memory belongs to the process, not to the thread: an owner object would have "
    "freed it. What has no owner left goes with the context.",
    deed="Process {self} resets its context.",
    cure=_go,
)

FORK = Story(
    name="fork",
    question="The process is dead. Why is its memory not free?",
    scene="fork_orphan",
    size="4GiB",
    happened="Process {parent} allocated 4 GiB and forked. Then it was killed; its child sleeps on.",
    raise_it=_kill_parent,
    advice="The child inherited the open device files, and these are what holds the memory. "
    "Killing the pid that the driver lists can do nothing: end the child.",
    deed="$ kill {child}",
    cure=_end_child,
)

EXPORT = Story(
    name="export",
    question="No process is listed. Who holds 4 GiB?",
    scene="export_handle",
    size="4GiB",
    happened="Process {allocator} exported an allocation to process {keeper}, which never uses CUDA, "
    "and was killed.",
    raise_it=_export_and_die,
    advice="An exported allocation lives as long as any descriptor of it is open, in whatever process. "
    "Let the keeper close it, or end the keeper.",
    deed="Process {keeper} closes its descriptor.",
    cure=_go,
)

POOL = Story(
    name="pool",
    question="Everything was freed. Why is it still in use?",
    scene="pool",
    size="6GiB",
    happened="Process {self} freed all of its 6 GiB into a stream-ordered pool that may keep what it gets.",
    raise_it=_go,
    advice="From outside, a pool's spare memory looks like any other. The process alone can return it, "
    "with cuMemPoolTrimTo, empty_cache() and their like.",
    deed="Process {self} trims its pool.",
    cure=_go,
)

CONTEXT = Story(
    name="context",
    question="Nobody computes anything. What uses the memory?",
    scene="small_contexts",
    size="2MiB",
    happened="Four idle processes hold 2 MiB each.",
    raise_it=_as_it_starts,
    advice="Every process that touches CUDA pays for a context first, however little it holds. "
    "Fewer processes cost fewer contexts; idle ones can end.",
    deed="The four idle processes end.",
    cure=_go,
)

STORIES = (THREAD, FORK, EXPORT, POOL, CONTEXT)
