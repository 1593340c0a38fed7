"""`gpuless run --precision`: errors of stored numbers, beside numpy in float64."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow
COUNT = 512
KERNELS = """#include <cuda_fp16.h>
#include <stdio.h>
__global__ void sum(const float* x, float* out)
{
    float all = 0;
    for (int i = 0; i < 512; i++) all += x[i];  // large ones that cancel
    *out = all;
}
__global__ void variance(const float* x, float* out)
{
    __shared__ float parts[2][16];
    float a = x[threadIdx.x], b = a * a;
    for (int by = 16; by; by /= 2) {
        a += __shfl_xor_sync(~0u, a, by);
        b += __shfl_xor_sync(~0u, b, by);
    }
    if (threadIdx.x % 32 == 0) parts[0][threadIdx.x / 32] = a, parts[1][threadIdx.x / 32] = b;
    __syncthreads();
    if (threadIdx.x) return;
    float mean = 0, square = 0;
    for (int i = 0; i < 16; i++) mean += parts[0][i], square += parts[1][i];
    mean /= 512, square /= 512;
    *out = square - mean * mean;  // naive
}
__global__ void halves(const float* x, __half* out)
{
    __half all = 0;
    for (int i = 0; i < 512; i++) all = __hadd(all, __float2half(x[i]));  // sticks
    *out = all;
}
__global__ void exponential(const float* x, float* out) { out[threadIdx.x] = expf(x[threadIdx.x]) / (1 + x[threadIdx.x]); }
"""
MAIN = """int main()
{
    static float host[512];
    fread(host, 4, 512, fopen("x.bin", "rb"));
    float *x, *out;
    cudaMalloc(&x, 2048), cudaMalloc(&out, 2048);
    cudaMemcpy(x, host, 2048, cudaMemcpyHostToDevice);
    CALL;
    cudaDeviceSynchronize();
    cudaFree(x), cudaFree(out);
}
"""


def told(folder: Path, numbers: np.ndarray, call: str) -> list[dict[str, Any]]:
    numbers.astype(np.float32).tofile(folder / "x.bin")
    (folder / "main.cu").write_text(KERNELS + MAIN.replace("CALL", call))
    command = [sys.executable, "-m", "gpuless", "run", "--json", "--precision", "main.cu"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    document = json.loads(done.stdout)
    assert document["verdict"] == "ok", document["findings"]
    found: list[dict[str, Any]] = document["precision"]
    return found


def line_of(part: str) -> int:
    return next(n for n, line in enumerate(KERNELS.splitlines(), 1) if part in line)


def test_a_sum_whose_terms_cancel(tmp_path: Path) -> None:
    x = (np.random.default_rng(0).standard_normal(COUNT) * 1e4).astype(np.float32)
    x[COUNT // 2 :] = -x[: COUNT // 2] + np.random.default_rng(1).random(COUNT // 2).astype(np.float32) * 1e-3
    (one,) = told(tmp_path, x, "sum<<<1, 1>>>(x, out)")
    exact, rounded = x.astype(np.float64).sum(), np.cumsum(x, dtype=np.float32)[-1]
    assert one["exact"] == pytest.approx(exact, rel=1e-12) and one["stored"] == pytest.approx(rounded, rel=1e-7)
    assert one["error"] == pytest.approx(abs(rounded - exact) / abs(exact), rel=1e-6) and one["error"] > 1e-4
    assert one["place"]["line"] == line_of("*out = all;") and one["arose"] == f"main.cu:{line_of('that cancel')}"


def test_a_naive_variance(tmp_path: Path) -> None:
    x = (1000 + np.random.default_rng(2).standard_normal(COUNT)).astype(np.float32)
    worst, *others = told(tmp_path, x, "variance<<<1, 512>>>(x, out)")
    assert worst["exact"] == pytest.approx(x.astype(np.float64).var(), rel=1e-9) and worst["error"] > 1e-3
    assert worst["place"]["line"] == line_of("// naive") and worst["arose"] == f"main.cu:{line_of('// naive')}"
    assert len(others) >= 1 and max(one["error"] for one in others) < 1e-6  # the sums in shared memory


def test_an_accumulation_in_fp16(tmp_path: Path) -> None:
    x = (10 + np.random.default_rng(3).random(COUNT)).astype(np.float32)
    (one,) = told(tmp_path, x, "halves<<<1, 1>>>(x, (__half*)out)")
    rounded = np.float16(0)
    for value in x.astype(np.float16):
        rounded = np.float16(rounded + value)
    exact = x.astype(np.float64).sum()
    assert one["exact"] == pytest.approx(exact, rel=1e-12) and one["stored"] == float(rounded) and one["error"] > 1e-3
    assert one["error"] == pytest.approx(abs(float(rounded) - exact) / exact)
    assert one["arose"] == f"main.cu:{line_of('// sticks')}"


def test_what_the_compiler_rounds_on_purpose_is_no_error(tmp_path: Path) -> None:
    x = np.linspace(0, 20, COUNT)
    (one,) = told(tmp_path, x, "exponential<<<1, 512>>>(x, out)")
    assert one["error"] < 4 * 2**-23
