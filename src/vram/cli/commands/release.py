"""``vram release``: a server releases its GPU memory in its own way, and keeps running.

vram release 4711          what would be asked of it and what is lost; then a question
vram release --undo 4711   it takes its memory again
"""

from __future__ import annotations

from argparse import Namespace
from contextlib import suppress
from typing import TYPE_CHECKING

from vram.cli.arguments import Parser
from vram.cli.prestart import open_host
from vram.cli.terminal import add_terminal_arguments, ask, emit, emit_json, is_dialogue, say, show
from vram.errors import ExitCode

if TYPE_CHECKING:
    from vram.model.release import AskedRequest, ReleaseReceipt

HELP = "ask a server (vLLM, SGLang, ollama, ComfyUI, Triton, llama.cpp) to release its GPU memory"

DEADLINE_S = 60.0

_EPILOG = """\
PID is the server, or a process of it that holds GPU memory. It is found by the sockets that it, its
ancestors of the same user and session and its descendants listen on, and recognised by its own
answers; a server that is not recognised is sent nothing but reads. What is asked:
  vLLM       POST /sleep?level=1; needs VLLM_SERVER_DEV_MODE=1 and --enable-sleep-mode
  SGLang     POST /release_memory_occupation, when idle; needs --enable-memory-saver
  ollama     POST /api/generate with keep_alive 0, for each loaded model
  ComfyUI    POST /free
  Triton     POST .../unload for each model; needs --model-control-mode=explicit
  llama.cpp  POST /models/unload for each model; only in router mode
Nothing is asked of another user's server; root may name one. The bytes are measured afterwards.
--undo wakes vLLM, resumes SGLang, and loads again what this user's `vram release` unloaded from
Triton and llama.cpp; ollama and ComfyUI load models by themselves when they are used.

Exit code 0: memory was freed (or the undo was answered). 1: it was only shown or declined, or the
server answered and freed nothing. 3: it refused, did not answer, or ended."""


def add_arguments(parser: Parser) -> None:
    parser.epilog = _EPILOG
    parser.add_pid("pid", help="the server, or one of its processes")
    parser.add_flag("--undo", help="let the server take its memory again")
    parser.add_flag(
        "--yes",
        "-y",
        help="ask the server without a question; without it and without a terminal, it is only shown",
    )
    parser.add_duration("--deadline", default=DEADLINE_S, help="give up on a server that does not answer")
    parser.add_flag("--json", help="one JSON object instead of text; never asks")
    add_terminal_arguments(parser)


def run(args: Namespace) -> int:
    host = open_host()
    from vram.reclaim.actions.release import prepare_release, release
    from vram.reclaim.audit import refusals_logged
    from vram.report import release as report

    with refusals_logged("release", [args.pid]):
        prepared = prepare_release(host, args.pid, undo=args.undo)
    order = prepared.order
    if not args.json:
        show(args, lambda options: report.order(order, options))
    if not args.yes and (args.json or not is_dialogue() or not ask("Proceed?")):
        if args.json:
            emit_json(report.ReleaseReport(order=order))
        else:
            emit("\nNothing was asked. --yes asks it.\n")
        return ExitCode.HELD
    asked: list[AskedRequest] = []
    try:
        receipt = release(host, prepared, args.deadline, asked.append)
    except KeyboardInterrupt:
        with suppress(OSError):
            say(report.interrupted(order, asked))
        raise
    if args.json:
        emit_json(report.ReleaseReport(order=order, receipt=receipt))
    else:
        emit("\n")
        show(args, lambda options: report.receipt(receipt, options))
    return _exit_code(receipt)


def _exit_code(receipt: ReleaseReceipt) -> int:
    if receipt.end != "answered":
        return ExitCode.PARTIAL
    freed = receipt.returned_bytes is not None and receipt.returned_bytes > 0
    return ExitCode.OK if freed or receipt.order.undo else ExitCode.HELD
