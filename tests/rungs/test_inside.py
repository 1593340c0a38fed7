"""Kernels that time themselves: what a header says of them, how cycles become seconds, and the build that counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from gpuless.compile import nvrtc
from rung.cli import console
from rung.dtypes import dtype
from rung.errors import RungError
from rung.profile import stopwatch
from rung.rungs import catalogue
from rung.rungs.cuda import CudaRung
from rung.show import profile_tables
from sanitize import SANITIZED
from verbs import rung

HEADER = """/*---
idea = "counts"
[buffers.spent]
shape = ["1", "3", "2"]
dtype = "i32"
zero = "once"
[inside]
counter = "spent"
columns = ["waiting", "work"]
rows = [["one", "other"], ["copies"]]
[[launch]]
kernel = "twice"
grid = "1"
block = "32"
---*/
#include "stopwatch.cuh"
extern "C" __global__ void twice(const Real* x, Real* out, int* spent, int N)
{
    const bool copies = threadIdx.x == 1;
    const int first = copies ? 2 : 0, last = copies ? 2 : 1;
    Stopwatch<3, 2> watch(threadIdx.x < 2, first, last, 0);
    watch.start(1);
    for (int i = threadIdx.x; i < N; i += 32) out[i] = x[i];
    if (!copies) watch.start(1, 0);
    watch.stop(spent, first, last);
}
"""


def counting(folder: Path, text: str = HEADER) -> CudaRung:
    path = folder / "twice.cu"
    path.write_text(text)
    rung = catalogue.rung_from_file(catalogue.operation("copy"), path)
    assert isinstance(rung, CudaRung)
    return rung


def test_cycles_become_seconds_of_the_thread_that_ran_longest(tmp_path: Path) -> None:
    counted = torch.tensor([[[100, 300], [0, 600], [500, 400]], [[200, 300], [0, 100], [0, 300]]]) * stopwatch.CALLS
    found = stopwatch.table(counting(tmp_path), counted, 9e-6, 10e-6)  # 1000 cycles are 10 us
    assert found.blocks == 2 and found.seconds == 9e-6
    assert [x for row in found.spent for x in row] == pytest.approx([1.5e-6, 3e-6, 0, 3.5e-6, 2.5e-6, 3.5e-6])
    (one, other), (copies,) = found.groups()
    assert (one[0], other[0], copies[0]) == ("one", "other", "copies")
    assert sum(one[1]) + sum(other[1]) == pytest.approx(8e-6)


def test_the_table_adds_up_what_a_thread_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counted = torch.tensor([[[100, 300], [0, 600], [500, 500]]]) * stopwatch.CALLS
    console.show(profile_tables.inside(stopwatch.table(counting(tmp_path), counted, 9e-6, 10e-6)))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["one", "1.0", "3.0", "4.0", "40.0%"] in lines and ["other", "6.0", "6.0", "60.0%"] in lines
    assert ["together", "1.0", "9.0", "10.0", "100.0%"] in lines
    assert ["copies", "5.0", "5.0", "10.0", "100.0%"] in lines


def test_a_counter_of_another_shape_or_an_empty_one_is_a_sentence(tmp_path: Path) -> None:
    rung = counting(tmp_path)
    with pytest.raises(RungError, match=r"spent is \(1, 2, 2\); \[inside\] says \(blocks, 3, 2\)"):
        stopwatch.table(rung, torch.ones(1, 2, 2), 1.0, 1.0)
    with pytest.raises(RungError, match="counted nothing"):
        stopwatch.table(rung, torch.zeros(1, 3, 2), 1.0, 1.0)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (('counter = "spent"', 'counter = "time"'), r"inside.counter = 'time' is not a buffer"),
        (('rows = [["one", "other"], ["copies"]]', 'rows = ["one"]'), "inside.rows is not a list with a list"),
        (('columns = ["waiting"', 'names = ["waiting"'), "inside has an unknown key 'names'"),
    ],
)
def test_a_wrong_header_is_a_sentence(tmp_path: Path, change: tuple[str, str], complaint: str) -> None:
    with pytest.raises(RungError, match=complaint):
        counting(tmp_path, HEADER.replace(*change))


def test_only_the_build_that_is_asked_for_counts(tmp_path: Path) -> None:
    rung = counting(tmp_path)
    values = rung.operation.complete({"N": 64})
    usual, timed = (nvrtc.compile_cubin(r.build(values, dtype("f32")), "sm_90") for r in (rung, rung.built_for(stopwatch.TIMED)))
    assert usual.resources["twice"].static_shared == 0 and timed.resources["twice"].static_shared == 3 * 2 * 4
    assert not any(name.startswith("RUNG_T") for name, _ in rung.build(values, dtype("f32")).defines)


@pytest.mark.slow
@pytest.mark.parametrize("purpose", [stopwatch.TIMED, SANITIZED])
def test_the_step_in_one_kernel_compiles_for_the_tools(purpose: str) -> None:
    rung = catalogue.find("decode/pacing")
    assert isinstance(rung, CudaRung) and rung.header.inside is not None
    values = rung.operation.complete(next(c for c in rung.operation.cases if c.name == "keys in several parts").values)
    both = [nvrtc.compile_cubin(r.build(values, dtype("bf16")), "sm_90") for r in (rung, rung.built_for(purpose))]
    assert both[0].key != both[1].key and both[1].spilling == ()


@pytest.mark.gpu
@pytest.mark.alone
def test_a_kernel_counts_its_own_time(tmp_path: Path) -> None:
    rung = counting(tmp_path)
    values = rung.operation.complete({"N": 1 << 20})
    x = torch.randn(1 << 20, device="cuda")  # by one warp: 5 ms
    tensors = {"x": x, "out": torch.empty_like(x)}
    found = stopwatch.of(rung, tensors, values, dtype("f32"))
    assert found is not None and torch.equal(tensors["out"], x)
    (one, _), (copies,) = found.groups()
    assert found.blocks == 1 and found.timed_seconds < 1.2 * found.seconds
    assert one[1][1] > 0.9 * found.timed_seconds and copies[1][1] > 0.9 * found.timed_seconds
    assert stopwatch.of(catalogue.find("copy/1"), tensors, values, dtype("f32")) is None


@pytest.mark.gpu
@pytest.mark.alone
def test_the_fastest_rung_says_where_its_step_goes(capsys: pytest.CaptureFixture[str]) -> None:
    assert rung("profile", "generate", "--device", "cuda", "--model", "random:gpt2-medium", "-n", "16", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    found = answer["detail"]["inside"]
    assert found["rung"] == "decode/14_pacing" and found["blocks"] > 100
    of_first_thread = sum(map(sum, found["spent"][:6]))
    assert found["default_tuning"]  # with the values tuned for gpt2-medium, twelve warps, the timers' registers spill
    assert 0.8 * found["timed_seconds"] < of_first_thread <= 1.001 * found["timed_seconds"]
    assert found["seconds"] < 1.2 * found["timed_seconds"] < 1.5 * found["seconds"]
    weights = found["columns"].index("weights")
    assert all(row[weights] > 0 for row in found["spent"][:5])
