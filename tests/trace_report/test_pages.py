"""The page of a trace: complete, correct in its sums, and inert whatever a program calls itself."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.trace_report import training_traces
from tests.trace_report.extreme_traces import HOSTILE, empty, hostile, large
from tests.trace_report.page_traces import process, training
from tests.trace_report.training_traces import SECOND, python
from vram.model.trace import CallStack, Frame, Gap, Site, TimelinePoint, TracedProcess, TraceView
from vram.report.escape import inert
from vram.trace.places import executables, package
from vram.trace_report import json as trace_json
from vram.trace_report.page_data import DEEPEST, MAX_PLACES, content
from vram.trace_report.pages import SCRIPTS, fragment, page
from vram.trace_report.words import page_moment, recorded, sentences, shortened
from vram.units import GIB, MIB


class Parsed(HTMLParser):
    """Tags, attributes and the text of scripts and styles, as a browser would find them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.raw: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self._within = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._within = tag if tag in ("script", "style") else ""

    def handle_endtag(self, tag: str) -> None:
        self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within:
            self.raw.append((self._within, data))
        else:
            self.texts.append(data)


def data_of(text: str) -> dict[str, object]:
    """The JSON that the page carries."""
    found = re.findall(r'<script type="application/json" id="trace-data">(.*?)</script>', text, re.DOTALL)
    assert len(found) == 1
    return json.loads(found[0])


# ---- the document ----


@pytest.mark.parametrize("view", [training(), hostile(), empty()], ids=["training", "hostile", "empty"])
def test_the_page_has_its_own_script_and_style_and_fetches_nothing(view: TraceView) -> None:
    parsed = Parsed(page(view, title="a trace"))
    names = [tag for tag, _ in parsed.tags]
    assert names.count("script") == 2
    assert names.count("style") == 1
    assert not {"img", "link", "iframe", "object", "embed", "svg", "base"} & set(names)
    for tag, attributes in parsed.tags:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "style")], tag
        assert tag == "a" or "href" not in attributes


def test_the_policy_allows_this_very_script_and_style_and_nothing_else() -> None:
    parsed = Parsed(page(training(), title="a trace"))
    policy = next(values["content"] for tag, values in parsed.tags if "http-equiv" in values) or ""
    style = next(text for tag, text in parsed.raw if tag == "style")
    script = [text for tag, text in parsed.raw if tag == "script"][-1]

    def digest(text: str) -> str:
        return "'sha256-" + b64encode(sha256(text.encode()).digest()).decode() + "'"

    assert policy.split("; ") == [
        "default-src 'none'",
        f"script-src {digest(script)}",
        f"style-src {digest(style)}",
        "base-uri 'none'",
        "form-action 'none'",
    ]


