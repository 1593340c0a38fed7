"""Million warp instructions that the machine executes per CPU second: usual kernels, plain, counting, with races.

    python benchmarks/machine_speed.py [--output FILE] [KERNEL ...]

The best of three launches each, compiled before.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

import gpuless
from rung.results import machine, store
from rung.results.row import Row

SOURCE = """
extern "C" __global__ void fma_registers(float* out, int n)
{
    float a = threadIdx.x, b = a + 1, c = a + 2, d = a + 3;
    for (int i = 0; i < n; i++) {
        a = a * 0.999f + b, b = b * 0.999f + c, c = c * 0.999f + d, d = d * 0.999f + a;
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = a + b + c + d;
}

extern "C" __global__ void tiled(const float* a, const float* b, float* out, int n)
{
    __shared__ float left[32][32], right[32][32];
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 32 + y, column = blockIdx.x * 32 + x;
    float sum = 0;
    for (int k = 0; k < n; k += 32) {
        left[y][x] = a[row * n + k + x], right[y][x] = b[(k + y) * n + column];
        __syncthreads();
        for (int i = 0; i < 32; i++) sum += left[y][i] * right[i][x];
        __syncthreads();
    }
    out[row * n + column] = sum;
}

extern "C" __global__ void naive(const float* a, const float* b, float* out, int n)
{
    int row = blockIdx.y * blockDim.y + threadIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n || column >= n) return;
    float sum = 0;
    for (int k = 0; k < n; k++) sum += a[row * n + k] * b[k * n + column];
    out[row * n + column] = sum;
}

extern "C" __global__ void addition(const float* a, const float* b, float* out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a[i] + b[i];
}

extern "C" __global__ void reduction(const float* x, float* out, int n)
{
    __shared__ float part[256];
    float sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += x[i];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int by = 128; by; by /= 2) {
        if (threadIdx.x < by) part[threadIdx.x] += part[threadIdx.x + by];
        __syncthreads();
    }
    if (!threadIdx.x) out[blockIdx.x] = part[0];
}
"""
PRODUCT, NUMBERS = 512, 1 << 24
# Grid, block, the length of each input, of the output, and n.
KERNELS: dict[str, tuple[Any, Any, list[int], int, int]] = {
    "fma_registers": (64, 256, [], 64 * 256, 2048),
    "tiled": ((16, 16), (32, 32), [PRODUCT**2] * 2, PRODUCT**2, PRODUCT),
    "naive": ((32, 32), (16, 16), [PRODUCT**2] * 2, PRODUCT**2, PRODUCT),
    "addition": (NUMBERS // 256, 256, [NUMBERS] * 2, NUMBERS, NUMBERS),
    "reduction": (512, 256, [NUMBERS], 512, NUMBERS),
}
MODES = ("plain", "counts", "races")


def rate(kernel: str, mode: str) -> float:
    grid, block, inputs, length, n = KERNELS[kernel]
    module = gpuless.compile_cuda(SOURCE)
    session = gpuless.Session(races=mode == "races", counts=mode == "counts", seconds=600.0)
    random = np.random.default_rng(1)
    given: list[Any] = [session.memory(random.random(size, np.float32)) for size in inputs]
    given += [session.memory(np.zeros(length, np.float32)), n]
    best = 0.0
    for _ in range(3):
        before, began = session.steps, time.process_time()
        session.launch(module[kernel], grid, block, given)
        best = max(best, (session.steps - before) / (time.process_time() - began) / 1e6)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", nargs="*", default=[], help=f"of {', '.join(KERNELS)}")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    metrics: dict[str, float] = {}
    print(f"{'M warp instructions / CPU s':28}", *(f"{mode:>8}" for mode in MODES))
    for kernel in given.kernels or KERNELS:
        rates = {mode: rate(kernel, mode) for mode in MODES}
        metrics |= {f"{kernel}_{mode}": value for mode, value in rates.items()}
        print(f"{kernel:28}", *(f"{value:8.1f}" for value in rates.values()), flush=True)
    if given.output:
        facts = {**machine.facts(), "gpu": ""}
        row = Row(kind="study", what="machine/speed", verdict="ok", metrics=metrics, machine=facts)
        store.append(row, given.output)


if __name__ == "__main__":
    main()
