"""Predicted times: what the model of a multiprocessor says about kernels whose limits are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from emulation import needs_compiler
from verbs import rung

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
    assert rung("count", *words, "--time", gpu, "--json") == 0
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


@pytest.mark.parametrize(("gpu", "code"), [("a100", "sm_80"), ("l4", "sm_89"), ("rtx4090", "sm_89"), ("rtx5090", "sm_120")])
def test_other_gpus_are_predicted_and_said_to_be_unchecked(
    gpu: str, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (found,) = predicted(capsys, "softmax/2", "--shape", "b4t64", gpu=gpu)
    assert found["code"] == code and found["constants"] == "published"
    assert found["checked_against_hardware"] is False and found["error"] is None and found["us"] > 1


def test_less_bandwidth_takes_longer(capsys: pytest.CaptureFixture[str]) -> None:
    a100, l4 = (predicted(capsys, "copy/4", "--shape", "N=8388608", gpu=gpu)[0]["us"] for gpu in ("a100", "l4"))
    assert 5 < l4 / a100 < 8  # 2039 and 300 GB/s


def test_a_kernel_that_the_gpu_cannot_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert rung("count", "matmul/20", "--shape", "b4t64", "--time", "a100") == 2 and "sm_80" in capsys.readouterr().err


def test_two_versions_are_compared_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    rung("count", "softmax/2", "--vs", "softmax/5", "--shape", "b4t64", "--time", "h200")
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("softmax/05") and "predicted" in said and "softmax/02" in said


def test_an_unknown_gpu_is_a_mistake_of_the_call(capsys: pytest.CaptureFixture[str]) -> None:
    assert rung("count", "copy/1", "--time", "GTX 480") == 2 and "h200" in capsys.readouterr().err


PROGRAM = """#include <cstdio>
__global__ void copy(const float* x, float* out)
{
    out[blockIdx.x * 256 + threadIdx.x] = x[blockIdx.x * 256 + threadIdx.x];
}
__global__ void never(float* x) { while (x[1] == 0.0f) {} }
int main()
{
    float *x, *out;
    cudaMalloc(&x, 4 << 24), cudaMalloc(&out, 4 << 24), cudaMemset(x, 0, 4 << 24);
    for (int blocks : {1, 100, 133, 1, 60000, 1}) copy<<<blocks, 256>>>(x, out);
    float last = 1;
    cudaMemcpy(&last, out + 59999 * 256, 4, cudaMemcpyDeviceToHost);
    printf("%f\\n", last);
    return 3;
}
"""


@pytest.mark.slow
def test_a_programs_launches_are_predicted_once_for_each_grid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "copies.cu"
    file.write_text(PROGRAM)
    (found,) = predicted(capsys, str(file))
    launches = found["launches"]
    assert [(one["blocks"], one["launches"]) for one in launches] == [(1, 3), (100, 1), (133, 1), (60000, 1)]
    us = [one["us"] for one in launches]
    assert max(us) == us[-1] and found["us"] == pytest.approx(sum(us) + 2 * us[0])
    bytes_moved = 60000 * 256 * 8
    assert 0.4 < bytes_moved / 4.8e6 / us[-1] < 1  # of the memory's rate
    file.write_text(PROGRAM.replace("copy<<<blocks, 256>>>(x, out)", "never<<<1, 1>>>(x)"))
    assert rung("count", str(file), "--time", "h200") == 2


@pytest.mark.slow
def test_copies_of_one_row_by_all_blocks_wait_for_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    """With one row of x each copy by a warp asks for that row's line many times; with a row for each it does not."""
    decode, rows = (
        predicted(capsys, "matmul/14", "--shape", shape, "--dtype", "f16")[0]["us"] for shape in ("decode", "b4t64")
    )
    assert decode > 1.15 * rows  # 1.18 measured: less work takes longer


