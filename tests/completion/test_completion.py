"""TAB offers what the program takes: in real shells, with real processes on a virtual GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest

from tests.completion import shells
from tests.needs import needs, require
from vram.cli import grammar, manual
from vram.cli.app import ALIASES, COMMANDS, main
from vram.cli.completion import SHELLS
from vram.cli.completion import script as make
from vram.virtualgpu import VirtualGpu

HOLDER = Path(__file__).parents[1] / "virtualgpu" / "holder.py"
BIN = Path(sys.executable).parent
Ask = Callable[..., shells.Offers]
script = cache(make)


@pytest.fixture(params=SHELLS)
def ask(request: pytest.FixtureRequest, tmp_path: Path) -> Ask:
    """Type lines into a shell that has read the script, and return what TAB offered for each."""
    shell: str = request.param
    require(shell)
    path = tmp_path / f"vram.{shell}"
    path.write_text(script(shell))

    def asked(*lines: str, gpu: VirtualGpu | None = None) -> shells.Offers:
        env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
        env = gpu.environment(env) if gpu else env
        offers: shells.Offers = getattr(shells, shell)(path, lines, env, tmp_path)
        return offers

    return asked


LONG_OPTIONS = {
    f"{each.title} --": {flag for option in each.options for flag in option.flags if flag.startswith("--")}
    for command in grammar.commands()
    for each in command.everything()
}
COMMAND_LINES = ("vram ", "vram un", "vram help pa")
VALUE_LINES = (
    "vram trim --via a",
    "vram explain VR2",
    "vram explain driver.v",
    "vram explain frag",
    "vram free --finding VR10",
    "vram demo ex",
    "vram lab ru",
    "vram lab run kill",
    "vram completion z",
    "vram report tim",
)
FILE_LINES = (
    *("vram why --from mach", "vram snapshot --output mach", "vram explain mach"),
    *("vram report mach", "vram report leaks mach", "vram report fit mach"),
)
RUNNER_LINES = ("vram borrow 1GiB -- mkfif", "vram virtual --gpus 2 -- mkfif")


def test_lines_that_need_no_gpu(ask: Ask, tmp_path: Path) -> None:
    """One start of each shell for all of them: zsh takes a second for that."""
    (tmp_path / "machine.json").touch()
    offers = ask(*COMMAND_LINES, *LONG_OPTIONS, *VALUE_LINES, *FILE_LINES, *RUNNER_LINES)
    _every_command_is_offered(offers)
    _every_long_option_of_every_command_is_offered(offers)
    _values_come_from_where_the_program_takes_them(offers)
    _files_are_offered_where_a_file_is_wanted(offers)
    _after_two_dashes_another_command_begins(offers)


def _every_command_is_offered(offers: shells.Offers) -> None:
    """Also those that were added after this test."""
    assert set(COMMANDS) <= set(offers["vram "])
    assert not set(ALIASES) & set(offers["vram "])
    assert offers["vram un"] == ["unpark"]
    assert sorted(offers["vram help pa"]) == ["park"]


def _every_long_option_of_every_command_is_offered(offers: shells.Offers) -> None:
    missing = {line: flags - set(offers[line]) for line, flags in LONG_OPTIONS.items()}
    assert not {line: flags for line, flags in missing.items() if flags}


def _values_come_from_where_the_program_takes_them(offers: shells.Offers) -> None:
    """Choices, codes and names; after an option they may stand behind =, too."""
    assert sorted(offers["vram trim --via a"]) == ["agent", "auto"]
    assert offers["vram explain VR2"] == [code for code in manual.rules() if code.startswith("VR2")]
    assert offers["vram free --finding VR10"] == [code for code in manual.rules() if code.startswith("VR10")]
    assert offers["vram explain driver.v"] == ["driver.versions"]
    assert offers["vram explain frag"] == ["fragmented"]
    assert offers["vram demo ex"] == ["export"]
    assert offers["vram lab ru"] == ["run"]
    assert "kill-nine" in offers["vram lab run kill"]
    assert offers["vram completion z"] == ["zsh"]
    assert offers["vram report tim"] == ["timeline"]


def _files_are_offered_where_a_file_is_wanted(offers: shells.Offers) -> None:
    assert offers["vram why --from mach"] == ["machine.json"]
    assert offers["vram snapshot --output mach"] == ["machine.json"]
    assert offers["vram explain mach"] == []
    assert offers["vram report mach"] == ["machine.json"]  # a view or a trace
    assert offers["vram report leaks mach"] == ["machine.json"]
    assert offers["vram report fit mach"] == ["machine.json"]


def _after_two_dashes_another_command_begins(offers: shells.Offers) -> None:
    assert set(offers["vram borrow 1GiB -- mkfif"]) == {"mkfifo"}
    assert set(offers["vram virtual --gpus 2 -- mkfif"]) == {"mkfifo"}


def test_pids_are_those_of_holders_and_names_are_not_run(
    ask: Ask, virtual_gpu: VirtualGpu, tmp_path: Path
) -> None:
    """A process that calls itself a command is offered by its pid, and nothing else happens."""
    names = ("$(touch pwned)", "`touch pwned`", "x'; touch pwned; '", 'x"\t(touch pwned)\n9 \x1b]0;x\x07')
    with holding(virtual_gpu, names) as pids:
        offers = ask("vram park ", "vram free --pid ", f"vram kill {pids[0]} ", gpu=virtual_gpu)
    for line in offers:
        assert sorted(map(int, offers[line])) == sorted(pids), line
    assert not (tmp_path / "pwned").exists()


def test_gpus_are_counted_and_lists_go_on(ask: Ask, two_virtual_gpus: VirtualGpu) -> None:
    offers = ask("vram why --gpu ", "vram why --gpu 0,", "vram reset ", gpu=two_virtual_gpus)
    assert offers["vram why --gpu "] == ["0", "1"]
    assert {word.removeprefix("0,") for word in offers["vram why --gpu 0,"]} == {"0", "1"}
    assert offers["vram reset "] == ["0", "1"]


def test_without_a_driver_nothing_is_offered_and_nothing_is_said(ask: Ask, native_libraries: Path) -> None:
    with VirtualGpu.create(gpus=0) as nowhere:
        offers = ask("vram park ", gpu=nowhere)["vram park "]
    assert not [word for word in offers if not word.startswith("-")]


@needs("bash")
def test_an_equals_sign_parts_words_in_bash(tmp_path: Path) -> None:
    """bash hands --via=a over as three words."""
    path = tmp_path / "vram.bash"
    path.write_text(script("bash"))
    offers = shells.bash(path, ["vram trim --via = a", "vram trim --via ="], os.environ, tmp_path)
    assert sorted(offers["vram trim --via = a"]) == ["agent", "auto"]
    assert "ptrace" in offers["vram trim --via ="]


@pytest.mark.parametrize(
    ("command", "before"),
    [
        (["bash", "--norc", "--noprofile", "-i"], ""),
        (["zsh", "-f", "-i"], "autoload -Uz compinit; compinit -u -D; "),
    ],
    ids=["bash", "zsh"],
)
def test_a_key_completes_after_the_script_was_sourced(
    command: list[str], before: str, tmp_path: Path
) -> None:
    """As the guide says to: source <(vram completion SHELL), then TAB; the line is run to be seen."""
    require(command[0])
    env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    typed = f"{before}source <(vram completion {command[0]})\nvram expl\tVR10\t\x15vram compl\tz\t | wc -l\n"
    lines = str(len(script("zsh").splitlines())).encode()
    shells.at_a_terminal(command, typed, b"\n" + lines, env, tmp_path)


def test_lists_are_lines_of_a_word_and_a_harmless_meaning(virtual_gpu: VirtualGpu) -> None:
    command = [sys.executable, "-m", "vram", "completion", "--list", "pid"]
    with holding(virtual_gpu, ("evil\x1b[31m\tname\\n",)) as (pid,):
        done = virtual_gpu.run(command, capture_output=True, text=True, check=True)
    (line,) = done.stdout.splitlines()
    word, meaning = line.split("\t")
    assert int(word) == pid
    assert meaning.isascii()
    assert meaning.isprintable()
    assert "\\" not in meaning


@pytest.mark.parametrize("shell", SHELLS)
def test_the_command_prints_the_script(shell: str, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["completion", shell]) == 0
    assert capsysbinary.readouterr().out.decode() == script(shell)


def test_a_shell_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion"]) == 2
    assert "no shell given" in capsys.readouterr().err
    assert main(["completion", "tcsh"]) == 2


class holding:
    """Processes that hold some memory of a GPU under names of their own choice."""

    def __init__(self, gpu: VirtualGpu, names: Sequence[str]) -> None:
        self._gpu, self._names = gpu, names

    def __enter__(self) -> list[int]:
        command = [sys.executable, str(HOLDER), str(64 << 20), "0"]
        self._processes = [
            self._gpu.popen([*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for name in self._names
        ]
        return [int(self._line(process)) for process in self._processes]

    def __exit__(self, *exception: object) -> None:
        for process in self._processes:
            process.communicate()

    @staticmethod
    def _line(process: subprocess.Popen[bytes]) -> bytes:
        assert process.stdout is not None
        return process.stdout.readline()
