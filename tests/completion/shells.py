"""Real shells, asked what TAB offers: each reads the script that `vram completion` prints."""

from __future__ import annotations

import os
import pty
import shlex
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.patience import PATIENCE_S, until_readable

Offers = dict[str, list[str]]
MARK = "--- "

BASH = """
source {script}
for line; do
    read -ra COMP_WORDS <<< "$line"
    [[ $line == *" " ]] && COMP_WORDS+=("")
    COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)) COMPREPLY=()
    _vram "${{COMP_WORDS[0]}}"
    printf '%s\\n' "{mark}$line" "${{COMPREPLY[@]}}"
done
"""

FISH = """
source {script}
for line in $argv
    echo "{mark}$line"
    complete -C $line
end
true
"""

# Matches are written down where zsh's own functions add them; one key says that a line is done. As
# others begin with that key, zsh waits for the rest of them: a hundredth of a second, not forty.
ZSH = """
PS1='> '
KEYTIMEOUT=1
fpath=({folder} $fpath)
autoload -Uz compinit
compinit -u -D
compadd() {{
    local -a hits
    builtin compadd -O hits "$@"
    (( $#hits )) && print -rlu {fd} -- $hits
    builtin compadd "$@"
}}
told() {{ print -ru {fd} -- '{mark}'; BUFFER=; zle .send-break }}
zle -N told
bindkey '^X' told
bindkey '^I' complete-word
setopt no_auto_menu no_beep
LISTMAX=10000
"""


def bash(script: Path, lines: Sequence[str], env: Mapping[str, str], cwd: Path) -> Offers:
    program = BASH.format(script=shlex.quote(str(script)), mark=MARK)
    return _parted(_answer(["bash", "--norc", "-c", program, "bash"], lines, env, cwd))


def fish(script: Path, lines: Sequence[str], env: Mapping[str, str], cwd: Path) -> Offers:
    program = FISH.format(script=shlex.quote(str(script)), mark=MARK)
    offers = _parted(_answer(["fish", "--no-config", "-c", program], lines, env, cwd))
    return {line: [word.partition("\t")[0] for word in words] for line, words in offers.items()}


def zsh(script: Path, lines: Sequence[str], env: Mapping[str, str], cwd: Path) -> Offers:
    """Only at a terminal does zsh complete anything, so it gets one."""
    reading, writing = os.pipe()
    folder = cwd / "functions"
    folder.mkdir(exist_ok=True)
    (folder / "_vram").write_text(script.read_text())
    setup = cwd / "setup.zsh"
    setup.write_text(ZSH.format(folder=shlex.quote(str(folder)), fd=writing, mark=MARK))
    pid, terminal = pty.fork()
    if pid == 0:
        os.set_inheritable(writing, True)
        os.chdir(cwd)
        os.execvpe("zsh", ["zsh", "-f", "-i"], {**env, "TERM": "dumb", "HOME": str(cwd)})
    os.close(writing)
    threading.Thread(target=_drain, args=(terminal,), daemon=True).start()
    try:
        os.write(terminal, f"source {shlex.quote(str(setup))}\n".encode())
        return {line: _typed(terminal, reading, line) for line in lines}
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)
        os.close(reading)


def at_a_terminal(command: list[str], typed: str, wanted: bytes, env: Mapping[str, str], cwd: Path) -> bytes:
    """Type into a shell that has a terminal until it shows what is *wanted*; returns all it showed."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.execvpe(command[0], command, {**env, "TERM": "dumb", "HOME": str(cwd)})
    shown = b""
    try:
        os.write(terminal, typed.encode())
        while wanted not in shown:
            until_readable(terminal, lambda shown=shown: f"{command[0]} shows no {wanted!r}: {shown!r}")
            shown += os.read(terminal, 65536)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)
    return shown


def _typed(terminal: int, told: int, line: str) -> list[str]:
    os.write(terminal, line.encode() + b"\t\x18")
    answer = b""
    while not answer.endswith(f"{MARK}\n".encode()):
        until_readable(told, lambda answer=answer: f"zsh does not answer to {line!r}; so far: {answer!r}")
        answer += os.read(told, 65536)
    words = answer.decode().splitlines()
    return [word for word in dict.fromkeys(words) if word and word != MARK]


def _drain(terminal: int) -> None:
    with suppress(OSError):
        while os.read(terminal, 65536):
            pass


def _answer(command: list[str], lines: Sequence[str], env: Mapping[str, str], cwd: Path) -> str:
    """The lines are arguments, and the shell has a home of its own: nothing else can get between."""
    done = subprocess.run(
        [*command, *lines],
        env={**env, "HOME": str(cwd), "XDG_CONFIG_HOME": str(cwd), "XDG_DATA_HOME": str(cwd)},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stderr) == (0, ""), (done.returncode, done.stdout, done.stderr)
    return done.stdout


def _parted(answer: str) -> Offers:
    offers: Offers = {}
    for part in ("\n" + answer).split("\n" + MARK)[1:]:
        line, _, words = part.partition("\n")
        offers[line] = [word for word in words.splitlines() if word]
    return offers
