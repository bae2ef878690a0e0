"""``vram serve``: the service that reads at an interval, remembers, and answers.

    vram serve
    vram serve --check-config --config ./serve.toml
    vram serve --listen 127.0.0.1:0 --state ./state --for 60s

It runs in the foreground until SIGTERM or Ctrl-C; SIGHUP reads the configuration again.
"""

from __future__ import annotations

import os
from argparse import Namespace
from importlib import import_module
from typing import TYPE_CHECKING, cast

from vram.cli.arguments import Parser, add_reading_arguments
from vram.cli.serve_clients import WORDS
from vram.cli.source import reader_options, roots
from vram.cli.terminal import emit
from vram.errors import ExitCode, UsageError
from vram.units import parse_duration

if TYPE_CHECKING:
    from vram.serve.config import Places, ServeConfig

_WAIT = "vram.cli.commands.wait"

WHOLE_SHARE = 0.004
"""Of one core, for reading all open files again although no process came or went."""

HELP = "a service: metrics for Prometheus, a JSON API, a web page, history, policies"

_EPILOG = """\
Reading over HTTP needs no password, and is answered on this machine alone unless
the configuration says otherwise; it changes nothing. Without a configuration file
the defaults hold, which act on no process.

Needs prometheus-client (the extra `serve`).

exit codes: 0 after SIGTERM, Ctrl-C or --for, 5 a configuration that is wrong,
24 another service has the state folder, 25 the address is taken."""


def add_arguments(parser: Parser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("--config", metavar="FILE", help="read this instead of /etc/vram/serve.toml")
    parser.add_flag("--check-config", help="say what the configuration means, and whether it is right")
    parser.add_argument(
        "--listen",
        action="append",
        metavar="HOST:PORT",
        help="listen there for HTTP; port 0 is a free one, '' is none (repeatable)",
    )
    parser.add_flag("--observe", help="never act: no socket, and no policies whatever the configuration says")
    parser.add_argument(
        "--interval", type=_interval, metavar="DURATION", help="read this often, for example 5s"
    )
    parser.add_argument("--socket", metavar="PATH", help="the Unix socket for actions")
    parser.add_argument("--state", metavar="FOLDER", help="keep state and history in this private folder")
    parser.add_duration("--for", dest="duration", help="end after this time, e.g. 1h")
    add_reading_arguments(parser)
    below = parser.add_subparsers(dest="word", metavar="COMMAND")
    for name, word in WORDS.items():
        word.add_arguments(below.add_parser(name, help=word.help))
    # The old name of `vram wait`, listed nowhere here.
    import_module(_WAIT).add_arguments(below.add_parser("wait"))


def _interval(text: str) -> str:
    """Require a duration, and keep its text: it takes the place of the one in serve.toml."""
    parse_duration(text)
    return text


def run(args: Namespace) -> int:
    if args.word == "wait":
        return cast("int", import_module(_WAIT).run(args))
    if args.command:
        raise UsageError("`vram serve` runs no command", hint="vram wait 20GiB -- COMMAND")
    if args.word:
        return WORDS[args.word].run(args)
    config = _configuration(args)
    from vram.serve.config import places

    where = places(config, state=args.state, socket=args.socket)
    if args.check_config:
        emit(_meaning(config, where, args.config))
        _show_policies(args, config)
        return ExitCode.OK
    from vram.serve.web.metrics import require_library

    require_library()
    import asyncio
    import gc

    from vram.serve.service import Service

    options = reader_options(args, whole_share=WHOLE_SHARE)
    gc.enable()
    service = Service(config, where, reader=options, load=lambda: _configuration(args))
    asyncio.run(service.run(args.duration))
    return ExitCode.OK


def _configuration(args: Namespace) -> ServeConfig:
    """The file's configuration, with what the options say instead."""
    from msgspec.structs import replace

    from vram.serve.config import check, load

    config = load(args.config)
    if args.interval is not None:
        config = replace(config, interval=args.interval)
    if args.listen is not None:
        config = replace(config, http=replace(config.http, listen=tuple(args.listen)))
    if args.observe:
        config = replace(config, socket=replace(config.socket, enabled=False), policy=())
    check(config)
    return config


def _show_policies(args: Namespace, config: ServeConfig) -> None:
    """What each policy would do right now: planned from one reading, nothing is touched."""
    if not config.policy:
        return
    from vram.cli.prestart import open_host
    from vram.policy.config import read_policies
    from vram.serve.policies.reports import preview

    proc_root, sys_root = roots()
    host = open_host(proc_root=proc_root, sys_root=sys_root, ask_windows=not args.no_windows)
    for line in preview(read_policies(list(config.policy)), host, args.deadline):
        emit(f"  {line}\n")


def _meaning(config: ServeConfig, where: Places, named: str | None) -> str:
    from vram.serve.config import default_path

    usual = default_path()
    file = named or (usual if os.path.lexists(usual) else f"none: there is no {usual}, the defaults hold")
    http = ", ".join(f"http://{each}" for each in config.http.addresses) or "off"
    kept = f"kept for {config.history.keep}, at most {config.history.most}"
    history = f"{config.history.path or where.history}, {kept}"
    lines = (
        ("file", file),
        ("reads", f"every {config.interval}"),
        ("HTTP", http + (", reachable from other machines" if config.http.allow_remote else "")),
        ("socket", where.socket if config.socket.enabled else "off"),
        ("state", where.state),
        ("history", history if config.history.enabled else "off"),
        ("forecasts", f"of growth that lasts {config.forecast.after}"),
        ("textfile", config.textfile.path or "off"),
        ("commands", f"shown to readers over TCP: {config.show.commands}"),
        *((("events", "on the node and its pods, in Kubernetes"),) if config.kubernetes.events else ()),
        ("policies", str(len(config.policy)) if config.policy else "none: it acts on no process"),
    )
    return "".join(f"{name:<10}{text}\n" for name, text in lines)