def test_the_script_makes_no_html_from_strings() -> None:
    script = [text for tag, text in Parsed(page(empty(), title="")).raw if tag == "script"][-1]
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
        assert forbidden not in script
    assert not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|import)\s*\(", script)


def test_a_title_is_text() -> None:
    text = page(empty(), title="</title><script>alert(1)</script>{{script}}")
    assert "<title>&lt;/title&gt;&lt;script&gt;alert(1)&lt;/script&gt;{{script}}</title>" in text
    assert data_of(text)["title"] == "</title><script>alert(1)</script>{{script}}"


def test_data_cannot_end_its_script() -> None:
    raw = re.findall(r'id="trace-data">(.*?)</script>', page(hostile(), title=HOSTILE[0]), re.DOTALL)[0]
    assert raw.isascii()
    assert raw.isprintable()
    assert not set(raw) & set("<>&")
    assert json.loads(raw)["texts"]


@given(st.text(st.characters(exclude_categories=()), max_size=60))
def test_any_name_arrives_as_inert_text(name: str) -> None:
    stack = CallStack((Frame("python", name, name, 1),))
    site = Site(stack=0, kind="device", gpu=0, process=0, count=1, nbytes=1)
    text = page(replace(empty(), stacks=(stack,), peak=(site,)), title=name)
    assert [tag for tag, _ in Parsed(text).tags].count("script") == 2
    assert inert(name) in data_of(text)["texts"]  # type: ignore[operator]


def test_the_page_of_a_large_trace_is_small() -> None:
    assert len(page(large(), title="large")) < 1 * MIB
    assert len(page(large(stacks=2000, gpus=8), title="larger")) < 5 * 10**6


# ---- the figures in it ----


def stack_of(data: dict, node: int) -> list[tuple[str, str, int]]:
    """Innermost first, as the trace has it."""
    found = []
    while node >= 0:
        frame = data["nodes"]["frame"][node]
        texts, frames = data["texts"], data["frames"]
        found.append((texts[frames["function"][frame]], texts[frames["file"][frame]], frames["line"][frame]))
        node = data["nodes"]["parent"][node]
    return found


def test_stacks_arrive_as_they_were() -> None:
    view = training()
    data = content(view)
    by_place = {
        (data["kinds"][kind]["name"], gpu, peak): node
        for kind, gpu, peak, node in zip(
            *(data["places"][name] for name in ("kind", "gpu", "peak", "node")), strict=True
        )
    }
    for site in view.peak:
        expected = [(frame.function, frame.file, frame.line) for frame in view.stacks[site.stack].frames]
        assert stack_of(data, by_place[site.kind, site.gpu, site.nbytes]) == expected


def test_functions_in_functions_have_short_names() -> None:
    """What exports and JSON have in full: ``f.<locals>.g``."""
    view = training_traces.nested()
    texts = content(view)["texts"]
    assert "make_training_step.compiled_step.<lambda>" in texts
    assert not [text for text in texts if "<locals>" in text]
    shown = " ".join(Parsed(fragment(view)).texts)
    assert "make_training_step.compiled_step.<lambda>" in shown
    assert "<locals>" not in shown
    in_json = json.loads(trace_json.report(view, "peak", "line", None))
    assert training_traces.NESTED in {
        frame["function"] for stack in in_json["stacks"] for frame in stack["frames"]
    }


def test_parents_come_before_their_children() -> None:
    parents = content(large())["nodes"]["parent"]
    assert all(parent < node for node, parent in enumerate(parents))


@pytest.mark.parametrize("view", [training(), large()], ids=["training", "large"])
def test_every_list_of_the_trace_is_there_to_the_byte(view: TraceView) -> None:
    places = content(view)["places"]
    blocks = [site for use in view.frameworks if use.at == "peak" for site in use.sites]
    extra = {(s.stack, s.kind, s.gpu, s.process): s for s in blocks}
    extra = {key: site for key, site in extra.items() if site not in view.peak}
    assert sum(places["allocated"]) == sum(site.nbytes for site in view.allocations)
    assert sum(places["allocations"]) == sum(site.count for site in view.allocations)
    assert sum(places["peak"]) == sum(site.nbytes for site in (*view.peak, *extra.values()))
    assert sum(places["left"]) == sum(leak.site.nbytes for leak in view.leaks)
    assert sum(places["churn"]) == sum(churn.site.nbytes for churn in view.churn)


def test_blocks_of_frameworks_are_a_group_of_their_own() -> None:
    data = content(training(1))
    groups = {kind["name"]: kind["group"] for kind in data["kinds"]}
    assert groups["torch block"] == "blocks"
    assert groups["device"] == groups["module"] == groups["stream-ordered"] == "gpu"
    assert groups["pinned host"] == "host"


def test_what_has_no_size_is_no_place() -> None:
    site = Site(stack=0, kind="context", gpu=0, process=0, count=3, nbytes=0)
    data = content(replace(empty(), allocations=(site,)))
    assert data["places"]["node"] == []
    assert data["kinds"] == []


def test_a_place_keeps_its_worst_verdict() -> None:
    view = training(1)
    leak = view.leaks[0]
    data = content(
        replace(view, leaks=(leak, replace(leak, verdict="leaked"), replace(leak, verdict="growing")))
    )
    worst = max(data["places"]["verdict"])
    assert data["verdicts"]["order"][worst] == "leaked"
    assert [each["verdict"] for each in data["leaks"]] == [leak.verdict, "leaked", "growing"]


def test_the_smallest_of_too_many_places_are_summed() -> None:
    sites = tuple(
        Site(stack=0, kind="device", gpu=0, process=at, count=1, nbytes=at + 1)
        for at in range(MAX_PLACES + 10)
    )
    processes = tuple(process(at, at) for at in (0, 1))
    places = content(replace(empty(), stacks=(CallStack(),), processes=processes, peak=sites))["places"]
    assert sum(places["peak"]) == sum(site.nbytes for site in sites)
    assert len(places["peak"]) == MAX_PLACES + 10  # ten processes, of which each keeps its own sum
    one = tuple(replace(site, process=0, stack=site.process) for site in sites)
    data = content(replace(empty(), stacks=(CallStack(),) * len(one), peak=one))
    assert len(data["places"]["peak"]) == MAX_PLACES + 1
    assert data["places"]["peak"][-1] == sum(range(1, 11))
    assert stack_of(data, data["places"]["node"][-1]) == [("smaller places, together", "", 0)]


def test_of_a_very_deep_stack_the_innermost_frames_are_kept() -> None:
    deep = CallStack(tuple(python(f"f{at}", "/srv/deep.py", at) for at in range(5000)))
    site = Site(stack=0, kind="device", gpu=0, process=0, count=1, nbytes=1)
    data = content(replace(empty(), stacks=(deep,), peak=(site,)))
    found = stack_of(data, data["places"]["node"][0])
    assert len(found) == DEEPEST + 1
    assert found[0][0] == "f0"
    assert found[-1][0] == "outer frames, left out"


def test_a_stack_that_is_not_there_is_unknown() -> None:
    site = Site(stack=77, kind="device", gpu=0, process=0, count=1, nbytes=1)
    data = content(replace(empty(), peak=(site, replace(site, stack=-1))))
    for node in data["places"]["node"]:
        assert stack_of(data, node) == [("no stack was recorded", "", 0)]


def test_points_of_the_timeline_are_sorted_by_time_for_each_gpu() -> None:
    view = training()
    lanes = content(replace(view, timeline=tuple(reversed(view.timeline))))["timeline"]
    assert [lane["gpu"] for lane in lanes] == [0, 1]
    for lane in lanes:
        assert list(lane["time"]) == sorted(lane["time"])
        assert len(lane["time"]) == len(lane["highest"]) == len(lane["lowest"]) == 1000


def test_a_level_goes_on_where_nothing_changed() -> None:
    """A point lasts one stretch; after it the last level holds, up to the next point and to the end."""
    points = (
        TimelinePoint(0, 0, 10, 0, 10),
        TimelinePoint(1000, 0, 90, 10, 20),
        TimelinePoint(5000, 0, 20, 0, 5),
    )
    lane = content(replace(empty(), timeline=points, duration_ns=9000))["timeline"][0]
    assert lane["time"] == (0, 1000, 2000, 5000, 6000)
    assert lane["highest"] == (10, 90, 20, 20, 5)
    assert lane["lowest"] == (0, 10, 20, 0, 5)


def test_addresses_are_exact_above_what_javascript_can_count() -> None:
    view = training(1)
    low = 2**64 - 2**40
    holes = replace(view.holes[0], blocks=((low + 512, 512, 0), (low, 256, 1)))
    data = content(replace(view, holes=(holes,)))["holes"][0]
    assert data["lowest"] == hex(low)
    assert data["address"] == [0, 512]
    assert data["size"] == [256, 512]


# ---- names and sentences ----


@pytest.mark.parametrize(
    ("frame", "name"),
    [
        (python("f", "/opt/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py", 1), "torch"),
        (python("f", "/usr/lib/python3/dist-packages/six.py", 1), "six"),
        (python("f", "/usr/lib/python3.12/threading.py", 1), "Python"),
        (python("f", "<frozen importlib._bootstrap>", 1), "Python"),
        (python("f", "/tmp/ipykernel_4711/123.py", 1), "notebook"),
        (python("f", "/home/user/train.py", 1), "your program"),
        (python("f", "", 1), "your program"),
        (Frame("native", "f", "/usr/lib/libcublas.so.13.0.2", 1), "libcublas"),
        (Frame("native", "f", "/x/_C.cpython-312-x86_64-linux-gnu.so", 1), "_C"),
        (Frame("native", "f", "/usr/lib/libpython3.12.so.1.0", 1), "Python"),
        (Frame("native", "draw", "/home/user/render", 1), "your program"),
        (Frame("native", "f", "", 1), "unknown library"),
    ],
)
def test_a_frame_belongs_to_the_package_that_people_know(frame: Frame, name: str) -> None:
    assert package(frame, {"/home/user/render": "your program"}) == name


def test_the_executable_is_the_program_unless_it_is_python() -> None:
    compiled = process(executable="/home/user/render", python=None)
    assert executables((compiled, process())) == {
        "/home/user/render": "your program",
        "/opt/venv/bin/python": "Python",
    }


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0 ns"),
        (1_250, "1.25 µs"),
        (40_000_000, "40 ms"),
        (12_400_000_000, "12.4 s"),
        (185 * SECOND, "3 min 5 s"),
    ],
)
def test_a_moment_is_written_as_people_say_it(nanoseconds: int, text: str) -> None:
    assert page_moment(nanoseconds) == text


