"""When a GPU will be full, in the live view: of a real program that leaks, and of one that ends."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.forecast.growing_program import GrowingProgram
from tests.top.conftest import EVERY_S, Company, View, run, viewing
from vram.top.forecasts import TopForecasts

AFTER_S = 2.0


def soon(asked: list[int], line: str | None = None) -> TopForecasts:
    """Growth of two seconds is believed; *line* is what the recorder would say."""

    def ask(pid: int) -> str | None:
        asked.append(pid)
        return line

    return TopForecasts(EVERY_S, AFTER_S, ask)


async def until_forecast(view: View, program: GrowingProgram, words: str) -> str:
    def shown() -> bool:
        program.grow()
        return words in view.gpus

    await view.until(shown)
    return next(line for line in view.gpus.splitlines() if "full in" in line)


@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
def test_a_leak_is_said_below_the_bar_until_its_program_ends(company: Company, size: tuple[int, int]) -> None:
    asked: list[int] = []
    with ExitStack() as stack:
        program = stack.enter_context(GrowingProgram(company.gpu))

        async def play() -> None:
            async with viewing(size, forecasts=soon(asked, "train.py:88")) as view:
                line = await until_forecast(view, program, "train.py:88")
                assert line.startswith("GPU 0 full in ")
                assert f"pid {program.pid} grows by" in line or size[0] == 80
                assert len(line) <= size[0]
                assert asked == [program.pid]
                program.close()
                await view.until(lambda: "full in" not in view.gpus)

        run(play)


def test_without_a_recorder_the_program_is_named(company: Company) -> None:
    with ExitStack() as stack:
        program = stack.enter_context(GrowingProgram(company.gpu))

        async def play() -> None:
            async with viewing((120, 30), forecasts=soon([])) as view:
                assert "leaking.py" in await until_forecast(view, program, "full in")

        run(play)
