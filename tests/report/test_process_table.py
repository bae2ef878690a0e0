"""A line of the table fits its width: what it leaves out is what matters least."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from vram.report.layout import RenderOptions
from vram.report.phrases import one_line
from vram.report.process_rows import ProcessRow
from vram.report.process_table import process_lines

GHOST = ProcessRow(
    gpus=(0,),
    places=("0",),
    nbytes=4 << 30,
    nbytes_by_place={"0": 4 << 30},
    pid=22184,
    user="root",
    age_s=2.0,
    state="ghost",
    command="python train.py --steps 4294967296",
    note="memory of dead pid 22173, held by it or 2 more",
)


@pytest.mark.parametrize(
    ("options", "end"),
    [
        (RenderOptions(80), "memory of dead pid 22173, …"),
        (RenderOptions(80, ascii=True), "memory of dead pid 22173, ..."),
        (RenderOptions(80, cut=False), "memory of dead pid 22173, held by it or 2 more"),
        (RenderOptions(200), "memory of dead pid 22173, held by it or 2 more"),
    ],
)
def test_a_note_keeps_its_first_part(options: RenderOptions, end: str) -> None:
    _, line = process_lines([GHOST], options)
    assert line.plain.endswith(f"  {end}")
    assert not options.cut or line.cell_len <= options.width


def test_beside_a_long_user_name_the_command_is_cut_and_no_pid() -> None:
    note = "memory of dead pid 4194301"
    row = replace(GHOST, user="somebody", nbytes=120 << 30, pid=4194302, note=note)
    _, line = process_lines([row], RenderOptions(80))
    assert line.plain.endswith(f"  {note}")


def test_a_long_path_of_the_interpreter_takes_no_word_of_its_program() -> None:
    program = "import train\ntrain.main(epochs=3)"
    near, far = (
        one_line(f"{path}/bin/python -c {program}") for path in ("/usr", "/home/alice/" + 30 * "deep/")
    )
    assert near.partition(" ")[2] == far.partition(" ")[2] == "-c import train train.main(epochs=3)"
    assert one_line("python -c " + 100 * "word\n").endswith("word …")
