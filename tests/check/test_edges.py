"""Numbers where a formula has an edge: a kernel that is wrong only there is refused, and its right twin passes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from emulation import needs_compiler

TESTS = Path(__file__).parents[1]
MISTAKES = tomllib.loads((TESTS / "broken" / "classes.toml").read_text())["class"]["rows of zeros, ties, -inf"]
EDGES = ("rows of zeros", "scores far below zero", "constant rows", "leading -inf", "equally likely", "greedy among equals")
FEW = ("rmsnorm",)  # of which the others are slow


def checked(operation: str, text: str, folder: Path, beside: Path, dtype: str = "f32") -> dict[str, Any]:
    for header in beside.glob("*.cuh"):
        shutil.copy(header, folder)
    path = folder / "own.cu"
    path.write_text(text)
    words = [operation, path, "--dtype", dtype, "--device", "emulator", "--json"]
    command = [sys.executable, "-m", "rung", "check", *map(str, words)]
    told: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
    return told


def each() -> list[Any]:
    found = []
    for number, of in enumerate(MISTAKES):
        marks = [] if of["operation"] in FEW else [pytest.mark.slow]
        found.append(pytest.param(of, id=f"{of['operation']}{number}", marks=marks))
    return found


@needs_compiler
@pytest.mark.parametrize("of", each())
def test_a_mistake_at_an_edge_only_is_refused(of: dict[str, str], tmp_path: Path) -> None:
    text = (TESTS / of["file"]).read_text().replace(of["before"], of["after"], 1)
    told = checked(of["operation"], text, tmp_path, (TESTS / of["file"]).parent, of.get("dtype", "f32"))
    assert told["verdict"] == "failed", told
    assert all(finding["case"]["name"].split(", at")[0] in EDGES for finding in told["findings"]), told


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((TESTS / "broken" / "edges").glob("*.cu")), ids=lambda path: path.stem)
def test_its_twin_is_right(path: Path, tmp_path: Path) -> None:
    told = checked(path.stem, path.read_text(), tmp_path, path.parent)
    assert told["verdict"] == "ok", told


SHORT = """/*---
idea = "Rows of a table."
needs = ["wpe == 0", "start == 0"]
bind = { ids = "tokens", table = "wte", N = "B * T" }
[[launch]]
kernel = "embedding_kernel"
grid = "ceil_div(B * T * C, 256)"
block = 256
---*/
__global__ void embedding_kernel(float* out, const int* ids, const float* table, int N, int C) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= N * C) return;
  INDEX id = ids[i / C];
  out[i] = table[id * C + i % C];
}
"""


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(("index", "kinds"), [("short", ["bounds"]), ("int", [])])
def test_numbers_of_a_case_that_a_kernel_refuses_are_given_to_it_with_scalars_that_it_takes(
    index: str, kinds: list[str], tmp_path: Path
) -> None:  # no positions: the cases with many tokens begin late, which it refuses
    told = checked("embedding", SHORT.replace("INDEX", index), tmp_path, tmp_path)
    assert [finding["kind"] for finding in told["findings"]] == kinds, told


ONLINE = (TESTS / "foreign" / "softmax_online.cu").read_text()
HEADER = """/*---
idea = "The maximum and the sum in one pass, without a thought of -inf."
needs = ["scale == 1", "not causal"]
KEY
bind = { inp = "x", N = "B * NH * T", C = "S" }
[[launch]]
kernel = "softmax_forward_online_kernel"
grid = "ceil_div(B * NH * T, 4)"
block = 128
---*/
"""


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(("key", "verdict"), [("", "failed"), ("only_finite = true", "ok")])
def test_nan_in_rows_that_begin_with_infinity_is_admitted_by_a_key(key: str, verdict: str, tmp_path: Path) -> None:
    told = checked("softmax", HEADER.replace("KEY", key) + ONLINE, tmp_path, tmp_path)
    assert told["verdict"] == verdict, told


@pytest.mark.slow
@needs_compiler
def test_of_a_file_of_others_it_is_a_note(tmp_path: Path) -> None:
    told = checked("softmax", ONLINE, tmp_path, tmp_path)
    assert told["verdict"] == "ok" and "only_finite = true" in json.dumps(told), told
