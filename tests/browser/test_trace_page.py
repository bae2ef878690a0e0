"""The page of a trace in a real browser, used with a mouse and with keys."""

from __future__ import annotations

from urllib.parse import parse_qs

import pytest
from msgspec.structs import replace

from tests.browser.chromium import Page
from tests.browser.conftest import Opened
from tests.trace_report import steady_traces
from tests.trace_report.extreme_traces import empty, hostile, large
from tests.trace_report.page_traces import training
from tests.trace_report.training_traces import SECOND
from vram.model.trace import CallStack, Frame, Site
from vram.units import GIB

ENTER, ESCAPE = 13, 27
ROWS = "[...document.querySelectorAll('#places tbody tr[data-place]')]"
TORCH = "[...document.querySelectorAll('#legend button')].find(e => e.textContent.startsWith('torch'))"


def state(page: Page) -> dict[str, str]:
    """What the address keeps."""
    return {key: values[0] for key, values in parse_qs(page.run("location.hash.slice(1)")).items()}


def text(page: Page, selector: str) -> str:
    return str(page.run(f"document.querySelector({selector!r}).innerText"))


def shown(page: Page, selector: str) -> bool:
    return bool(page.run(f"document.querySelector({selector!r}).getClientRects().length > 0"))


def place(page: Page, selector: str) -> tuple[float, float, float, float]:
    """Scroll an element into view; its left, top, width and height there."""
    page.run(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
    box = page.run(
        "(box => [box.left, box.top, box.width, box.height])"
        f"(document.querySelector({selector!r}).getBoundingClientRect())"
    )
    return tuple(box)  # type: ignore[return-value]


def click(page: Page, selector: str, *, times: int = 1) -> None:
    left, top, width, height = place(page, selector)
    page.click(left + width / 2, top + height / 2, times=times)


def choose(page: Page, selector: str, value: str) -> None:
    """Pick an entry of a list, as the keyboard would."""
    page.run(
        f"(() => {{ const list = document.querySelector({selector!r}); list.value = {value!r};"
        "list.dispatchEvent(new Event('change', {bubbles: true})); })()"
    )


def fill(page: Page, selector: str, typed: str) -> None:
    page.run(f"document.querySelector({selector!r}).select()")
    page.type(typed)


def first_column(page: Page) -> list[str]:
    names = f"{ROWS}.map(row => row.querySelector('.frame .function').innerText)"
    return list(page.run(names))


def column(page: Page, number: int) -> list[str]:
    return list(page.run(f"{ROWS}.map(row => row.children[{number}].innerText)"))


# ---- what everybody sees ----


def test_the_page_says_what_happened(opened: Opened) -> None:
    page = opened(training())
    assert text(page, "h1") == "python train.py --epochs 3 --batch 32 and 1 more process"
    assert "247.0 MiB leaked, from 2 places, most of it from " in text(page, "#sentences")
    cards = text(page, "#cards")
    assert "68.0 GiB" in cards
    assert "1.4 GiB" in cards
    for section in ("timeline", "flame", "leaks", "places", "frameworks", "holes", "failures", "processes"):
        assert shown(page, f"#{section}-section"), section
    assert "the rest (libraries, modules)" in text(page, "#frameworks")
    assert "leaked" in text(page, "#leaks")
    assert "Its context was destroyed or reset" in text(page, "#leaks")


@pytest.mark.parametrize("width", [1200, 390])
def test_nothing_is_wider_than_the_screen(opened: Opened, width: int) -> None:
    for view in (training(), hostile()):
        page = opened(view, width=width)
        assert page.run("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_from_its_ground(opened: Opened, dark: bool) -> None:
    """Every visible text has a contrast of at least 4.5, as WCAG AA asks."""
    page = opened(training(), dark=dark)
    low = page.run(CONTRAST)
    assert not low, low


def test_everything_has_a_name_for_those_who_cannot_see_it(opened: Opened) -> None:
    page = opened(training())
    nodes = page.send("Accessibility.getFullAXTree")["nodes"]
    used = (
        "button",
        "combobox",
        "searchbox",
        "checkbox",
        "radio",
        "application",
        "table",
        "link",
        "navigation",
    )
    unnamed = [
        node["role"]["value"]
        for node in nodes
        if not node.get("ignored")
        and node["role"]["value"] in used
        and not node.get("name", {}).get("value")
        and node["role"]["value"] != "table"
    ]
    assert not unnamed
    levels = page.run("[...document.querySelectorAll('h1, h2, h3')].map(e => Number(e.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1


def test_a_trace_without_allocations_says_so(opened: Opened) -> None:
    page = opened(empty())
    assert shown(page, "#nothing")
    assert not shown(page, "#flame")
    assert not shown(page, "#timeline")


def test_attempts_that_failed_for_another_reason_are_apart(opened: Opened) -> None:
    view = training(1)
    page = opened(replace(view, failures=(*view.failures, replace(view.failures[0], result=801))))
    assert "out of memory" in text(page, "#failures")
    assert "1 attempt that failed for another reason" in text(page, "#failures")
    assert page.run("document.querySelectorAll('#timeline .failure').length") == 1


def test_a_function_without_a_name_is_shown_by_its_place_in_the_library(opened: Opened) -> None:
    site = Site(stack=0, kind="device", gpu=0, process=0, count=1, nbytes=1)
    stack = CallStack((Frame("native", "", "/usr/lib/libfoo.so.1", 0x1F40),))
    page = opened(replace(empty(), stacks=(stack,), peak=(site,), gpus=training(1).gpus))
    assert first_column(page) == ["libfoo.so.1+0x1f40"]


# ---- hostile input ----


def test_hostile_names_stay_text(opened: Opened) -> None:
    page = opened(hostile())
    for measure in ("left", "allocated", "churn", "peak"):
        page.run(f"document.getElementById('measure-{measure}').click()")
    page.run("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    for row in range(len(first_column(page))):
        page.run(f"{ROWS}[{row}].querySelector('.toggle').click()")
    left, top, width, _ = place(page, "#flame")
    for at in range(0, int(width), 40):
        page.mouse("mouseMoved", left + at, top + 30)
    assert page.run("window.owned") is None
    assert page.run("document.scripts.length") == 2
    assert page.run("document.querySelectorAll('img, iframe, object, embed, base, #main script').length") == 0
    assert "<img src=x onerror='window.owned = 2'>" in text(page, "#places")
    assert "\\u202e" in text(page, "#places")
    assert "\u202e" not in page.run("document.body.innerText")


@pytest.mark.parametrize(
    "address",
    [
        "#memory=__proto__&gpu=constructor&process=-1&flame=toString&zoom=1e9&sort=--x&from=9&to=x&at=NaN&open=z",
        "#zoom=99999999999999&find=(&pattern=1&filter=[&filterpattern=1&only=<img>&from=5&to=1",
        "#%E0%A4%A&gpu=%00&%",
    ],
)
def test_an_address_that_makes_no_sense_is_harmless(opened: Opened, address: str) -> None:
    page = opened(training(), address)
    assert shown(page, "#flame")
    assert shown(page, "#timeline svg")


# ---- the timeline ----


def test_hovering_the_timeline_shows_time_and_figures(opened: Opened) -> None:
    page = opened(training())
    left, top, width, height = place(page, "#timeline")
    page.mouse("mouseMoved", left + width / 2, top + height / 2)
    readout = text(page, "#timeline-readout")
    assert readout.startswith("After 1 min ")
    assert "GPU 0" in readout
    assert "GPU 1" in readout
    assert "GiB" in readout


def test_dragging_zooms_into_the_time_and_a_double_click_resets(opened: Opened) -> None:
    page = opened(training())
    left, top, width, height = place(page, "#timeline")
    page.drag(left + width * 0.3, top + height / 2, left + width * 0.6)
    found = state(page)
    start, end = int(found["from"]) / SECOND, int(found["to"]) / SECOND
    assert 30 < start < 45
    assert 68 < end < 82
    assert shown(page, "#whole-time")
    assert "epoch 2" in page.run("document.querySelector('#timeline').textContent")
    assert "epoch 3" not in page.run("document.querySelector('#timeline').textContent")
    click(page, "#timeline", times=2)
    assert "from" not in state(page)
    assert "epoch 3" in page.run("document.querySelector('#timeline').textContent")


def test_a_click_puts_the_pointer_to_the_peak(opened: Opened) -> None:
    view = training()
    page = opened(view)
    left, top, width, height = place(page, "#timeline")
    page.click(left + width * 0.4, top + height / 2)
    assert int(state(page)["at"]) == view.gpus[0].peak_ns
    page.mouse("mouseMoved", 5, 5)
    assert "GPU 0 " in text(page, "#timeline-readout")
    assert "68.0 GiB" in text(page, "#timeline-readout")


def test_the_timeline_obeys_keys(opened: Opened) -> None:
    page = opened(training(1))
    page.run("document.getElementById('timeline').focus()")
    page.press("p", text="p")
    peak = int(state(page)["at"])
    page.press("ArrowLeft", code=37)
    assert int(state(page)["at"]) < peak
    page.press("+", text="+")
    assert int(state(page)["to"]) - int(state(page)["from"]) == pytest.approx(66 * SECOND, rel=0.01)
    page.press("Escape", code=ESCAPE)
    assert "from" not in state(page)


# ---- the flame graph ----


def test_a_click_zooms_into_the_flame_graph_and_crumbs_lead_out(opened: Opened) -> None:
    page = opened(training(1))
    left, top, width, _ = place(page, "#flame")
    page.click(left + width * 0.2, top + 19 * 4.5)  # the fifth row: a step of the optimizer
    assert "zoom" in state(page)
    assert "fit" in text(page, "#crumbs")
    page.run("history.back()")
    page.until("location.hash === '' && document.getElementById('crumbs').hidden")
    page.run("history.forward()")
    page.until("location.hash.includes('zoom')")
    click(page, "#crumbs button")
    assert "zoom" not in state(page)
    assert not shown(page, "#crumbs")


def test_finding_highlights_and_sums(opened: Opened) -> None:
    page = opened(training(1))
    before = page.run("document.getElementById('flame').toDataURL()")
    fill(page, "#find", "ADAMW.PY")
    assert text(page, "#found") == "26.2 GiB in 2 matching bars (38 %)"
    assert page.run("document.getElementById('flame').toDataURL()") != before
    fill(page, "#find", r"attention\.py:41$|metrics")
    assert text(page, "#found") == "Nothing matches."
    click(page, "#find-pattern")
    assert "matching bars" in text(page, "#found")
    fill(page, "#find", "(")
    assert text(page, "#found") == "This is not a regular expression."
    assert page.run("document.getElementById('find').getAttribute('aria-invalid')") == "true"


def test_a_colour_of_the_legend_finds_its_package(opened: Opened) -> None:
    """And the sum is the figure beside it."""
    page = opened(training(1))
    figure = page.run(f"{TORCH}.lastChild.textContent")
    page.run(f"{TORCH}.click()")
    assert state(page)["find"] == "torch"
    assert text(page, "#found").startswith(f"{figure} in ")


def test_the_switch_shows_other_bytes(opened: Opened) -> None:
    page = opened(training(1))
    sums = {}
    for measure in ("peak", "left", "allocated", "churn"):
        page.run(f"document.getElementById('measure-{measure}').click()")
        page.run("document.getElementById('flame').focus()")
        page.run("document.getElementById('flame').blur()")
        page.run("document.getElementById('flame').focus()")
        page.press("ArrowDown", code=40)
        sums[measure] = text(page, "#flame-status")
    assert "live at the peak" in sums["peak"]
    assert "never freed" in sums["left"]
    assert "TiB allocated in all" in sums["allocated"]
    assert "freed again soon" in sums["churn"]
    assert len(set(sums.values())) == 4


def test_the_flame_graph_obeys_keys(opened: Opened) -> None:
    page = opened(training(1))
    page.run("document.getElementById('flame').focus()")
    page.press("ArrowDown", code=40)
    assert text(page, "#flame-status").startswith("All")
    page.press("ArrowDown", code=40)
    assert text(page, "#flame-status").startswith("<module>")
    page.press("Enter", code=ENTER)
    assert "zoom" in state(page)
    page.press("Escape", code=ESCAPE)
    assert "zoom" not in state(page)


def test_hovering_a_bar_shows_its_file_and_bytes(opened: Opened) -> None:
    page = opened(training(1))
    left, top, width, _ = place(page, "#flame")
    page.mouse("mouseMoved", left + width / 3, top + 19 * 2.5)
    tip = text(page, "#tip")
    assert "main" in tip
    assert "/home/user/project/train.py:112 (your program)" in tip
    assert "live at the peak" in tip


# ---- the table ----


def test_the_table_sorts_by_any_column(opened: Opened) -> None:
    page = opened(training(1))
    assert column(page, 2)[0] == "26.2 GiB"
    click(page, "#sort-place")
    names = first_column(page)
    assert names == sorted(names)
    assert (
        page.run("document.querySelector('#sort-place').parentElement.getAttribute('aria-sort')")
        == "ascending"
    )
    click(page, "#sort-place")
    assert first_column(page) == sorted(names, reverse=True)
    click(page, "#sort-count")
    assert column(page, 4)[0] == "3,780,000"


def test_the_table_filters_by_any_frame_of_the_stack(opened: Opened) -> None:
    page = opened(training(1))
    everything = len(first_column(page))
    fill(page, "#filter", "attention.py")
    assert 0 < len(first_column(page)) < everything
    assert text(page, "#places-count").startswith(f"{len(first_column(page))} places: ")
    fill(page, "#filter", "no such thing")
    assert text(page, "#places-count") == "No place matches."
    page.run("document.querySelector('#filter').select()")
    page.press("Backspace", code=8)
    assert len(first_column(page)) == everything
    choose(page, "#only", "leaked")
    assert first_column(page) == ["decode"]
    choose(page, "#only", "module")
    assert first_column(page) == ["build_model"]


def test_a_click_opens_the_whole_stack(opened: Opened) -> None:
    page = opened(training(1))
    click(page, "#places tbody tr[data-place] .toggle")
    assert "open" in state(page)
    stack = text(page, "#places .whole")
    assert "c10::cuda::CUDACachingAllocator" in stack
    assert "/home/user/project/train.py:131" in stack
    assert page.run("document.querySelector('#places .toggle').getAttribute('aria-expanded')") == "true"
    click(page, "#places tbody tr[data-place] .toggle")
    assert "open" not in state(page)


def test_a_long_table_shows_more_on_request(opened: Opened) -> None:
    page = opened(large())
    assert len(first_column(page)) == 100
    click(page, "#more")
    assert len(first_column(page)) == 200


# ---- filters and links ----


def test_filters_hold_for_everything(opened: Opened) -> None:
    page = opened(training())
    choose(page, "#gpu", "1")
    assert "GPU 0" not in text(page, "#cards")
    assert "GPU 0" not in page.run("document.querySelector('#timeline').textContent")
    assert set(column(page, 2)) == {"1"}
    assert "GPU 0" not in text(page, "#holes") + text(page, "#frameworks") + text(page, "#leaks")
    assert not shown(page, "#failures-section")
    choose(page, "#gpu", "")
    choose(page, "#process", "0")
    assert set(column(page, 3)) == {"4711"}
    assert "of the peak: pid 4711" in text(page, "#cards")
    choose(page, "#memory", "blocks")
    assert set(column(page, 1)) == {"torch block"}
    click(page, "#reset")
    assert state(page) == {}
    assert "GPU 0" in text(page, "#cards")


def test_a_button_leads_to_the_blocks_of_frameworks(opened: Opened) -> None:
    page = opened(training(1))
    click(page, "#show-blocks")
    assert state(page) == {"memory": "blocks"}
    assert not shown(page, "#flame-hint")
    assert "PyTorch" in text(page, "#frameworks")
    assert set(column(page, 1)) == {"torch block"}


def test_leaks_of_a_framework_count_as_leaks_of_the_gpu(opened: Opened) -> None:
    view = training(1)
    leak = next(each for each in view.leaks if each.verdict == "growing")
    block = replace(leak, site=replace(leak.site, kind="torch block", nbytes=3 * GIB, stack=15))
    page = opened(replace(view, leaks=(block,)))
    assert "3.0 GiB" in text(page, "#cards")
    assert "torch block: 320 allocations" in text(page, "#leaks")


def test_the_rest_that_a_view_names_is_not_added_again(opened: Opened) -> None:
    view = training(1)
    torch = next(use for use in view.frameworks if use.at == "peak")
    rest = replace(torch, framework="outside frameworks", reserved_nbytes=GIB, used_nbytes=GIB, sites=())
    page = opened(replace(view, frameworks=(torch, rest)))
    assert text(page, "#frameworks").count("the rest (libraries, modules)") == 1
    assert "1.0 GiB the rest (libraries, modules)" in text(page, "#frameworks")
    assert "outside" not in text(page, "#frameworks")


def test_a_link_reopens_the_same_view(opened: Opened) -> None:
    first = opened(training())
    choose(first, "#gpu", "0")
    first.run("document.getElementById('measure-left').click()")
    left, top, width, _ = place(first, "#flame")
    first.click(left + width * 0.2, top + 19 * 3.5)
    fill(first, "#find", "torch")
    fill(first, "#filter", "trainer")
    click(first, "#sort-left")
    click(first, "#places tbody tr[data-place] .toggle")
    left, top, width, height = place(first, "#timeline")
    first.drag(left + width * 0.3, top + height / 2, left + width * 0.6)
    address = first.run("location.hash")
    second = opened(training(), address)
    assert state(second) == state(first)
    assert len(state(second)) == 9
    for selector in ("#cards", "#crumbs", "#found", "#places", "#places-count", "#leaks", "#legend"):
        assert text(second, selector) == text(first, selector), selector
    for shot in (
        "document.getElementById('flame').toDataURL()",
        "document.querySelector('#timeline svg').textContent",
    ):
        assert second.run(shot) == first.run(shot)
    assert second.run("document.getElementById('find').value") == "torch"
    assert second.run("document.getElementById('filter').value") == "trainer"


def test_the_flame_graph_of_twenty_thousand_stacks_is_drawn(opened: Opened) -> None:
    page = opened(large(stacks=20_000, depth=6))
    assert shown(page, "#flame")
    fill(page, "#find", "forward_2")
    assert "matching bars" in text(page, "#found")


def test_colours_follow_the_screen(opened: Opened) -> None:
    page = opened(training(1))
    light = page.run("document.getElementById('flame').toDataURL()")
    page.prefer_dark(True)
    page.until(f"document.getElementById('flame').toDataURL() !== {light!r}")


def test_gaps_without_events_do_no_harm(opened: Opened) -> None:
    view = training(1)
    page = opened(replace(view, timeline=view.timeline[:1], marks=(), failures=(), failures_in_all=0))
    assert shown(page, "#timeline svg")


CONTRAST = """
(() => {
  const parse = (color) => (color.match(/[\\d.]+/g) || []).map(Number);
  const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const ground = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const color = parse(getComputedStyle(at).backgroundColor);
      if (color.length && (color.length < 4 || color[3] === 1)) return color;
    }
    return [255, 255, 255];
  };
  const low = new Set();
  for (const one of document.querySelectorAll('body *')) {
    const own = [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    const isHidden = !one.getClientRects().length || one.closest('.unseen, option') || one.disabled;
    if (!own || isHidden) continue;
    const style = getComputedStyle(one), isDrawn = one.namespaceURI.includes('svg');
    const ink = light(parse(isDrawn ? style.fill : style.color)), paper = light(ground(one));
    const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    if (ratio < 4.5) low.add(`${one.tagName}.${one.className.baseVal ?? one.className}: ${ratio.toFixed(2)}`);
  }
  return [...low];
})()
"""


# ---- a program that goes on ----


def test_a_steady_program_shows_its_window(opened: Opened) -> None:
    """Nothing was asked of the driver: the page shows PyTorch's blocks, and names what is from before."""
    page = opened(steady_traces.serving())
    section = text(page, "#window-section")
    for words in ("Growing", "Most at the highest moment", "Allocated and freed again and again"):
        assert words in section
    assert "__main__: model.layers[0…31].weight" in section
    assert "Log.remember" in section
    assert text(page, "#places").startswith("Place")
    assert "HIGHEST SINCE" in text(page, "#places").upper()
    assert shown(page, "#measure-window")
    assert shown(page, "#flame")


def test_a_page_without_a_window_has_no_place_for_one(opened: Opened) -> None:
    page = opened(training())
    assert not shown(page, "#window-section")
    assert page.run("document.getElementById('measure-window') === null")