CONTENDED = """
#include <vector>
template <int THREADS = 32> __global__ void one_warp(float* x) { x[blockIdx.x * THREADS + threadIdx.x] = 1; }
__global__ void histogram(const int* a, int* y) { atomicAdd(y + a[blockIdx.x * 256 + threadIdx.x], 1); }
__global__ void sum(float* y) { if (threadIdx.x == 0) atomicAdd(y, 1.0f); }
__global__ void apart(int* y) { atomicAdd(y + blockIdx.x * 256 + threadIdx.x, 1); }
__global__ void swap(int* y) { if (threadIdx.x == 0) atomicCAS(y, blockIdx.x, blockIdx.x + 1); }
int main()
{
    const int n = 1 << 22;
    std::vector<int> values(n);
    unsigned drawn = 9;
    for (int& one : values) drawn = drawn * 1664525u + 1013904223u, one = (drawn >> 8) % 97;
    int *a, *y;
    float* x;
    cudaMalloc(&a, n * 4), cudaMalloc(&y, n * 4), cudaMalloc(&x, n * 4);
    cudaMemset(y, 0, n * 4), cudaMemset(x, 0, n * 4), cudaMemcpy(a, values.data(), n * 4, cudaMemcpyHostToDevice);
    one_warp<<<8192, 32>>>(x);
    histogram<<<n / 256, 256>>>(a, y);
    sum<<<16385, 64>>>(x);
    apart<<<n / 256, 256>>>(y);
    swap<<<16385, 64>>>(y);
    cudaDeviceSynchronize();
}
"""


def test_atomics_and_blocks_of_a_program_as_a_profiler_measures_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Clocks of an H200 under Nsight Compute stand beside; the histogram's and the sum's are queues in L2."""
    file = tmp_path / "contended.cu"
    file.write_text(CONTENDED)
    (found,) = predicted(capsys, str(file), "--cold")
    assert found["class"] == "contended atomics"
    blocks, histogram, total, apart, swap = found["launches"]
    assert blocks["resident"] == 32  # a template whose arguments are not written out
    assert histogram["clocks"] == pytest.approx(1_867_349, rel=0.2)
    assert total["clocks"] == pytest.approx(60_000, rel=0.1)  # 3.48 clocks each, and the launch
    assert apart["clocks"] < 0.1 * histogram["clocks"] and apart["atomic_clocks"] < 0.1 * apart["clocks"]
    assert swap["not_modelled"] and not histogram["not_modelled"]


CONSTANTS = """
#include <vector>
__constant__ unsigned char table[256];
template <unsigned long MASK> __global__ void look_up(const unsigned long* x, int* out)
{
    const unsigned long v = x[blockIdx.x * 256 + threadIdx.x] & MASK;
    int sum = 0;
    for (int i = 0; i < 8; i++) sum += table[v >> 8 * i & 255];
    out[blockIdx.x * 256 + threadIdx.x] = sum;
}
int main()
{
    const int n = 1 << 20;
    std::vector<unsigned long> values(n);
    unsigned long drawn = 9, *x;
    for (unsigned long& one : values)
        drawn = drawn * 6364136223846793005ul + 1442695040888963407ul, one = drawn ^ drawn >> 29;
    int* out;
    cudaMalloc(&x, n * 8), cudaMalloc(&out, n * 4), cudaMemcpy(x, values.data(), n * 8, cudaMemcpyHostToDevice);
    look_up<0x0000000000000000><<<n / 256, 256>>>(x, out);  // of one byte
    look_up<0x0707070707070707><<<n / 256, 256>>>(x, out);  // of eight
    look_up<0x7fffffff7fffffff><<<n / 256, 256>>>(x, out);
    cudaDeviceSynchronize();
}
"""


def test_a_load_of_constants_takes_longer_the_more_bytes_its_lanes_ask_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "constants.cu"
    file.write_text(CONSTANTS)
    (found,) = predicted(capsys, str(file), "--cold")
    one, eight, many = (launch["clocks"] for launch in found["launches"])
    assert 2 * one < eight < many / 2
    assert many == pytest.approx(130_317, rel=0.1)  # of a program with the same loads, measured on an H200
