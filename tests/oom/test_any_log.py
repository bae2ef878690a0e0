"""Whatever a log is made of: it is read to its end, in any portions, in constant memory, without a crash."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.oom.corpus import MESSAGES
from vram.oom import reader
from vram.oom.cases import cases
from vram.oom.reader import NEEDLES, find_messages

messages = st.sampled_from([message.log for message in MESSAGES.values()])
# Words of ordinary logs, none of which any message contains.
noise = st.lists(
    st.sampled_from(
        [
            b"step 10 loss 2.13 lr 3e-4\n",
            b"\x1b[32mINFO\x1b[0m epoch done\r\n",
            b" 40%|####      | 4/10 [00:02<00:03]\r",
            b"\x00\x01\x02 not text \xff\xfe\n",
            b"x" * 3000 + b"\n",
            "größe ✓\n".encode(),
            b"\n",
        ]
    ),
    max_size=30,
).map(b"".join)
slow = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Portions:
    """A stream that hands out a portion of its own size at each read, as pipes do."""

    def __init__(self, log: bytes, sizes: list[int]) -> None:
        self._log, self._sizes, self._at = log, sizes, 0

    def read(self, most: int, /) -> bytes:
        size = self._sizes[self._at % len(self._sizes)] if self._sizes else most
        self._at += 1
        portion, self._log = self._log[:size], self._log[size:]
        return portion


def judged(log: bytes) -> list[tuple[str, str]]:
    return [
        (case.reading.dialect, case.judgement.kind) for case in cases(find_messages(io.BytesIO(log))).cases
    ]


@slow
@given(messages, st.data())
def test_a_message_cut_anywhere_is_read_as_far_as_it_goes(message: bytes, data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(message)))
    end = data.draw(st.integers(begin, len(message)))
    for case in cases(find_messages(io.BytesIO(message[begin:end]))).cases:
        assert case.judgement.remedies
        balance = case.judgement.balance
        if balance:
            assert abs(balance.total - sum(term.nbytes for term in balance.terms)) <= balance.slack


@slow
@given(st.sampled_from(list(MESSAGES)), noise, noise)
def test_noise_around_a_message_changes_nothing(name: str, before: bytes, after: bytes) -> None:
    message = MESSAGES[name].log
    if before and before[-1:] not in b"\r\n":
        before += b"\n"
    if not message.endswith(b"\n"):
        after = b""
    alone = [(case.reading.dialect, case.judgement.kind, case.count) for case in MESSAGES[name].cases()]
    found = cases(find_messages(io.BytesIO(before + message + after))).cases
    assert [(case.reading.dialect, case.judgement.kind, case.count) for case in found] == alone


@slow
@given(st.binary(max_size=5000), messages, st.lists(st.sampled_from(NEEDLES), max_size=40))
def test_bytes_of_any_kind_are_read_without_a_crash(
    junk: bytes, message: bytes, needles: list[bytes]
) -> None:
    judged(junk + b" ".join(needles) + message[: len(junk)] + junk)


@settings(slow, max_examples=25)
@given(st.lists(messages, min_size=1, max_size=4), st.lists(st.integers(70, 3000), min_size=1, max_size=5))
def test_portions_of_any_size_give_the_same(parts: list[bytes], sizes: list[int]) -> None:
    log = b"\n".join(parts)
    whole = list(find_messages(io.BytesIO(log)))
    assert list(find_messages(Portions(log, sizes))) == whole


damaged = st.tuples(messages, st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=4)).map(
    lambda drawn: bytes(_with(drawn[0], drawn[1]))
)


def _with(message: bytes, changes: list[tuple[int, int]]) -> bytearray:
    changed = bytearray(message)
    for at, value in changes:
        changed[at % len(changed)] = value
    return changed


@slow
@given(st.lists(st.one_of(damaged, noise), min_size=1, max_size=6), st.integers(1, 3))
def test_what_is_remembered_changes_nothing(parts: list[bytes], times: int) -> None:
    """Repeated messages among other lines, with damaged bytes, are read as if each were the first."""
    log = b"\n".join(parts * times)
    assert list(find_messages(io.BytesIO(log))) == list(find_messages(io.BytesIO(log), remembered=0))


@pytest.mark.parametrize(
    "name", ["pytorch-2.5-one-other", "broken-pytorch-assert", "slurm-new", "numba-alloc"]
)
def test_a_log_with_memory_in_every_line_is_read_to_its_end(name: str) -> None:
    vain = b"step %d memory allocated 12.3 GiB on CUDA device\n"
    log = b"".join(vain % step for step in range(3 * reader.MAX_IN_VAIN)) + MESSAGES[name].log
    found = cases(find_messages(io.BytesIO(log * 2))).cases
    assert [(case.reading, 2 * case.count) for case in MESSAGES[name].cases()] == [
        (case.reading, case.count) for case in found
    ]


@pytest.mark.parametrize("offset", [*range(-1500, 200, 170)])
def test_a_message_across_two_portions_is_one(offset: int) -> None:
    message = MESSAGES["pytorch-2.5-one-other"].log
    line = b"step 10 loss 2.13 lr 3e-4\n"
    filler = line * (reader.PORTION // len(line) + 1)
    at = reader.PORTION + offset
    log = filler[:at] + b"\n" + message + filler
    found = list(find_messages(io.BytesIO(log)))
    assert [seen.reading.dialect for seen in found] == ["pytorch"]
    assert found[0].line == log[: log.index(b"torch.OutOf")].count(b"\n") + 1


def test_many_different_messages_are_bounded() -> None:
    words = "CUDA out of memory. Tried to allocate {}.00 MiB (GPU 0; 8.00 GiB total capacity)\n"
    log = cases(find_messages(io.BytesIO("".join(map(words.format, range(1, 301))).encode())))
    assert (len(log.cases), log.unkept) == (200, 100)


FEED = """
import resource, sys
from vram.oom.cases import cases
from vram.oom.reader import find_messages
found = cases(find_messages(sys.stdin.buffer))
print(sum(case.count for case in found.cases), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def peak(megabytes: int, message: bytes) -> tuple[int, int]:
    """Pipe so much log through a child; return how many messages it saw, and its peak in KiB."""
    portion = (b"2026-11-15 05:00:01 INFO step=1 loss=2.1300 tokens/s=81234\n" * 20_000)[: 1 << 20] + b"\n"
    child = subprocess.Popen([sys.executable, "-c", FEED], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    for _ in range(megabytes):
        child.stdin.write(portion + message)
    out, _ = child.communicate()
    count, kib = map(int, out.split())
    return count, kib


@pytest.mark.parametrize("message", [b"", MESSAGES["pytorch-2.5-one-other"].log])
def test_a_long_log_takes_no_more_memory_than_a_short_one(message: bytes) -> None:
    few, low = peak(4, message)
    many, high = peak(96, message)
    assert (few, many) == ((4, 96) if message else (0, 0))
    assert high - low < 8 << 10


def test_a_line_without_end_is_no_obstacle() -> None:
    """Several errors on one line of megabytes, as JSON loggers write them, are all found."""
    one = MESSAGES["pytorch-2.5-one-other"].log.replace(b"\n", b"\\n")
    two = MESSAGES["pytorch-2.4-graphs"].log.replace(b"\n", b"\\n")
    log = b'{"log":"' + b"step " * 100_000 + one + b"step " * 100_000 + two + b"step " * 1000
    assert judged(log) == [("pytorch", "other-process"), ("pytorch", "cached")]


def test_a_message_that_a_terminal_broke_ends_where_it_ends() -> None:
    """The next one begins in the line after it, whatever the width."""
    words = MESSAGES["pytorch-2.5-one-other"].log.decode().splitlines()[-1]
    for width in range(30, 200, 7):
        broken = "\n".join(words[at : at + width] for at in range(0, len(words), width))
        if "Tried to allocate 1.95 GiB" not in broken:
            continue  # broken inside its first words, by which it is found
        found = cases(find_messages(io.BytesIO(f"{broken}\nKilled\n".encode()))).cases
        assert [case.judgement.kind for case in found] == ["other-process", "host"], width
        assert found[1].first_line == broken.count("\n") + 2
