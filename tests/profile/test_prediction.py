"""Predicted times: what the model of a multiprocessor says about kernels whose limits are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from emulation import needs_compiler
from rung.cli import main
from rung.emulator import timing

pytestmark = needs_compiler
CHAIN = """/*---
idea   = "A chain of loads before each copy."
dtypes = ["f32"]
[[launch]]
kernel = "copy"
grid   = "ceil_div(N, 256)"
block  = 256
---*/
extern "C" __global__ void copy(const float* x, float* out, int N)
{
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= N) return;
    int at = i;
    for (int k = 0; k < 16; ++k)
        at = (at + (x[at] == 7.0f) + 4096 * k) % N;  // waits here
    out[i] = x[at];
}
"""


def predicted(capsys: pytest.CaptureFixture[str], *words: str, gpu: str = "NVIDIA H200") -> list[dict[str, Any]]:
    with pytest.raises(SystemExit) as ended:
        main(["count", *words, "--time", gpu, "--json"])
    assert not ended.value.code
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["results"]
    return found


def test_a_prediction_says_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = predicted(capsys, "copy/1", "--shape", "n1m")
    assert found["source"] == "predicted" and found["gpu"] == "NVIDIA H200" and found["class"] == "plain"
    assert found["us"] > found["launches"][0]["clocks"] / 1.98e3 and "lines" in found["launches"][0]


def test_a_copy_is_as_fast_as_memory(capsys: pytest.CaptureFixture[str]) -> None:
    shape = ("--shape", "N=8388608")
    (h200,), (h100,) = (
        predicted(capsys, "copy/4", *shape),
        predicted(capsys, "copy/4", *shape, gpu="NVIDIA H100 80GB HBM3"),
    )
    assert 1.2 < h100["us"] / h200["us"] < 1.6


def test_one_thread_for_a_row_is_slower_than_a_warp(capsys: pytest.CaptureFixture[str]) -> None:
    naive, warp = predicted(capsys, "layernorm/1", "--vs", "layernorm/9", "--shape", "b4t64")
    assert naive["us"] > 20 * warp["us"]


def test_the_line_of_dependent_loads_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "chain.cu"
    file.write_text(CHAIN)
    (found,) = predicted(capsys, "copy", str(file), "--shape", "N=65536")
    lines = {line["line"]: line["stalls"] for line in found["launches"][0]["lines"]}
    slowest = max(lines, key=lambda line: sum(lines[line].values()))
    assert "waits here" in CHAIN.splitlines()[slowest - 1]
    assert max(lines[slowest], key=lambda name: lines[slowest][name]) == "long_scoreboard"


def test_an_unknown_gpu_is_a_mistake_of_the_call(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["count", "copy/1", "--time", "GTX 480"])
    assert ended.value.code == 2 and "h200" in capsys.readouterr().err


@pytest.mark.parametrize(("units", "places", "resident"), [(1, 132, 1), (100, 132, 4), (133, 132, 2), (70000, 132, 8)])
def test_samples_are_of_the_grid(units: int, places: int, resident: int) -> None:
    found = timing.sample(units, places, resident)
    assert found and len({*found}) == len(found) <= 26 and all(0 <= n < units for n in found)
