"""What nothing has written may be read, moved, computed with and kept on the chip: a fault is its use, by a branch, an
address, an atomic, a store to global memory or printf."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

UNUSED = """
// Threads beyond the end have written nothing; what they add is not used.
__global__ void sum(const float* x, float* out, int n)
{
    __shared__ float s[128];
    if (threadIdx.x < n) s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    for (int by = 32; by; by >>= 1) {
        const float a = s[threadIdx.x % 64 + by];
        __syncthreads();
        if (threadIdx.x < 64) s[threadIdx.x] += a;
        __syncthreads();
    }
    if (threadIdx.x == 0) out[0] = s[0];
}
// A merge reads behind the last key of either list.
__global__ void merge(const int* a, const int* b, int* out, int na, int nb)
{
    __shared__ int s[64];
    if (threadIdx.x < na) s[threadIdx.x] = a[threadIdx.x];
    if (threadIdx.x < nb) s[32 + threadIdx.x] = b[threadIdx.x];
    __syncthreads();
    if (threadIdx.x) return;
    int i = 0, j = 32, x = s[i], y = s[j];
    for (int k = 0; k < na + nb; k++) {
        const bool p = j < 32 + nb && (i >= na || y < x);
        out[k] = p ? y : x;
        if (p) y = s[++j]; else x = s[++i];
    }
}
__global__ void shuffle(const float* x, float* out, int n)
{
    __shared__ float s[128];
    if (threadIdx.x < n) s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    const float a = s[threadIdx.x], b = __shfl_down_sync(~0u, a, 1), c = __shfl_xor_sync(~0u, a, 16);
    const float m = fmaxf(b, c) * 2;
    if (threadIdx.x + 17 < n && threadIdx.x < 8) out[threadIdx.x] = m;
}
int main()
{
    float *x, *out;
    int* a;
    cudaMallocManaged(&x, 512), cudaMallocManaged(&out, 512), cudaMallocManaged(&a, 512);
    for (int i = 0; i < 128; i++) x[i] = i, a[i] = i;
    sum<<<1, 128>>>(x, out, 100);
    cudaDeviceSynchronize();
    if (out[0] != 63 * 64 / 2) return 1;
    merge<<<1, 32>>>(a, a + 3, (int*)out, 7, 9);
    shuffle<<<1, 64>>>(x, out + 32, 40);
    cudaDeviceSynchronize();
    for (int i = 0; i < 8; i++)
        if (((int*)out)[i] != (i < 3 ? i : (i + 3) / 2) || out[32 + i] != 2 * (i + 16)) return 2;
    cudaFree(x), cudaFree(out), cudaFree(a);
}
"""

USES = {
    "stored": "out[threadIdx.x] = a + 1;",
    "compared": "if (b == 7) out[0] = 1;",
    "address": "out[b & 7] = 1;",
    "kept before": "s[threadIdx.x] = a * 2; __syncthreads(); out[threadIdx.x] = s[threadIdx.x ^ 64];",
    "atomic": "atomicAdd(out, a);",
    "printed": 'if (threadIdx.x == 127) printf("%d", b);',
    "shuffled": "float t = a + __shfl_xor_sync(~0u, a, 16); if (threadIdx.x % 32 == 0) out[threadIdx.x / 32] = t;",
    "voted": "if (__any_sync(~0u, b == 3)) out[1] = 2;",
    "global": "out[threadIdx.x] = flag[threadIdx.x] == 5;",
    "global double": "if (((double*)flag)[threadIdx.x / 2] == 1.5) out[0] = 1;",
}


def run(source: Path, *arguments: str) -> dict[str, object]:
    command = [sys.executable, "-m", "gpuless", "run", str(source), "--json", "--", *arguments]
    found: dict[str, object] = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
    return found


def test_numbers_that_nothing_has_written_may_be_computed_with(tmp_path: Path) -> None:
    (tmp_path / "unused.cu").write_text(UNUSED)
    document = run(tmp_path / "unused.cu")
    assert (document["exit"], document["findings"]) == (0, [])


def test_a_load_of_several_words_may_reach_behind_an_array_whose_other_words_are_not_used(tmp_path: Path) -> None:
    (tmp_path / "three.cu").write_text(
        """__global__ void k(int* out)
{
    __shared__ alignas(16) int s[3];
    if (threadIdx.x < 3) s[threadIdx.x] = threadIdx.x + 1;
    __syncthreads();
    out[threadIdx.x] = s[0] + s[1] + s[2];
}
int main() { int* out; cudaMalloc(&out, 128); k<<<1, 32>>>(out); return cudaDeviceSynchronize() ? 1 : cudaFree(out); }
"""
    )
    assert run(tmp_path / "three.cu")["findings"] == []


@pytest.mark.slow
def test_each_use_of_a_number_that_nothing_has_written_is_told_at_its_read(tmp_path: Path) -> None:
    cases = "".join(f"    if (how == {i})\n    {{ {code} }}\n" for i, code in enumerate(USES.values()))
    source = tmp_path / "uses.cu"
    source.write_text(
        f"""#include <cstdio>
#include <cstdlib>
__global__ void k(float* out, int* flag, int how, int n)
{{
    __shared__ float s[128];
    __shared__ int f[128];
    if (threadIdx.x < n) s[threadIdx.x] = 1, f[threadIdx.x] = 1;
    __syncthreads();
    const float a = s[threadIdx.x]; const int b = f[threadIdx.x];
{cases}}}
int main(int, char** given)
{{
    float* out; int* flag;
    cudaMalloc(&out, 512), cudaMalloc(&flag, 512), cudaMemset(out, 0, 512);
    k<<<1, 128>>>(out, flag, atoi(given[1]), 100);
    cudaDeviceSynchronize(), cudaFree(out), cudaFree(flag);
}}
"""
    )
    for number, name in enumerate(USES):
        document = run(source, str(number))
        (one,) = document["findings"]
        line = 11 + 2 * number if name.startswith("global") else 9
        assert (one["kind"], one["place"]["line"]) == ("unwritten", line), (name, one)
