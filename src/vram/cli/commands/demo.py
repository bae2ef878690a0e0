"""``vram demo``: five questions about GPU memory, acted out by real processes on a virtual GPU.

Nothing is prerecorded: every answer is ``vram why`` itself, run while the scene plays, and
every "given back" is measured after following the advice.
"""

from __future__ import annotations

import os
import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NoReturn

from vram.cli.terminal import add_terminal_arguments, colored, emit, look_for, show
from vram.errors import ExitCode, UsageError, VirtualGpuError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vram.report.look import Look
    from vram.virtualgpu import VirtualGpu
    from vram.virtualgpu.stories import Story

NAME = "demo"
HELP = "five questions about GPU memory, acted out by real processes on a virtual GPU"

# Nobody's, or the driver's own: everything else is held by somebody.
NOT_HELD = ("free", "reserved")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these scenes")
    parser.add_argument("--list", action="store_true", help="name the scenes and their questions")
    parser.add_argument(
        "--keep", action="store_true", help="stay in every scene, in a shell; its `exit` goes on"
    )
    parser.add_argument("--svg", metavar="FILE", help="draw `vram why` with three of them at once")
    add_terminal_arguments(parser)


def run(args: Namespace) -> int:
    from vram.virtualgpu.stories import STORIES

    stories = _chosen(args.names, STORIES)
    if args.list:
        emit("".join(f"{story.name:9}{story.question}\n" for story in stories))
        return ExitCode.OK
    with _ended_by_signals():
        if args.svg:
            return _draw(args.svg)
        return _play_all(stories, args)


def _chosen(names: list[str], stories: tuple[Story, ...]) -> tuple[Story, ...]:
    known = [story.name for story in stories]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"there is no scene {unknown[0]!r}", hint=f"there are {', '.join(known)}")
    return tuple(story for story in stories if not names or story.name in names)


def _play_all(stories: tuple[Story, ...], args: Namespace) -> int:
    given_back = [_play(story, f"{at} of {len(stories)}", args) for at, story in enumerate(stories, 1)]
    return ExitCode.OK if all(given_back) else ExitCode.PARTIAL


def _play(story: Story, place: str, args: Namespace) -> bool:
    """Play one story; return whether following its advice gave memory back."""
    from rich.text import Text

    from vram.virtualgpu import VirtualGpu
    from vram.virtualgpu.scene import Scene

    look = look_for(args)
    with VirtualGpu.create() as gpu, Scene(gpu, story.scene, story.nbytes) as scene:
        pids = scene.pids
        story.raise_it(scene)
        _say(_title(story, place, look), args, look)
        _say(Text(story.happened.format_map(pids)), args, look)
        _show_why(gpu, args, look)
        before = _held(gpu)
        if args.keep:
            _shell(gpu)
        _say(Text.assemble(("What to do: ", "bold"), story.advice.format_map(pids)), args, look)
        story.cure(scene)
        after = _held(gpu)
    deed = story.deed.format_map(pids)
    _say(_outcome(deed, before, after), args, look)
    return after < before


def _title(story: Story, place: str, look: Look) -> RenderableType:
    from rich.text import Text

    line = "-" if look.ascii else "─"
    head = f"{line * 2} {place} "
    tail = line * max(0, look.width - len(head) - len(story.question) - 1)
    return Text.assemble((head, "dim"), (story.question, "bold"), " ", (tail, "dim"))


def _outcome(deed: str, before: int, after: int) -> RenderableType:
    from rich.text import Text

    from vram.units import size

    verdict = f"Given back: {size(before - after)}." if after < before else "Nothing was given back."
    figures = f"  {size(before)} held before, {size(after)} after."
    return Text.assemble(
        ("> ", "green"), (deed, "bold"), "\n", (verdict, "green" if after < before else "red"), figures
    )


def _say(renderable: RenderableType, args: Namespace, look: Look) -> None:
    show(renderable, args, look)
    emit("\n")


def _show_why(gpu: VirtualGpu, args: Namespace, look: Look) -> None:
    """Run the real program in the scene, and show its answer beside a rule."""
    rule = "| " if look.ascii else "│ "
    environment = {"COLUMNS": str(look.width - len(rule)), **_colors(args)}
    flags = ["--ascii"] if look.ascii else []
    answer = _vram(gpu, ["why", *flags], environment)
    emit("$ vram why\n" + "".join(f"{rule}{line}".rstrip() + "\n" for line in answer.splitlines()) + "\n")


def _colors(args: Namespace) -> Mapping[str, str]:
    return {"FORCE_COLOR": "1"} if colored(args) else {"NO_COLOR": "1"}


def _held(gpu: VirtualGpu) -> int:
    """Bytes that somebody holds, as the program itself accounts for them."""
    from msgspec import json

    answer = json.decode(_vram(gpu, ["why", "--json"], {}))
    entries = (entry for device in answer["gpus"] for entry in device["entries"])
    return sum(entry["nbytes"] for entry in entries if entry["kind"] not in NOT_HELD)


def _vram(gpu: VirtualGpu, words: list[str], changes: Mapping[str, str]) -> str:
    command = [sys.executable, "-m", "vram", *words]
    ended = gpu.run(command, env={**os.environ, "PYTHONIOENCODING": "utf-8", **changes}, capture_output=True)
    if ended.returncode:
        words_of_it = ended.stderr.decode(errors="replace").strip()
        raise VirtualGpuError(f"`vram {' '.join(words)}` failed in the scene: {words_of_it}")
    return str(ended.stdout.decode())


def _shell(gpu: VirtualGpu) -> None:
    """Give the user a shell in the scene, with this very vram on its path."""
    from vram.virtualgpu import launch

    shell = os.environ.get("SHELL") or "/bin/sh"
    environment = gpu.environment()
    environment["PATH"] = f"{os.path.dirname(sys.executable)}:{environment.get('PATH', os.defpath)}"
    with launch.signals_held() as mask:
        launch.run([shell], environment, mask)


def _draw(path: str) -> int:
    """Draw the program's answer while three stories play at once."""
    from vram.virtualgpu import VirtualGpu
    from vram.virtualgpu.scene import Scene
    from vram.virtualgpu.stories import EXPORT, FORK, POOL

    with ExitStack() as cleanup:
        gpu = cleanup.enter_context(VirtualGpu.create())
        for story in (FORK, EXPORT, POOL):
            story.raise_it(cleanup.enter_context(Scene(gpu, story.scene, story.nbytes)))
        _vram(gpu, ["why", "--svg", path], {})
    return ExitCode.OK


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let the signals that end a program end this one by its way out, past every clean-up."""

    def leave(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
