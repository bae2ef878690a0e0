"""Completion for bash 4 and later, with or without the bash-completion package."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vram.cli.completion import patterns, quoted
from vram.cli.grammar import Argument, CommandSpec

_HEAD = """\
# bash completion for vram, written by `vram completion bash`.

# Nothing is expanded or evaluated on the way: words are compared, never run.
_vram_offer() {
    local word head=${current%"${current##*,}"}
    for word; do
        [[ $head$word == "$current"* ]] && COMPREPLY+=("$head$word")
    done
}

_vram_live() {
    local word
    while IFS=$'\\t' read -r word _; do
        [[ $word == +([0-9]) ]] && _vram_offer "$word"
    done < <("${COMP_WORDS[0]}" completion --list "$1" 2>/dev/null </dev/null)
}

_vram_files() {
    local path
    compopt -o filenames 2>/dev/null
    while IFS= read -r path; do COMPREPLY+=("$path"); done < <(compgen "$1" -- "$current")
}

# What follows -- is another command line.
_vram_another() {
    if declare -F _comp_command_offset >/dev/null; then
        _comp_command_offset "$1"
    elif declare -F _command_offset >/dev/null; then
        _command_offset "$1"
    elif ((COMP_CWORD == $1)); then
        _vram_files -c
    else
        _vram_files -f
    fi
}
"""

_WALK = """\
_vram() {
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} path=${COMP_WORDS[1]}
    local at word count=0
    COMPREPLY=()
    # bash makes words of their own from the = in --via=agent.
    if [[ $current == = ]]; then
        current=
    elif [[ $previous == = ]]; then
        previous=${COMP_WORDS[COMP_CWORD - 2]}
    fi
    if ((COMP_CWORD == 1)); then
        _vram_offer %(commands)s
        return
    fi
    for ((at = 2; at < COMP_CWORD; at++)); do
        word=${COMP_WORDS[at]}
        case $path:$word in
            %(runners)s)
                _vram_another $((at + 1))
                return
                ;;
            %(below)s) path+=" $word" ;;
            %(valued)s)
                [[ ${COMP_WORDS[at + 1]} == = ]] && ((at++))
                ((at++))
                ;;
            *:-*) ;;
            *) ((count++)) ;;
        esac
    done
"""


def script(commands: Sequence[CommandSpec]) -> str:
    everything = [each for command in commands for each in command.everything()]
    words = ["--help", "--version", "--include", *(command.words[0] for command in commands)]
    walk = {name: " | ".join(found) or "''" for name, found in patterns(everything, quoted).items()}
    lines = [_HEAD, _WALK % {"commands": " ".join(map(quoted, words)), **walk}]
    lines += ["    case $path:$previous in", *_values(everything), "    esac"]
    lines += ["    case $path in", *(line for each in everything for line in _command(each)), "    esac"]
    return "\n".join([*lines, "}", "", "complete -F _vram vram", ""])


def _values(commands: Sequence[CommandSpec]) -> Iterator[str]:
    """What can stand after an option."""
    for command in commands:
        for option in command.valued_options:
            flags = " | ".join(quoted(f"{' '.join(command.words)}:{flag}") for flag in option.flags)
            yield f"        {flags})"
            yield f"            {_offer(option) or ':'}"
            yield "            return"
            yield "            ;;"


def _command(command: CommandSpec) -> Iterator[str]:
    """Options where a dash was typed; otherwise what can stand in this place."""
    yield f"        {quoted(' '.join(command.words))})"
    options = " ".join(quoted(flag) for option in command.options for flag in option.flags)
    below = [quoted(each.words[-1]) for each in command.commands]
    places = [("0", f"_vram_offer {' '.join(below)}")] if below else _places(command)
    yield "            if [[ $current != -* ]]; then"
    yield "                case $count in"
    for pattern, offer in places:
        yield f"                    {pattern}) {offer} ;;"
    yield "                esac"
    yield "            fi"
    yield f"            ((${{#COMPREPLY[@]}})) || [[ $current != -* && $count:{len(places)} != 0:0 ]] ||"
    yield f"                _vram_offer {options}"
    yield "            ;;"


def _places(command: CommandSpec) -> list[tuple[str, str]]:
    places = enumerate(command.positionals)
    return [("*" if each.repeats else str(at), _offer(each) or ":") for at, each in places]


def _offer(argument: Argument) -> str:
    match argument.kind:
        case "words":
            offer = "_vram_offer " + " ".join(quoted(word) for word, _ in argument.words)
            # Files last: from there on bash takes every word for one.
            return f"{offer}; _vram_files -f" if argument.or_file else offer
        case "file":
            return "_vram_files -f"
        case "folder":
            return "_vram_files -d"
        case "none":
            return ""
        case live:
            return f"_vram_live {live}"
