"""``vram demo``: five questions about GPU memory, acted out by real processes on a virtual GPU.

Nothing is prerecorded: every answer is ``vram why`` itself, run while the scene plays, and
every "given back" is measured after following the advice.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from vram.cli.terminal import add_terminal_arguments, emit
from vram.errors import ExitCode, UsageError
from vram.units import GIB

if TYPE_CHECKING:
    from vram.cli.demo_output import DemoOutput
    from vram.virtualgpu import VirtualGpu
    from vram.virtualgpu.stories import Story

NAME = "demo"
HELP = "five questions about GPU memory, acted out by real processes on a virtual GPU"

# Small enough that a few GiB can be seen in its bar.
GPU: dict[str, Any] = {"memory_bytes": 24 * GIB, "name": "NVIDIA GPU"}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these scenes")
    parser.add_argument(
        "--full", action="store_true", help="show all of `vram why`, not just its first cause"
    )
    parser.add_argument("--list", action="store_true", help="name the scenes and their questions")
    parser.add_argument(
        "--keep", action="store_true", help="stay in every scene, in a shell; its `exit` goes on"
    )
    parser.add_argument("--svg", metavar="FILE", help="draw `vram why` with three scenes at once instead")
    add_terminal_arguments(parser)


def known_names() -> tuple[tuple[str, str], ...]:
    """The scenes, each with its question."""
    from vram.virtualgpu.stories import STORIES

    return tuple((story.name, story.question) for story in STORIES)


def run(args: Namespace) -> int:
    from vram.cli.app import exit_on_signals
    from vram.virtualgpu.stories import STORIES

    stories = _chosen(args.names, STORIES)
    if args.list:
        emit("".join(f"{story.name:9}{story.question}\n" for story in stories))
        return ExitCode.OK
    with exit_on_signals():
        return _draw(args.svg) if args.svg else _play_all(stories, args)


def _chosen(names: list[str], stories: tuple[Story, ...]) -> tuple[Story, ...]:
    known = [story.name for story in stories]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"there is no scene {unknown[0]!r}", hint=f"there are {', '.join(known)}")
    return tuple(story for story in stories if not names or story.name in names)


def _play_all(stories: tuple[Story, ...], args: Namespace) -> int:
    from vram.cli.demo_output import DemoOutput

    output = DemoOutput(args)
    better = []
    for at, story in enumerate(stories, 1):
        output.title(f"{at} of {len(stories)}", story.question)
        better.append(_play(story, output, stay=args.keep))
    output.end()
    return ExitCode.OK if all(better) else ExitCode.PARTIAL


def _play(story: Story, output: DemoOutput, *, stay: bool) -> bool:
    """Play one story; return whether following its advice gave memory back."""
    from vram.cli.demo_output import held_bytes
    from vram.virtualgpu import VirtualGpu
    from vram.virtualgpu.scene import Scene

    with VirtualGpu.create(**GPU) as gpu, Scene(gpu, story.scene, story.size) as scene:
        pids = scene.pids
        story.raise_it(scene)
        output.happened(story.happened.format_map(pids))
        output.why(gpu)
        if stay:
            _shell(gpu)
        output.advice(story.advice.format_map(pids))
        before = held_bytes(gpu)
        story.cure(scene)
        after = held_bytes(gpu)
    output.outcome(story.deed.format_map(pids), before, after)
    return after < before


def _shell(gpu: VirtualGpu) -> None:
    """Give the user a shell in the scene, with this very program on its path."""
    from vram.virtualgpu import launch

    environment = gpu.environment()
    environment["PATH"] = f"{os.path.dirname(sys.executable)}:{environment.get('PATH', os.defpath)}"
    with launch.signals_held() as mask:
        launch.run([os.environ.get("SHELL") or "/bin/sh"], environment, mask)


def _draw(path: str) -> int:
    """Draw the program's answer while three stories play at once."""
    from vram.cli.demo_output import run_why
    from vram.virtualgpu import VirtualGpu
    from vram.virtualgpu.scene import Scene
    from vram.virtualgpu.stories import EXPORT, FORK, POOL

    with ExitStack() as cleanup:
        gpu = cleanup.enter_context(VirtualGpu.create(**GPU))
        for story in (FORK, EXPORT, POOL):
            story.raise_it(cleanup.enter_context(Scene(gpu, story.scene, story.size)))
        run_why(gpu, ["--svg", path], {})
    return ExitCode.OK
