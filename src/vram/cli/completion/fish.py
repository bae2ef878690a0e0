"""Completion for fish: options and words come with what they mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vram.cli.completion import patterns
from vram.cli.grammar import Argument, CommandSpec

_HEAD = """\
# fish completion for vram, written by `vram completion fish`.

# The words before the cursor: which command they make, and how many of its places are filled.
function __vram_at --argument-names wanted place
    set -l words (commandline -opc)
    set -l path $words[2]
    set -l count 0
    set -l skip 0
    for word in $words[3..-1]
        if test $skip = 1
            set skip 0
            continue
        end
        switch "$path:$word"
%(below)s            case %(valued)s
                set skip 1
            case '*:-*'
            case '*'
                set count (math $count + 1)
        end
    end
    test "$path" = "$wanted"; or return
    switch "$place"
        case '*+'
            test $count -ge (string replace + '' -- $place)
        case '?*'
            test $count = $place
    end
end

function __vram_needs_command
    test (count (commandline -opc)) = 1
end

# What this machine knows now. Nothing is evaluated: lines are passed on as they are.
function __vram_live --argument-names kind
    set -l words (commandline -opc)
    set -l head (string match -r '^.*,' -- (commandline -ct))
    for line in ($words[1] completion --list $kind 2>/dev/null </dev/null)
        string match -qr '^[0-9]+\\t' -- $line; and echo "$head$line"
    end
end

complete -c vram -f
complete -c vram -n __vram_needs_command -s h -l help -d 'tell what there is'
complete -c vram -n __vram_needs_command -l version -d 'tell the version'
complete -c vram -n __vram_needs_command -l include -d 'tell the compiler where vram.hpp is'
"""


def script(commands: Sequence[CommandSpec]) -> str:
    everything = [each for command in commands for each in command.everything()]
    walk = patterns(everything, _quoted)
    below = f'            case {" ".join(walk["below"])}\n                set path "$path $word"\n'
    lines = [_HEAD % {"below": below if walk["below"] else "", "valued": " ".join(walk["valued"])}]
    for command in commands:
        summary = _quoted(command.summary.rstrip("."))
        lines.append(f"complete -c vram -n __vram_needs_command -a {command.words[0]} -d {summary}")
    for each in everything:
        lines += ["", *_command(each)]
    return "\n".join(lines) + "\n"


def _command(command: CommandSpec) -> Iterator[str]:
    path = " ".join(command.words)
    here = f"__vram_at {_quoted(path)}"
    for below in command.commands:
        meaning = _quoted(below.summary.rstrip("."))
        yield f"complete -c vram -n {_quoted(f'{here} 0')} -a {below.words[-1]} -d {meaning}"
    for at, each in enumerate(command.positionals):
        place = f"{here} {at}+" if each.repeats else f"{here} {at}"
        yield from _words(f"complete -c vram -n {_quoted(place)}", each)
    for option in command.options:
        flags = (f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags)
        meaning = _quoted(" ".join(option.help.split()))
        yield f"complete -c vram -n {_quoted(here)} {' '.join(flags)}{_value(option)} -d {meaning}"
    if command.runs_another:
        words = "(complete -C (string replace -r '^.*? -- ' '' -- (commandline -cp)))"
        test = f"__vram_at {_quoted(path)}; and contains -- -- (commandline -opc)"
        yield f"complete -c vram -n {_quoted(test)} -a {_quoted(words)}"


def _words(start: str, argument: Argument) -> Iterator[str]:
    if argument.kind == "words":
        for word, meaning in argument.words:
            told = f" -d {_quoted(meaning)}" if meaning else ""
            yield f"{start} -a {_quoted(word)}{told}"
        if argument.or_file:
            yield f"{start} -F"
    elif argument.kind == "file":
        yield f"{start} -F"
    elif argument.kind == "folder":
        yield f"{start} -a '(__fish_complete_directories)'"
    elif argument.kind != "none":
        yield f"{start} -k -a '(__vram_live {argument.kind})'"


def _value(option: Argument) -> str:
    if not option.takes_value or option.optional:
        return ""
    match option.kind:
        case "words":
            return f" -x -a {_quoted(' '.join(word for word, _ in option.words))}"
        case "file":
            return " -r -F"
        case "folder":
            return " -x -a '(__fish_complete_directories)'"
        case "none":
            return " -x"
        case live:
            return f" -x -k -a '(__vram_live {live})'"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
