"""Numbers and layouts of the virtual CUPTI against NVIDIA's own headers, where a toolkit is installed."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.needs import needs

pytestmark = pytest.mark.native

ROOT = Path(__file__).resolve().parents[3]
VIRTUAL = ROOT / "native" / "virtualgpu"
HEADERS = next((path.parent for path in Path("/usr/local").glob("cuda*/include/cupti.h")), None)

needs_headers = needs("cuda-toolkit", there=HEADERS is not None, detail="there are no CUPTI headers")

# CUPTI's structures by the name of their fields, and ours.
STRUCTURES = {
    ("CUpti_CallbackData", "callback_data"): {
        "callbackSite": "site",
        "functionName": "function",
        "functionParams": "parameters",
        "functionReturnValue": "return_value",
        "symbolName": "symbol",
        "context": "context",
        "contextUid": "context_uid",
        "correlationData": "correlation_data",
        "correlationId": "correlation_id",
    },
    ("CUpti_ResourceData", "resource_data"): {
        "context": "context",
        "resourceHandle": "stream",
        "resourceDescriptor": "descriptor",
    },
}

NUMBERS = {
    "CUPTI_CB_DOMAIN_DRIVER_API": "DOMAIN_DRIVER",
    "CUPTI_CB_DOMAIN_RUNTIME_API": "DOMAIN_RUNTIME",
    "CUPTI_CB_DOMAIN_RESOURCE": "DOMAIN_RESOURCE",
    "CUPTI_CB_DOMAIN_SYNCHRONIZE": "DOMAIN_SYNCHRONIZE",
    "CUPTI_CB_DOMAIN_NVTX": "DOMAIN_NVTX",
    "CUPTI_CB_DOMAIN_STATE": "DOMAIN_STATE",
    "CUPTI_CB_DOMAIN_SIZE": "DOMAINS",
    "CUPTI_CBID_RESOURCE_CONTEXT_CREATED": "CONTEXT_CREATED",
    "CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING": "CONTEXT_DESTROY_STARTING",
    "CUPTI_CBID_RESOURCE_STREAM_CREATED": "STREAM_CREATED",
    "CUPTI_CBID_RESOURCE_STREAM_DESTROY_STARTING": "STREAM_DESTROY_STARTING",
    "CUPTI_CBID_RESOURCE_CU_INIT_FINISHED": "INIT_FINISHED",
    "CUPTI_API_ENTER": "SITE_ENTER",
    "CUPTI_API_EXIT": "SITE_EXIT",
}

# It has a number and no structure: cudaProfiler.h declares it, which the structures were not made from.
LISTED_ELSEWHERE = {"cuProfilerInitialize"}

PREAMBLE = """
#define __CUDA_API_VERSION_INTERNAL /* with the types of old functions */
#include <stddef.h>
#include <cupti_callbacks.h>
#include <cupti_driver_cbid.h>
#include <generated_cuda_meta.h>
#include "driver/callbacks.h"
#include "driver/signature.h"
typedef void *host_function, *stream_callback;
#define EQUAL(one, other) _Static_assert((one) == (other), #one " is not " #other)
#define SAME_FIELD(one, field, other, place) \\
    EQUAL(offsetof(one, field), offsetof(other, place)); \\
    EQUAL(sizeof(((one *)0)->field), sizeof(((other *)0)->place))
"""


def functions() -> dict[str, tuple[int, list[str]]]:
    """Every symbol of functions.h with its number and the types of its parameters."""
    text = (VIRTUAL / "driver" / "functions.h").read_text()
    found = {}
    for line in re.findall(r"^    X\((.*)\)(?: \\)?$", text, re.MULTILINE):
        _, _, symbol, number, *types = line.split(", ")
        if re.search(r"_pt[sd][zs]$", symbol) and types and types[0].startswith("cu"):
            types = types[1:]  # the function that it is another form of
        found[symbol] = int(number), types
    return found


def their_fields(headers: Path) -> dict[str, list[str]]:
    """Each function's parameters by name, as NVIDIA lists them; functions without any are not there."""
    text = (headers / "generated_cuda_meta.h").read_text()
    structures = re.findall(r"typedef struct (\w+)_params_st \{(.*?)\}", text, re.DOTALL)
    return {name: re.findall(r"(\w+)(?:\[\w*\])?;", fields) for name, fields in structures}


def compile_asserts(lines: list[str], folder: Path, headers: Path) -> None:
    source = folder / "asserts.c"
    source.write_text("\n".join([PREAMBLE, *lines, ""]))
    command = ["cc", "-std=gnu11", "-fsyntax-only", f"-I{headers}", f"-I{VIRTUAL}", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]


@needs_headers
def test_parameters_are_laid_out_as_cupti_lays_them_out(tmp_path: Path) -> None:
    assert HEADERS is not None
    known = (HEADERS / "cupti_driver_cbid.h").read_text()
    theirs = their_fields(HEADERS)
    lines, checked = [], 0
    for symbol, (number, types) in functions().items():
        if not re.search(rf"CBID_{symbol}\b", known):
            continue  # an older toolkit does not have it yet
        checked += 1
        lines.append(f"EQUAL(CUPTI_DRIVER_TRACE_CBID_{symbol}, {number});")
        if symbol in LISTED_ELSEWHERE:
            continue
        fields = theirs.get(symbol, [])
        assert len(fields) == len(types), f"{symbol} has the parameters {fields}, and not {types}"
        if not fields:
            continue
        lines.append(f"struct ours_{symbol} {{ FIELDS({', '.join(types)}) }};")
        lines.append(f"EQUAL(sizeof(struct ours_{symbol}), sizeof({symbol}_params));")
        for place, field in enumerate(fields):
            ours = f"a{len(fields) - place}"
            lines.append(f"SAME_FIELD({symbol}_params, {field}, struct ours_{symbol}, {ours});")
    assert checked > 400
    compile_asserts(lines, tmp_path, HEADERS)


@needs_headers
def test_structures_and_numbers_are_cuptis(tmp_path: Path) -> None:
    assert HEADERS is not None
    lines = [f"EQUAL((int){theirs}, (int){ours});" for theirs, ours in NUMBERS.items()]
    for (theirs, ours), fields in STRUCTURES.items():
        lines.append(f"EQUAL(sizeof({theirs}), sizeof(struct {ours}));")
        lines += [f"SAME_FIELD({theirs}, {a}, struct {ours}, {b});" for a, b in fields.items()]
    results = re.findall(r"X\((\d+), (CUPTI_\w+)\)", (VIRTUAL / "cupti" / "cupti.h").read_text())
    assert len(results) > 40
    known = (HEADERS / "cupti_result.h").read_text()
    lines += [f"EQUAL({name}, {number});" for number, name in results if re.search(rf"\b{name}\b", known)]
    compile_asserts(lines, tmp_path, HEADERS)


@needs_headers
@pytest.mark.parametrize("line", ["EQUAL(CUPTI_API_EXIT, 2);", "EQUAL(sizeof(cuMemAlloc_v2_params), 24);"])
def test_the_check_itself_fails_where_something_differs(tmp_path: Path, line: str) -> None:
    assert HEADERS is not None
    with pytest.raises(AssertionError, match="static assertion failed"):
        compile_asserts([line], tmp_path, HEADERS)