def texts(view: TraceView) -> dict[str, str]:
    return {sentence.text: sentence.tone for sentence in sentences(view)}


def test_sentences_say_what_happened() -> None:
    found = texts(training(1))
    assert found["One process was recorded for 2 min 12 s: 9,812,412 events on 1 GPU."] == "plain"
    assert found["128.0 MiB leaked, from 1 place: decode data.py:19."] == "bad"
    assert found["640.0 MiB kept growing, from 1 place: remember metrics.py:41."] == "warning"
    assert found["1 allocation failed for lack of memory: it asked for 96.0 GiB on GPU 0."] == "bad"
    assert found["Nothing was recorded for 5 s from 52 s on: another profiler used CUPTI."] == "warning"
    assert not [text for text in found if "No leak" in text]


def test_only_what_did_not_fit_counts_as_a_failure() -> None:
    """PyTorch asks for memory that not every GPU has, and then for another kind."""
    view = training(1)
    refused = replace(view.failures[0], result=801)
    assert not [text for text in texts(replace(view, failures=(refused,))) if "failed" in text]
    several = replace(view, failures=(refused, *view.failures), failures_in_all=900)
    assert (
        texts(several)[
            "At least 1 allocation failed for lack of memory; the largest asked for 96.0 GiB on GPU 0."
        ]
        == "bad"
    )


