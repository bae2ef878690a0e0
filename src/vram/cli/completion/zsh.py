"""Completion for zsh, by its own _arguments: options and words come with what they mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vram.cli.completion import quoted
from vram.cli.grammar import Argument, CommandSpec

_HEAD = """\
#compdef vram
# zsh completion for vram, written by `vram completion zsh`.

# Nothing is evaluated on the way: words are compared, never run.
_vram_live() {
    local line
    local -a found
    for line in "${(@f)$("$_vram_program" completion --list "$1" 2>/dev/null </dev/null)}"; do
        [[ ${line%%$'\\t'*} == <-> ]] && found+=("${line%%$'\\t'*}:${line#*$'\\t'}")
    done
    compset -P '*,'
    (( $#found )) && _describe -t "$1" "$1" found
}

_vram_words() {
    local -a found
    found=("${@[2,-1]}")
    _describe -t "$1" "$1" found
}
"""


def script(commands: Sequence[CommandSpec]) -> str:
    lines = [_HEAD]
    for command in commands:
        for each in command.everything():
            lines += [*_word_lists(each), *_function(each), ""]
    lines += [*_front(commands), "", "if [[ $funcstack[1] == _vram ]]; then"]
    return "\n".join([*lines, '    _vram "$@"', "else", "    compdef _vram vram", "fi", ""])


def _front(commands: Sequence[CommandSpec]) -> Iterator[str]:
    yield "_vram() {"
    yield "    local curcontext=$curcontext _vram_program=$words[1] ret=1"
    yield "    local -a line state"
    yield "    _arguments -C '(- *)'{-h,--help}'[tell what there is]' '(- *)--version[tell the version]' \\"
    yield "        '(- *)--include[tell the compiler where vram.hpp is]' \\"
    yield "        ': :->command' '*:: :->rest' && ret=0"
    yield "    case $state in"
    yield f"        command) _vram_words command {' '.join(_describe(_name_commands(commands)))} && ret=0 ;;"
    yield "        rest)"
    yield from _dispatch("vram", commands, "            ")
    yield "            ;;"
    yield "    esac"
    yield "    return ret"
    yield "}"


def _word_lists(command: CommandSpec) -> Iterator[str]:
    """Functions for the words that have meanings: inside a spec, quotes and colons would be read twice."""
    for argument in (*command.positionals, *command.options):
        if _is_describe(argument):
            yield f"{_list_name(command, argument)}() {{"
            yield f"    _vram_words {_tag(argument)} \\"
            yield from (f"        {word} \\" for word in _describe(argument.words[:-1]))
            yield from (f"        {word}" for word in _describe(argument.words[-1:]))
            if argument.or_file:
                yield "    _files"
            yield "}"
            yield ""


def _function(command: CommandSpec) -> Iterator[str]:
    yield f"_{'_'.join(('vram', *command.words))}() {{"
    if command.commands:
        yield "    local curcontext=$curcontext ret=1"
        yield "    local -a line state"
    specs = [_option(command, each) for each in command.options]
    places = [_positional(command, each) for each in command.positionals]
    if command.commands:
        specs += ["': :->command'", "'*:: :->rest'"]
    elif command.runs_another:
        specs += [*places, "'*:::command:_normal'"]
    else:
        specs += places
    yield f"    _arguments -s -S {'-C ' if command.commands else ''}\\"
    yield from (f"        {spec} \\" for spec in specs[:-1])
    yield f"        {specs[-1]}" + (" && ret=0" if command.commands else "")
    if command.commands:
        yield "    case $state in"
        names = " ".join(_describe(_name_commands(command.commands)))
        yield f"        command) _vram_words command {names} && ret=0 ;;"
        yield "        rest)"
        yield from _dispatch("_".join(("vram", *command.words)), command.commands, "            ")
        yield "            ;;"
        yield "    esac"
        yield "    return ret"
    yield "}"


def _dispatch(prefix: str, commands: Sequence[CommandSpec], margin: str) -> Iterator[str]:
    yield f"{margin}case $words[1] in"
    for command in commands:
        name = command.words[-1]
        yield f"{margin}    {name}) _{prefix}_{name} && ret=0 ;;"
    yield f"{margin}esac"


def _option(command: CommandSpec, argument: Argument) -> str:
    meaning = _escape(argument.help)
    value = _value(command, argument) if argument.takes_value else ""
    specs = [_flag(flag, argument) for flag in argument.flags]
    alone = "*" if argument.repeats else f"({' '.join(argument.flags)})" if len(argument.flags) > 1 else ""
    if len(specs) == 1:
        return quoted(f"{alone}{specs[0]}[{meaning}]{value}")
    return f"{quoted(alone)}{{{','.join(specs)}}}{quoted(f'[{meaning}]{value}')}"


def _flag(flag: str, argument: Argument) -> str:
    """A value may stand in a word of its own, after = or, with one letter, right behind it."""
    if not argument.takes_value or argument.optional:
        return flag
    return f"{flag}=" if flag.startswith("--") else f"{flag}+"


def _positional(command: CommandSpec, argument: Argument) -> str:
    head = "*" if argument.repeats else ":" if argument.optional else ""
    return quoted(f"{head}{_value(command, argument)}")


def _value(command: CommandSpec, argument: Argument) -> str:
    message = argument.value.replace(":", "\\:")
    return f"{'::' if argument.flags and argument.optional else ':'}{message}:{_action(command, argument)}"


def _action(command: CommandSpec, argument: Argument) -> str:
    match argument.kind:
        case "words" if _is_describe(argument):
            return _list_name(command, argument)
        case "words":
            return "(" + " ".join(word for word, _ in argument.words) + ")"
        case "file":
            return "_files"
        case "folder":
            return "_files -/"
        case "none":
            return " "
        case live:
            # Without the blank, _arguments would put words of its own before ours.
            return f" _vram_live {live}"


def _name_commands(commands: Sequence[CommandSpec]) -> Sequence[tuple[str, str]]:
    return [(command.words[-1], command.summary.rstrip(".")) for command in commands]


def _describe(words: Sequence[tuple[str, str]]) -> Iterator[str]:
    for word, meaning in words:
        yield quoted(f"{word}:{meaning}" if meaning else word)


def _is_describe(argument: Argument) -> bool:
    return any(meaning for _, meaning in argument.words)


def _list_name(command: CommandSpec, argument: Argument) -> str:
    return "_".join(("_vram_words", *command.words, _tag(argument)))


def _tag(argument: Argument) -> str:
    return argument.value.partition("[")[0].partition("|")[0].lower()


def _escape(text: str) -> str:
    text = " ".join(text.split()).replace("\\", "\\\\")
    return text.replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")
