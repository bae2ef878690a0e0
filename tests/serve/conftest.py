"""A running service on a virtual GPU, and demo programs beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.serve.running import RunningService
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import DemoProgram

StartService = Callable[..., RunningService]
StartDemo = Callable[..., DemoProgram]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def start_service(virtual_gpu: VirtualGpu, tmp_path: Path, stack: ExitStack) -> StartService:
    """Start ``vram serve`` with these words, on the test's virtual GPU."""

    def start(*words: str, **options: object) -> RunningService:
        return stack.enter_context(RunningService(tmp_path, virtual_gpu, *words, **options))  # type: ignore[arg-type]

    return start


@pytest.fixture
def service(start_service: StartService) -> RunningService:
    return start_service()


@pytest.fixture
def demo(virtual_gpu: VirtualGpu, stack: ExitStack) -> StartDemo:
    """Start a demo program on the virtual GPU."""

    def start(program: str, nbytes: int) -> DemoProgram:
        return stack.enter_context(DemoProgram(virtual_gpu, program, nbytes))

    return start
