"""`rung check OP file.cu --call launcher`: host functions that launch kernels, judged like rungs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = r"""
#include <cstdio>
#include <cstdlib>
template <int PER> __global__ void gelu_kernel(float* out, const float* inp, int n)
{
    for (int k = 0; k < PER; k++) {
        int i = (blockIdx.x * blockDim.x + threadIdx.x) * PER + k;
        if (i < n) { float x = inp[i]; out[i] = 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x))); }
    }
}
__global__ void gelu_beyond(float* out, const float* inp, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = inp[i] + 1;
}
static void check(cudaError_t e) { if (e) printf("%s\n", cudaGetErrorString(e)), exit(1); }
void gelu_forward1(float* out, const float* inp, int N, const int block_size)
{
    gelu_kernel<1><<<(N + block_size - 1) / block_size, block_size>>>(out, inp, N);
    check(cudaGetLastError());
}
void gelu_forward2(float* out, const float* inp, int N, const int block_size)
{
    gelu_beyond<<<(N + block_size - 1) / block_size, block_size>>>(out, inp, N);
    check(cudaDeviceSynchronize());
}
void gelu_forward3(float* out, const float* inp, int N, const int block_size)
{
    gelu_kernel<2><<<N / (2 * block_size), block_size>>>(out, inp, N);  // leaves the end out
}
int main() { return 1; }
"""


def checked(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    source = folder / "gelu.cu"
    source.write_text(PROGRAM)
    command = [sys.executable, "-m", "rung", "check", "gelu", str(source), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=folder)


def test_launchers_of_a_file_are_judged_in_one_table(tmp_path: Path) -> None:
    ended = checked(tmp_path, "--call", "gelu_forward?", "--quick", "--with", "block_size=64", "--json")
    assert ended.returncode == 1, ended.stderr
    document = json.loads(ended.stdout)
    reports = {r["rung"]: r for r in document["results"]}
    wrong = {one["about"].partition(" ")[0]: one for one in document["findings"]}
    assert {name: r["verdict"] for name, r in reports.items()} == {
        "gelu/gelu_forward1": "ok",
        "gelu/gelu_forward2": "failed",
        "gelu/gelu_forward3": "failed",
    }
    assert wrong["gelu/gelu_forward2"]["kind"] == "bounds"
    assert wrong["gelu/gelu_forward2"]["place"]["kernel"] == "gelu_beyond"
    assert "past the end" in wrong["gelu/gelu_forward2"]["text"]
    assert wrong["gelu/gelu_forward3"]["kind"] == "values"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--call", "nothing"), "gelu_forward1, gelu_forward2, gelu_forward3"),
        (("--call", "gelu_forward1", "--with", "blocks=4"), "blocks"),
    ],
)
def test_names_that_a_file_does_not_have_are_refused(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    ended = checked(tmp_path, *words)
    assert ended.returncode == 2
    assert said in ended.stderr


@pytest.mark.slow
def test_a_right_launcher_passes_every_check(tmp_path: Path) -> None:
    ended = checked(tmp_path, "--call", "gelu_forward1")
    assert ended.returncode == 0, ended.stdout + ended.stderr