def test_without_a_leak_the_page_says_so() -> None:
    view = training(1)
    quiet = tuple(leak for leak in view.leaks if leak.verdict == "in use at exit")
    assert texts(replace(view, leaks=quiet))["No leak was found."] == "good"


def test_leaks_inside_a_framework_are_not_added_to_the_drivers() -> None:
    view = training(1)
    leak = next(each for each in view.leaks if each.verdict == "leaked")
    block = replace(leak, site=replace(leak.site, kind="torch block", nbytes=GIB))
    found = texts(replace(view, leaks=(leak, block)))
    assert "128.0 MiB leaked, from 1 place: decode data.py:19." in found
    assert "1.0 GiB in blocks of frameworks leaked, from 1 place: decode data.py:19." in found


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"end": "cut"}, "Process 4711 was killed or still runs: its trace has no end."),
        ({"end": "disk full"}, "Process 4711 stopped recording because no space was left for its file."),
    ],
)
def test_a_trace_that_ends_early_says_why(changes: dict[str, object], text: str) -> None:
    ended: TracedProcess = process(**changes)  # type: ignore[arg-type]
    assert texts(replace(empty(), processes=(ended,)))[text] == "warning"


def test_the_page_says_when_and_where_it_was_recorded() -> None:
    here = process(host="node1\x1b[2J")
    assert recorded(replace(empty(), processes=(here,))) == "recorded 2026-01-01 12:00 UTC on node1\\x1b[2J"
    assert recorded(replace(empty(), processes=())) == ""


def test_of_many_gpus_the_highest_has_a_sentence() -> None:
    use = training(1).gpus[0]
    gpus = tuple(replace(use, gpu=at, peak_nbytes=(at + 1) * GIB) for at in range(8))
    about = [text for text in texts(replace(empty(), gpus=gpus)) if "was highest" in text]
    assert len(about) == 1
    assert about[0].startswith("GPU 7 was highest at 8.0 GiB")


def test_a_gap_without_an_end_lasts_to_the_end() -> None:
    view = replace(empty(), gaps=(Gap(0, "detached", 2 * SECOND, None),))
    assert "Nothing was recorded to the end from 2 s on: the recorder was detached." in texts(view)


def test_long_text_keeps_its_beginning_and_its_end() -> None:
    text = shortened("begin" + "x" * 100_000 + "end")
    assert len(text) < 500
    assert text.startswith("begin")
    assert text.endswith("end")


# ---- the fragment for notebooks ----


def test_the_fragment_has_a_picture_for_each_gpu_and_the_five_largest_places() -> None:
    parsed = Parsed(fragment(training()))
    names = [tag for tag, _ in parsed.tags]
    assert names.count("svg") == 2
    assert names.count("tr") == 5
    assert "script" not in names
    text = " ".join(parsed.texts)
    assert "50.5 GiB" in text
    assert "project/trainer.py:82" in text
    assert "247.0 MiB leaked, from 2 places, most of it from decode data.py:19." in text


def test_the_fragment_of_hostile_names_has_no_tag_of_theirs() -> None:
    parsed = Parsed(fragment(hostile()))
    allowed = {
        "div",
        "svg",
        "title",
        "path",
        "line",
        "rect",
        "text",
        "table",
        "tr",
        "td",
        "br",
        "span",
        "code",
        "bdi",
    }
    assert {tag for tag, _ in parsed.tags} <= allowed
    for tag, attributes in parsed.tags:
        assert not [name for name in attributes if name.startswith("on")], tag


def test_the_fragment_of_nothing_is_short() -> None:
    assert len(fragment(empty())) < 200


def test_no_two_scripts_define_one_name() -> None:
    """They share one scope in the page, where the last of two functions would silently win."""
    named = [
        name
        for path in SCRIPTS
        for name in re.findall(r"^(?:export )?(?:const|let|function) (\w+)", path.read_text(), re.MULTILINE)
    ]
    assert len(named) > 100
    assert len(named) == len(set(named))
