"""src/vram/python_310.py: notes, time limits and process groups are the same on every Python."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from textwrap import dedent
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from vram.python_310 import OWN_GROUP, _Timeout, timeout


def said(program: str) -> list[str]:
    """What a program writes to standard error."""
    code = f"import sys, threading\nfrom vram.errors import UsageError\n{dedent(program)}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)
    return done.stderr.splitlines()


def test_a_hint_stands_below_the_traceback_of_an_error_that_nobody_catches() -> None:
    assert said('raise UsageError("this is wrong", hint="do that")')[-2:] == [
        "vram.errors.UsageError: this is wrong",
        "hint: do that",
    ]


def test_in_a_thread_too() -> None:
    lines = said("""
        def work():
            raise UsageError("this is wrong", hint="do that")
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    """)
    assert lines[-2:] == ["vram.errors.UsageError: this is wrong", "hint: do that"]


def test_a_cause_shows_its_own() -> None:
    lines = said("""
        try:
            raise UsageError("this is wrong", hint="do that")
        except UsageError as error:
            raise ValueError("as a consequence") from error
    """)
    assert lines.count("hint: do that") == 1


def test_a_programs_own_hook_is_left_to_it() -> None:
    lines = said("""
        sys.excepthook = lambda kind, error, trace: print("own:", error, error.__notes__, file=sys.stderr)
        raise UsageError("this is wrong", hint="do that")
    """)
    assert lines == ["own: this is wrong ['hint: do that']"]


Limit = Callable[[float], Any]
limits = pytest.mark.parametrize("limit", [timeout, _Timeout], ids=["timeout", "3.10"])


def played(scene: Callable[[], Awaitable[Any]]) -> Any:
    async def whole() -> Any:
        return await asyncio.wait_for(scene(), PATIENCE_S)

    return asyncio.run(whole())


@limits
def test_a_block_that_takes_too_long_is_cancelled(limit: Limit) -> None:
    async def scene() -> list[str]:
        order = []
        try:
            async with limit(0.01):
                try:
                    await asyncio.Event().wait()
                finally:
                    order.append("cleaned up")
        except TimeoutError:
            order.append("timed out")
        return order

    assert played(scene) == ["cleaned up", "timed out"]


@limits
def test_one_that_ends_in_time_is_not(limit: Limit) -> None:
    async def scene() -> str:
        async with limit(0.01):
            await asyncio.sleep(0)
        await asyncio.sleep(0.03)
        return "went on"

    assert played(scene) == "went on"


@limits
def test_a_task_that_others_cancel_is_cancelled(limit: Limit) -> None:
    async def work(begun: asyncio.Event) -> None:
        async with limit(PATIENCE_S):
            begun.set()
            await asyncio.Event().wait()

    async def scene() -> bool:
        begun = asyncio.Event()
        task = asyncio.ensure_future(work(begun))
        await begun.wait()
        task.cancel()
        await asyncio.wait((task,))
        return task.cancelled()

    assert played(scene)


@limits
def test_the_inner_of_two_limits_is_the_one_that_is_over(limit: Limit) -> None:
    async def scene() -> str:
        async with limit(PATIENCE_S):
            try:
                async with limit(0.01):
                    await asyncio.Event().wait()
            except TimeoutError:
                return "inner"

    assert played(scene) == "inner"


def test_a_child_leads_a_group_of_its_own() -> None:
    code = "import os; print(os.getpgrp() == os.getpid(), os.getsid(0))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, **OWN_GROUP)
    assert done.stdout.split() == ["True", str(os.getsid(0))]
