"""Which cards a traced program would have fitted: its peak, its contexts, and what the driver keeps."""

from __future__ import annotations

from collections.abc import Sequence

from vram.model.cards import CARD_MIB
from vram.model.trace import CardFit, Fit, GpuNeed, GpuUse, GraphicsCard, TraceView
from vram.units import MIB, size

# Measured on an H200 with driver 580.159 (docs/concepts/what-a-context-costs.md, docs/evidence): the first
# context takes 527 MiB with what initialising CUDA takes, and the driver keeps 615 MiB for itself.
CONTEXT_NBYTES = 527 * MIB
RESERVE_NBYTES = 615 * MIB

# What people ask about, in the names that they use; several names on a line have the same size.
CARDS = tuple(
    GraphicsCard(names, CARD_MIB[names.partition(", ")[0]] * MIB)
    for names in (
        *(
            "B200",
            "H200",
            "RTX PRO 6000 Blackwell",
            "GH200 96 GB, H20",
            "H100 NVL",
            "A100 80 GB",
            "H100 80 GB",
        ),
        *("RTX A6000, RTX 6000 Ada", "L40S, A40", "A100 40 GB", "V100 32 GB", "RTX 5090", "RTX 3090, A30"),
        *("RTX 4090", "L4", "A10", "RTX 4080, RTX A4000", "RTX 5080, RTX 5070 Ti", "T4", "RTX 4070"),
        *("RTX 3080", "RTX 4060"),
    )
)


def fit(view: TraceView, cards: Sequence[GraphicsCard] = CARDS) -> Fit:
    """Compare what the fullest GPU of *view* needed with *cards*, the largest first."""
    needs = tuple(_need(view, use) for use in view.gpus)
    most = max((need.most for need in needs), default=0)
    least = max((need.least for need in needs), default=0)
    ordered = sorted(cards, key=lambda card: -card.total_nbytes)
    return Fit(
        needs=needs,
        cards=tuple(_judge_card(card, most, least) for card in ordered),
        reserve_nbytes=RESERVE_NBYTES,
        assumptions=_assumptions(needs),
        doubts=tuple(_doubts(view, needs)),
    )


def _need(view: TraceView, use: GpuUse) -> GpuNeed:
    gpu = use.gpu
    users = {site.process for site in view.allocations if site.gpu == gpu}
    before: dict[int, int] = {}
    counted: set[int] = set()
    for held in view.before:
        if held.gpu == gpu:
            # Several sources may speak of the same memory: NVML's figure has what a framework reports in it.
            before[held.process] = max(before.get(held.process, 0), held.nbytes)
            if "nvml" in held.source.lower():
                counted.add(held.process)  # with its context
    contexts = len(users - counted)
    cached = sum(
        max(0, blocks.reserved_nbytes - blocks.used_nbytes)
        for blocks in view.frameworks
        if blocks.at == "peak" and blocks.gpu == gpu
    )
    return GpuNeed(
        gpu=gpu,
        name=use.name,
        total_nbytes=use.total_nbytes,
        live_nbytes=use.peak_nbytes,
        before_nbytes=sum(before.values()),
        contexts=contexts,
        context_nbytes=contexts * CONTEXT_NBYTES,
        cached_nbytes=min(cached, use.peak_nbytes),
    )


def _judge_card(card: GraphicsCard, most: int, least: int) -> CardFit:
    room = card.total_nbytes - RESERVE_NBYTES
    if most <= room:
        return CardFit(card=card, verdict="fits", left_nbytes=room - most)
    if least <= room:
        return CardFit(card=card, verdict="if caches shrink", left_nbytes=room - most)
    return CardFit(card=card, verdict="too small", left_nbytes=room - least)


def _assumptions(needs: Sequence[GpuNeed]) -> tuple[str, ...]:
    words = [
        f"A context takes {size(CONTEXT_NBYTES)} and the driver keeps {size(RESERVE_NBYTES)}, as measured on"
        " an H200 with driver 580. Other cards and drivers differ.",
    ]
    if len(needs) > 1:
        words.append("Every GPU of the run is replaced by such a card; the fullest one decides.")
    return tuple(words)


def _doubts(view: TraceView, needs: Sequence[GpuNeed]) -> list[str]:
    words = []
    if view.failures_in_all:
        words.append("Allocations failed while it was recorded: with more memory it would have taken more.")
    if any(process.attached for process in view.processes) and not view.before:
        words.append("It was attached to while it ran: what it held before is not in the figures.")
    if view.gaps or view.damage:
        words.append("Parts of the trace are missing: the peak may have been higher.")
    if not any(need.cached_nbytes for need in needs):
        words.append(
            "A framework's allocator keeps what it once took. On a smaller card it would have to return"
            " unused memory earlier: record with --framework torch to see how much of the peak was in use."
        )
    else:
        words.append(
            "On a smaller card the allocator returns unused memory earlier, but scattered blocks can keep it"
            " from doing so."
        )
    words.append(
        "Libraries choose other kernels and workspaces on other cards, and a program that sizes itself by the"
        " free memory (vLLM, JAX) takes what it gets."
    )
    return words
