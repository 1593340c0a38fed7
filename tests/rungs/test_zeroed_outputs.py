"""A kernel that reads its output, or adds to it, says so: the output then starts as zeros."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from emulation import needs_compiler
from rung.errors import RungError
from rung.exchange.standalone import standalone
from rung.rungs import catalogue

HEADER = """/*---
idea = "x"
{key}
[bind]
N = "OC"
K = "C"
A = "x"
B = "weight"
C = "out"
[[launch]]
kernel = "sgemm"
grid = "B * T"
block = 64
---*/
"""
SGEMM = """__global__ void sgemm(int N, int K, const float* A, const float* B, float beta, float* C) {
    for (int n = threadIdx.x; n < N; n += blockDim.x) {
        float sum = 0.0f;
        for (int k = 0; k < K; ++k) sum += A[blockIdx.x * K + k] * B[n * K + k];
        C[blockIdx.x * N + n] = sum + beta * C[blockIdx.x * N + n];
    }
}
"""
ADDS = """__global__ void row_sums(const float* x, float* out, int N) {
    for (int i = threadIdx.x; i < N; i += blockDim.x) atomicAdd(&out[blockIdx.x], x[(long)blockIdx.x * N + i]);
}
"""
OVERWRITES = SGEMM.replace(" + beta * C[blockIdx.x * N + n]", "")
SUMS = """__global__ void row_sums(const float* x, float* out, int N) {
    float sum = 0.0f;
    for (int i = 0; i < N; ++i) sum += x[(long)blockIdx.x * N + i];
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}
"""
TOLD = 'add zeroed = ["out"]'


def rung_line(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "rung", *map(str, words)], capture_output=True, text=True)


def sgemm(folder: Path, key: str = "") -> Path:
    path = folder / "sgemm.cu"
    path.write_text(HEADER.format(key=key).replace("[bind]\n", "[bind]\nbeta = 0.0\n") + SGEMM)
    return path


@needs_compiler
@pytest.mark.slow
def test_a_failure_by_a_read_output_names_the_key_that_mends_it(tmp_path: Path) -> None:
    refused = rung_line("check", "matmul", sgemm(tmp_path), "--quick")
    assert refused.returncode == 1 and TOLD in refused.stdout
    assert rung_line("check", "matmul", sgemm(tmp_path, 'zeroed = ["out"]'), "--quick").returncode == 0


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(("text", "once", "operation"), [(SGEMM, OVERWRITES, "matmul"), (ADDS, SUMS, "reduce")])
def test_the_proposed_header_has_the_key_where_the_kernel_needs_it(
    text: str, once: str, operation: str, tmp_path: Path
) -> None:
    path = tmp_path / "own.cu"
    path.write_text(text)
    assert 'zeroed = ["out"]' in rung_line("check", operation, path, "--quick").stderr
    path.write_text(once)
    assert "zeroed" not in rung_line("check", operation, path, "--quick").stderr


@needs_compiler
@pytest.mark.slow
def test_an_output_that_nothing_writes_is_not_one_that_is_read(tmp_path: Path) -> None:
    path = sgemm(tmp_path)
    path.write_text(path.read_text().replace("C[blockIdx.x * N + n] = sum", "if (n) C[blockIdx.x * N + n] = sum"))
    refused = rung_line("check", "matmul", path, "--quick")
    assert refused.returncode == 1 and TOLD not in refused.stdout


def test_only_outputs_may_be_named(tmp_path: Path) -> None:
    with pytest.raises(RungError, match="zeroed names 'x'; the outputs of matmul are out"):
        catalogue.rung_from_file(catalogue.operation("matmul"), sgemm(tmp_path, 'zeroed = ["x"]'))


def test_an_exported_file_zeroes_the_output_too(tmp_path: Path) -> None:
    path = sgemm(tmp_path, 'zeroed = ["out"]')
    path.write_text(path.read_text().replace("__global__", 'extern "C" __global__'))
    rung = catalogue.rung_from_file(catalogue.operation("matmul"), path)
    assert "out.zero_()" in standalone(rung)
