"""Actions on the selected line: each shows its plan and asks, then does exactly that and measures."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from tests.top.conftest import Company, run, viewing
from vram.payloads.procfs import read_stat
from vram.top.dialogs import Question
from vram.units import GIB


def is_alive(pid: int) -> bool:
    """A zombie, whose parent has not asked for it yet, is dead."""
    stat = read_stat(pid)
    return stat is not None and not stat.has_ended


def test_free_returns_a_ghosts_memory_and_leaves_its_neighbour(company: Company) -> None:
    neighbour = company.demo("memory.plain", 1 * GIB).pids["self"]
    ghost = company.demo("forks.orphan", 4 * GIB)
    ghost.kill("parent")
    child = ghost.pids["child"]

    async def play() -> None:
        async with viewing() as view:
            await view.until(lambda: view.pids[:1] == [child])
            plan = await view.ask("f")
            assert f"pid {child}" in plan
            assert "(digest)" in plan
            assert is_alive(child)
            await view.press("y")
            receipt = await view.receipt()
            assert "freed 4.5 GiB" in receipt
            await view.close_dialog()
            await view.until(lambda: child not in view.pids)
            assert view.pids == [neighbour]

    run(play)
    assert not is_alive(child)
    assert is_alive(neighbour)


def test_free_on_one_of_four_holders_ends_all_of_them(company: Company) -> None:
    pool = company.demo("forks.pool", 2 * GIB)
    pool.kill("parent")
    workers = {pid for name, pid in pool.pids.items() if name != "parent"}

    async def play() -> None:
        async with viewing() as view:
            await view.until(lambda: bool(workers & set(view.pids)))
            await view.select(next(pid for pid in view.pids if pid in workers))
            plan = await view.ask("f")
            assert all(str(pid) in plan for pid in workers)
            await view.press("y")
            assert "freed 2.5 GiB" in await view.receipt()

    run(play)
    assert not any(map(is_alive, workers))


def test_free_without_a_line_frees_all_leftovers(company: Company) -> None:
    neighbour = company.demo("memory.plain", 1 * GIB).pids["self"]
    ghosts = [company.demo("forks.orphan", 1 * GIB) for _ in range(2)]
    for ghost in ghosts:
        ghost.kill("parent")
    children = {ghost.pids["child"] for ghost in ghosts}

    async def play() -> None:
        async with viewing() as view:
            await view.until(lambda: set(view.pids) == {neighbour, *children})
            await view.ask("F")
            await view.press("y")
            assert "freed 3.0 GiB" in await view.receipt()
            await view.close_dialog()
            await view.until(lambda: view.pids == [neighbour])

    run(play)


@pytest.mark.parametrize("answer", ["n", "escape", "enter"])
def test_kill_asks_and_does_nothing_without_a_yes(company: Company, answer: str) -> None:
    pid = company.demo("memory.plain", 1 * GIB).pids["self"]

    async def play() -> None:
        async with viewing() as view:
            await view.select(pid)
            assert f"pid {pid}" in await view.ask("k")
            await view.press(answer)
            await view.until(lambda: view.dialog is None)
            await view.readings()
            assert view.pids == [pid]

    run(play)
    assert is_alive(pid)


def test_kill_ends_the_selected_process_alone(company: Company) -> None:
    healthy = company.demo("memory.plain", 2 * GIB).pids["self"]
    chosen = company.demo("memory.plain", 1 * GIB)

    async def play() -> None:
        async with viewing() as view:
            await view.select(chosen.pids["self"])
            await view.ask("k")
            await view.press("y")
            assert "freed 1.5 GiB" in await view.receipt()
            await view.close_dialog()
            await view.until(lambda: view.pids == [healthy])

    run(play)
    assert is_alive(healthy)


def test_a_process_that_ends_before_the_yes_is_refused_with_the_reason(company: Company) -> None:
    chosen = company.demo("memory.plain", 1 * GIB)
    other = company.demo("memory.plain", 2 * GIB).pids["self"]

    async def play() -> None:
        async with viewing() as view:
            await view.select(chosen.pids["self"])
            await view.ask("k")
            chosen.kill("self")
            await view.press("y")
            receipt = await view.receipt()
            assert f"pid {chosen.pids['self']} no longer holds anything here" in receipt
            assert "returned" not in receipt
            await view.close_dialog()
            await view.until(lambda: view.pids == [other])

    run(play)
    assert is_alive(other)


def test_another_process_with_the_same_pid_is_not_the_one_that_was_selected(company: Company) -> None:
    from msgspec.structs import replace

    from vram.top.actions import ActionRequest, prepare

    pid = company.demo("memory.plain", 1 * GIB).pids["self"]

    async def play() -> None:
        async with viewing() as view:
            await view.select(pid)
            row = view.app.selected
            assert row is not None
            request = ActionRequest(name="kill", pid=pid, started_at=row.started_at)
            # As the view does it, in a thread: a reader of the driver is started afresh then, and not forked.
            ready = await asyncio.to_thread(lambda: prepare(view.app._open_host(), request, 30.0))
            assert ready.does_something
            # As if the process on the screen had ended and its pid had been given to this one.
            view.app._begin(replace(request, started_at=row.started_at - 1))
            assert "another process now" in await view.notice()

    run(play)
    assert is_alive(pid)


def test_park_and_unpark(company: Company) -> None:
    pid = company.demo("memory.plain", 1 * GIB).pids["self"]

    async def play() -> None:
        async with viewing() as view:
            await view.select(pid)
            assert "unpark" in await view.ask("p")
            await view.press("y")
            assert "freed 1.5 GiB" in await view.receipt()
            await view.close_dialog()
            await view.until(lambda: "parked" in (view.line_of(pid) or ""))
            await view.select(pid)
            assert "needs 1.5 GiB on GPU 0 free" in await view.ask("u")
            await view.press("y")
            assert "is running again" in await view.receipt()
            await view.close_dialog()
            # A parked one's line has its size, too: "1.5 GiB in host memory".
            await view.until(lambda: "parked" not in (view.line_of(pid) or "parked"))
            assert "1.5 GiB" in str(view.line_of(pid))

    run(play)
    assert is_alive(pid)


def test_unpark_of_a_process_that_is_not_parked_is_refused(company: Company) -> None:
    pid = company.demo("memory.plain", 1 * GIB).pids["self"]

    async def play() -> None:
        async with viewing() as view:
            await view.select(pid)
            await view.press("u")
            assert "is not parked" in await view.notice()
            await view.close_dialog()

    run(play)


def test_trim_releases_what_a_target_process_only_caches(company: Company) -> None:
    pools = company.demo("pools.trim", 2 * GIB, stages=1)
    pid = pools.pids["self"]

    async def play() -> None:
        async with viewing() as view:
            await view.select(pid)
            assert "through" in await view.ask("m")
            await view.press("y")
            assert "freed 2.0 GiB" in await view.receipt()
            await view.close_dialog()
            await view.until(lambda: "GiB" not in str(view.line_of(pid)))

    run(play)
    assert is_alive(pid)


def test_a_refusal_is_a_message(company: Company) -> None:
    """A stopped process cannot be trimmed: the view says so and goes on."""
    demo = company.demo("memory.plain", 1 * GIB)
    pid = demo.pids["self"]
    os.kill(pid, signal.SIGSTOP)

    async def play() -> None:
        async with viewing() as view:
            await view.until(lambda: "STOPPED" in (view.line_of(pid) or ""))
            await view.press("m")
            assert "stopped" in await view.notice()
            await view.close_dialog()
            await view.readings()

    try:
        run(play)
    finally:
        os.kill(pid, signal.SIGCONT)


def test_only_one_action_at_a_time_and_no_quitting_meanwhile(company: Company) -> None:
    pid = company.demo("memory.plain", 1 * GIB).pids["self"]

    async def play() -> None:
        async with viewing() as view:
            await view.select(pid)
            await view.press("k", "k", "ctrl+c")
            await view.until(lambda: isinstance(view.dialog, Question))
            assert len(view.app.screen_stack) == 2
            await view.press("ctrl+c")
            await view.readings()
            assert view.app.is_running
            await view.press("n")
            await view.until(lambda: not view.app._busy)

    run(play)
    assert is_alive(pid)


def test_where_processes_are_somebody_elses_numbers_nothing_is_done(company: Company) -> None:
    pid = company.demo("memory.plain", 1 * GIB).pids["self"]

    async def play() -> None:
        async with viewing(read_only="processes of /host/proc can only be looked at from here") as view:
            await view.select(pid)
            await view.press("k")
            await view.readings()
            assert view.dialog is None
            assert not view.app._busy

    run(play)


# ---- a server that can release its memory ----


def test_a_server_releases_its_memory_and_takes_it_again(company: Company) -> None:
    server = company.server("sglang", "backup")
    pid = server.pid

    async def play() -> None:
        async with viewing() as view:
            await view.select(pid)
            plan = await view.ask("R")
            assert view.dialog_title == f"vram release pid {pid}"
            assert "asks POST /release_memory_occupation" in plan
            assert "lost: the KV cache" in plan
            assert server.posts() == []
            await view.press("y")
            receipt = await view.receipt()
            assert "asked: POST /release_memory_occupation" in receipt
            assert "1.5 GiB freed" in receipt
            await view.close_dialog()
            await view.until(lambda: "GiB" not in str(view.line_of(pid)))
            # Only the audit log knows what SGLang has released.
            plan = await view.ask("u")
            assert view.dialog_title == f"vram release --undo pid {pid}"
            assert "asks POST /resume_memory_occupation" in plan
            await view.press("y")
            assert "1.5 GiB taken again" in await view.receipt()
            await view.close_dialog()
            await view.press("u")
            assert "there is nothing to undo" in await view.notice()

    run(play)
    assert server.posts() == ["/release_memory_occupation", "/resume_memory_occupation"]


@pytest.mark.parametrize("answer", ["n", "enter"])
def test_a_server_is_not_asked_without_a_yes(company: Company, answer: str) -> None:
    server = company.server("ollama")

    async def play() -> None:
        async with viewing() as view:
            await view.select(server.pid)
            assert "by its own count 1.5 GiB" in await view.ask("R")
            await view.press(answer)
            await view.until(lambda: view.dialog is None)

    run(play)
    assert server.posts() == []


def test_what_is_no_server_is_said_after_the_key(company: Company) -> None:
    pid = company.demo("memory.plain", 1 * GIB).pids["self"]

    async def play() -> None:
        async with viewing() as view:
            await view.select(pid)
            await view.press("R")
            assert "does not look like a server" in await view.notice()
            await view.close_dialog()

    run(play)


def test_another_process_with_a_servers_pid_is_not_asked(company: Company) -> None:
    from vram.errors import WorldChanged
    from vram.host.local import LocalHost
    from vram.top.actions import ActionRequest, prepare

    server = company.server("vllm")
    started_at = read_stat(server.pid).started_at
    assert prepare(LocalHost(), ActionRequest(name="release", pid=server.pid, started_at=started_at), 30.0)
    heard = len(server.heard)
    with pytest.raises(WorldChanged, match="another process now"):
        prepare(LocalHost(), ActionRequest(name="release", pid=server.pid, started_at=started_at - 1), 30.0)
    assert len(server.heard) == heard


# ---- a job whose launcher is dead ----


def test_kill_on_an_orphan_means_its_whole_job(company: Company) -> None:
    neighbour = company.demo("memory.plain", 1 * GIB).pids["self"]
    pool = company.pool("sleep", "sleep", "sleep")
    first, *others = sorted(pool.workers)

    async def play() -> None:
        async with viewing() as view:
            await view.until(lambda: set(view.pids) == {neighbour, *pool.workers})
            pool.kill_head()
            await view.until(lambda: view.pids == [first, neighbour])
            await view.select(first)
            plan = await view.ask("k")
            assert f"This ends the whole job, 3 processes: pid {first}, {others[0]}, {others[1]}" in plan
            assert "3 multiprocessing workers: " in plan
            assert " s of CPU in the last second" in plan
            assert view.dialog_title == f"vram kill the job of pid {first}"
            assert all(map(is_alive, pool.workers))
            await view.press("y")
            receipt = await view.receipt()
            assert "done  kill 3 processes: 3" in receipt
            assert "freed 4.5 GiB" in receipt
            await view.close_dialog()
            await view.until(lambda: view.pids == [neighbour])

    run(play)
    assert not any(map(is_alive, pool.workers))
    assert is_alive(neighbour)


def test_the_job_is_left_alone_without_a_yes(company: Company) -> None:
    pool = company.pool("sleep", "sleep")
    pool.kill_head()

    async def play() -> None:
        async with viewing() as view:
            await view.until(lambda: view.pids == [min(pool.workers)])
            await view.ask("k")
            await view.press("enter")
            await view.until(lambda: view.dialog is None)
            await view.readings()

    run(play)
    assert all(map(is_alive, pool.workers))


def test_in_the_tree_too_each_process_of_an_orphan_stands_for_its_job(company: Company) -> None:
    pool = company.pool("sleep", "sleep")
    pool.kill_head()
    last = max(pool.workers)

    async def play() -> None:
        async with viewing() as view:
            await view.press("t")
            await view.until(lambda: set(view.pids) == set(pool.workers))
            await view.select(last)
            assert "This ends the whole job, 2 processes: pid " in await view.ask("k")
            await view.press("n")

    run(play)


def test_kill_on_a_worker_of_a_healthy_job_means_that_one(company: Company) -> None:
    pool = company.pool("sleep", "sleep")
    chosen, other = sorted(pool.workers)

    async def play() -> None:
        async with viewing() as view:
            await view.select(chosen)
            plan = await view.ask("k")
            assert "job" not in plan
            assert str(other) not in plan
            await view.press("y")
            assert "freed 1.5 GiB" in await view.receipt()

    run(play)
    assert not is_alive(chosen)
    assert is_alive(other)
    assert is_alive(pool.head)


def test_what_else_is_done_on_an_orphans_line_is_done_to_all_of_it(company: Company) -> None:
    pool = company.pool("sleep", "sleep")
    pool.kill_head()

    async def play() -> None:
        async with viewing() as view:
            await view.select(min(pool.workers))
            plan = await view.ask("p")
            assert all(str(pid) in plan for pid in pool.workers)
            await view.press("n")

    run(play)


def test_a_job_is_refused_where_one_of_its_pids_is_another_process_now(company: Company) -> None:
    from vram.errors import WorldChanged
    from vram.host.local import LocalHost
    from vram.top.actions import ActionRequest, prepare

    pool = company.pool("sleep", "sleep")
    pool.kill_head()
    first, second = sorted(pool.workers)
    request = ActionRequest(name="kill", pid=first, others=((second, 1),), job=True)
    with pytest.raises(WorldChanged, match=f"pid {second} is another process now"):
        prepare(LocalHost(), request, 30.0)
