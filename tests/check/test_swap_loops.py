"""Rows whose parts are added by loops of compare-and-swap that read plainly first: that read is no race with the swaps,
unless what it has read is used without them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from emulation import needs_compiler

KERNEL = """/*---
idea = "Blocks add their parts of a row by compare-and-swap."
dtypes = ["f32"]
zeroed = ["out"]
[buffers.firsts]
shape = ["B", 4]
dtype = "f32"
[[launch]]
kernel = "reduce"
grid = ["B", 4]
block = 32
---*/
__device__ float add(float* at, float by)
{
    int* const bits = (int*)at;
    int first = *bits, old = first, assumed;
    do {
        assumed = old;
        old = atomicCAS(bits, assumed, __float_as_int(by + __int_as_float(assumed)));
    } while (assumed != old);
    return __int_as_float(RETURNED);
}
extern "C" __global__ void reduce(const float* x, float* out, float* firsts, int N)
{
    float sum = 0.0f;
    for (int n = blockIdx.y * 32 + threadIdx.x; n < N; n += 128) sum += x[(long long)blockIdx.x * N + n];
    for (int s = 16; s; s /= 2) sum += __shfl_xor_sync(~0u, sum, s);
    if (threadIdx.x == 0) firsts[blockIdx.x * 4 + blockIdx.y] = add(out + blockIdx.x, sum);
}
"""


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(("returned", "verdict"), [("old", "ok"), ("first", "failed")])
def test_the_first_read_of_a_swap_loop_may_reach_the_swap_alone(returned: str, verdict: str, tmp_path: Path) -> None:
    path = tmp_path / "own.cu"
    path.write_text(KERNEL.replace("RETURNED", returned))
    command = [sys.executable, "-m", "rung", "check", "reduce", str(path), "--device", "emulator", "--json"]
    told = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
    assert told["verdict"] == verdict, told
    assert [finding["kind"] for finding in told["findings"]] == (["race"] if verdict == "failed" else [])
