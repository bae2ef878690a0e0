"""What sends a thread through functions and back, on each processor: checked as bytes, on any of them."""

from __future__ import annotations

import hashlib
import random
import struct

import pytest

from vram.reach.machines import KNOWN, Call, ChainCode, Interrupted, aarch64, x86_64
from vram.reach.machines.machine import EINTR, RESTART_SYS, TEXT, Registers

FUNCTION, PATH = 0x7F00_1234_5678, b"/some/library.so\0"
SVC, NOP = b"\x01\x00\x00\xd4", b"\x1f\x20\x03\xd5"


def registers_of(name: str, chance: random.Random) -> Registers:
    names = x86_64._REGISTERS if name == "x86_64" else [*aarch64._NAMES, "tls"]
    values = {each: chance.getrandbits(64) for each in names}
    return {**values, KNOWN[name].frames.sp: chance.randrange(1 << 20, 1 << 47)}


def test_frames_of_x86_64_are_the_ones_that_were_measured() -> None:
    """The visits of docs/evidence were made with these bytes: 100 states, Python's chain and a library's."""
    chance, machine, digest = random.Random(1), KNOWN["x86_64"], hashlib.sha256()
    for _ in range(100):
        registers = registers_of("x86_64", chance)
        code = ChainCode(chance.getrandbits(47), (chance.getrandbits(47), chance.getrandbits(47)))
        floating, mask = chance.randbytes(512), chance.getrandbits(64)
        functions = [chance.getrandbits(47) for _ in range(4)]
        call = Interrupted(7, (), -516)
        python = (Call(functions[0]), Call(functions[1], (functions[2],)), Call(functions[3], (1,)))
        library = (Call(functions[0], (TEXT, 2)),)
        for restored, calls, text in (
            (machine.after_eintr(registers, call), python, b""),
            (machine.repeating(registers, call), library, PATH),
        ):
            detour = machine.detour(registers, restored, calls, code, floating, mask, text)
            digest.update(repr((detour.begins, detour.data, sorted(detour.registers.items()))).encode())
    assert digest.hexdigest() == "e81dfc509e66c037322c8e71ad761a6aa9d1b342b9bc0997c68e503fd5a60a83"


@pytest.mark.parametrize("name", KNOWN)
def test_nothing_in_use_is_written_to(name: str) -> None:
    machine, chance = KNOWN[name], random.Random(2)
    for _ in range(50):
        registers = registers_of(name, chance)
        code = ChainCode(0x1000, (0x2000, 0x3000))
        detour = machine.detour(registers, registers, (Call(FUNCTION, (TEXT, 2)),), code, bytes(528), 0, PATH)
        ends = detour.begins + len(detour.data)
        assert ends <= registers[machine.frames.sp] - 128
        assert detour.data.endswith(PATH)
        assert detour.registers[machine.frames.sp] == detour.begins


def test_on_aarch64_each_frame_leads_to_the_next_function() -> None:
    machine, chance = KNOWN["aarch64"], random.Random(3)
    registers = registers_of("aarch64", chance)
    floating, mask = chance.randbytes(528), chance.getrandbits(64)
    calls = (Call(0x1000), Call(0x2000, (TEXT,)), Call(0x3000, (1, 2)))
    detour = machine.detour(registers, registers, calls, ChainCode(0x9000), floating, mask, PATH)
    assert (detour.registers["pc"], detour.registers["x30"]) == (0x1000, 0x9000)
    at, text = detour.begins, detour.begins + len(detour.data) - len(PATH)
    states = []
    for _ in calls:
        assert at % 16 == 0
        frame = detour.data[at - detour.begins :][:1136]
        # Offsets of the kernel's struct rt_sigframe.
        assert struct.unpack_from("<Q", frame, 168) == (mask,)
        states.append(dict(zip(aarch64._NAMES, struct.unpack_from("<34Q", frame, 312), strict=True)))
        assert struct.unpack_from("<II", frame, 592) == (0x46508001, 528)
        assert frame[608:1120] == floating[:512]
        at += 1136
    assert [state["pc"] for state in states] == [0x2000, 0x3000, registers["pc"]]
    assert [state["x30"] for state in states] == [0x9000, 0x9000, registers["x30"]]
    assert (states[0]["x0"], states[1]["x0"], states[1]["x1"]) == (text, 1, 2)
    assert [state["sp"] for state in states[:2]] == [detour.begins + 1136, detour.begins + 2272]
    assert states[2] == {key: registers[key] for key in aarch64._NAMES}


@pytest.mark.parametrize(
    ("code", "first", "wanted"),
    [
        (NOP + SVC, 5, (RESTART_SYS, True)),  # before the call: it will be made once more
        (SVC + NOP, EINTR, (EINTR, False)),
        (SVC + NOP, 5, None),  # it has returned something else
        (NOP + NOP, EINTR, None),
    ],
)
def test_what_a_thread_is_in_on_aarch64(code: bytes, first: int, wanted: tuple[int, bool] | None) -> None:
    machine = KNOWN["aarch64"]
    registers = {**registers_of("aarch64", random.Random(4)), "x8": 73, "x0": first & (1 << 64) - 1}
    call = machine.interrupted(registers, lambda at, nbytes: code)
    assert (call and (call.result, call.first_known)) == wanted
    if call:
        after = machine.after_eintr(registers, call)
        assert after["pc"] == registers["pc"] + (4 if call.result == RESTART_SYS else 0)
        again = machine.repeating(registers, Interrupted(73, (3, 0, 0, 0, 0, 0), call.result))
        assert again["pc"] == registers["pc"] - (0 if call.result == RESTART_SYS else 4)
        assert again["x0"] == (5 if call.result == RESTART_SYS else 3)


def test_who_wakes_others_is_not_interrupted_on_aarch64() -> None:
    machine = KNOWN["aarch64"]
    wait, wake, private, realtime = 0, 1, 128, 256
    for operation, waits in (
        (wait, True),
        (wake, False),
        (9 | private | realtime, True),
        (wake | private, False),
    ):
        call = Interrupted(machine.futex, (0x7000, operation, 1, 0, 0, 0), RESTART_SYS)
        assert machine.waits_for_futex(call) is waits
