"""Which experiments there are, in the order in which they are run, and what their pages say."""

from __future__ import annotations

import re
from importlib import import_module
from inspect import cleandoc
from typing import Protocol, cast

from vram.errors import UsageError
from vram.lab.answer import Answer, Takes
from vram.lab.bench import Bench
from vram.model.lab import Experiment

DEADLINE_S = 20.0

TOPICS: dict[str, tuple[str, ...]] = {
    "When a process ends": (
        "kill_nine",
        "exit_without_free",
        "crash",
        "zombie",
        "stopped",
        "context_outlives",
        "exception_across_runs",
        "managed_at_exit",
        "reset_needed",
    ),
    "Forks and children": (
        "fork_harmless",
        "list_names_the_dead",
        "forked_child_uses",
        "fork_child_closes",
        "subprocess_keeps",
    ),
    "Memory that is shared": (
        "ipc_survives",
        "ipc_counted_twice",
        "exported_handle",
        "dmabuf",
        "pointer_elsewhere",
    ),
    "Freeing": (
        "free_keeps",
        "freed_for_others",
        "free_waits",
        "sync_before_free",
        "free_null_fails",
        "free_null_flushes",
        "double_free",
        "lost_pointer",
        "small_fragments",
        "large_fragments",
        "release_frees",
        "addresses_cost",
    ),
    "Pools and graphs": (
        "pool_keeps",
        "pool_keeps_by_default",
        "async_free_at_once",
        "graph_memory",
    ),
    "Contexts": (
        "context_free_of_charge",
        "second_context",
        "init_costs",
        "reset_not_enough",
        "reset_reaches_others",
        "context_close_frees",
        "parked_leaves_nothing",
    ),
    "Threads and objects": (
        "thread_end_frees",
        "thread_frees",
        "owner_object",
        "free_in_other_thread",
        "exception_in_process",
    ),
    "Old data": (
        "old_data_plain",
        "old_data_pool",
        "zero_before_free",
        "old_data_across",
    ),
    "Host and managed memory": (
        "pinned_counts",
        "managed_on_allocation",
        "managed_returns",
        "managed_listed",
    ),
    "Figures and kernels": (
        "used_includes_reserved",
        "list_sums",
        "one_byte",
        "larger_than_the_gpu",
        "kernel_keeps",
        "launches_grow",
    ),
    "Frameworks": (
        "torch_del",
        "torch_empty_cache",
        "torch_cycle",
        "torch_exception",
        "torch_workspaces",
        "torch_old_data",
        "cupy_del",
        "jax_preallocates",
        "numba_del",
        "numba_close",
        "pycuda_thread",
    ),
}

EXPERIMENTS = tuple(name for names in TOPICS.values() for name in names)


class Module(Protocol):
    """What every file in ``experiments/`` offers."""

    TAKES: Takes

    def measure(self, bench: Bench) -> Answer: ...


def load(name: str) -> Module:
    """The module of an experiment, told by its name; a suggestion where there is none."""
    wanted = name.strip().lower().replace("-", "_")
    if wanted not in EXPERIMENTS:
        raise UsageError(f"there is no experiment {name!r}", hint=_suggestion(wanted))
    return cast("Module", import_module(f"vram.lab.experiments.{wanted}"))


def describe(name: str) -> Experiment:
    """An experiment as its page tells it."""
    module = load(name)
    wanted = name.strip().lower().replace("-", "_")
    page = cleandoc(module.__doc__ or "")
    sections = _sections(page)
    return Experiment(
        name=shown(wanted),
        topic=next(topic for topic, names in TOPICS.items() if wanted in names),
        # Python -OO strips docstrings, and with them the pages.
        claim=page.partition("\n")[0] or shown(wanted),
        source=sections.get("Source", ""),
        method=sections.get("Method", ""),
        reading=sections.get("Reading", ""),
        takes_bytes=module.TAKES.total,
        deadline_s=deadline_of(module),
        page=page,
    )


def deadline_of(module: Module) -> float:
    return float(getattr(module, "DEADLINE_S", DEADLINE_S))


def library_of(module: Module) -> str:
    """What its first process imports; "" is nothing."""
    return str(getattr(module, "LIBRARY", ""))


def shown(name: str) -> str:
    """A file's name as people type it."""
    return name.replace("_", "-")


def chosen(names: list[str]) -> tuple[str, ...]:
    """The named experiments in the catalogue's order, each once; all of them without names."""
    wanted = {name.strip().lower().replace("-", "_") for name in names}
    for name in names:
        load(name)
    return tuple(name for name in EXPERIMENTS if not wanted or name in wanted)


def _sections(page: str) -> dict[str, str]:
    parts = re.split(r"^(\w[\w ]*)\n-{3,}$", page, flags=re.MULTILINE)
    return {title: " ".join(body.split()) for title, body in zip(parts[1::2], parts[2::2], strict=True)}


def _suggestion(name: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, EXPERIMENTS, n=1)
    return f"did you mean {shown(close[0])}?" if close else "`vram lab list` names them all"
