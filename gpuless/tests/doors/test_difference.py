"""`gpuless diff`, and the cells of notebooks."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuless.base.errors import UserError
from gpuless.doors import difference

STRIDED = """__global__ void move(const float* x, float* out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i * STEP % n];
}
int main()
{
    float *x, *out;
    cudaMalloc(&x, 40000), cudaMalloc(&out, 40000);
    cudaMemset(x, 0, 40000);
    move<<<40, 256>>>(x, out, 10000);
    cudaDeviceSynchronize();
}
"""
SCALAR = """__global__ void scale(const float* x, float* out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2 * x[i * STRIDE % n];
}
int main()
{
    float *x, *out;
    int n = 1 << 14;
    cudaMalloc(&x, n * 4), cudaMalloc(&out, n * 4), cudaMemset(x, 0, n * 4);
    scale<<<n / PER / 256, 256>>>(x, out, n);
    return cudaDeviceSynchronize();
}
"""
VECTOR = SCALAR.replace(
    "    if (i < n) out[i] = 2 * x[i * STRIDE % n];\n",
    "    if (i >= n / 4) return;\n    float4 v = reinterpret_cast<const float4*>(x)[i];\n"
    "    reinterpret_cast<float4*>(out)[i] = make_float4(2 * v.x, 2 * v.y, 2 * v.z, 2 * v.w);\n",
)
SUM = """constexpr int unrolled = UNROLL;
__global__ void sums(const float* x, float* out)
{
    float sum = 0;
#pragma unroll unrolled
    for (int i = 0; i < 64; i++)
        sum += x[i * 256 + threadIdx.x];
    out[threadIdx.x] = sum;
}
int main()
{
    float *x, *out;
    cudaMalloc(&x, 65536), cudaMalloc(&out, 1024), cudaMemset(x, 0, 65536);
    sums<<<1, 256>>>(x, out);
    return cudaDeviceSynchronize();
}
"""
TILE = """__global__ void __launch_bounds__(256, BLOCKS) products(const float* a, const float* b, float* out)
{
    float x[8], y[8], sum[8][8] = {};
    for (int k = 0; k < 16; k++) {
        for (int i = 0; i < 8; i++)
            x[i] = a[(k * 8 + i) * 256 + threadIdx.x], y[i] = b[(k * 8 + i) * 256 + threadIdx.x];
        for (int i = 0; i < 8; i++)
            for (int j = 0; j < 8; j++)
                sum[i][j] += x[i] * y[j];
    }
    for (int i = 0; i < 64; i++) out[i * 256 + threadIdx.x] = sum[i / 8][i % 8];
}
int main()
{
    float *a, *b, *out;
    cudaMalloc(&a, 131072), cudaMalloc(&b, 131072), cudaMalloc(&out, 65536);
    cudaMemset(a, 0, 131072), cudaMemset(b, 0, 131072);
    products<<<1, 256>>>(a, b, out);
    return cudaDeviceSynchronize();
}
"""
RACY = """__global__ void turn(float* x) { __shared__ float s[64]; s[threadIdx.x] = 1; x[threadIdx.x] = s[threadIdx.x ^ 1]; }
int main() { float* x; cudaMalloc(&x, 256); turn<<<1, 64>>>(x); cudaDeviceSynchronize(); }
"""


def row(**figures: float) -> difference.Row:
    return dict.fromkeys(difference.FIGURES, 0.0) | figures


def diff(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpuless", "diff", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def compared(folder: Path, *words: str) -> dict[str, Any]:
    """The only kernel of two programs."""
    done = diff(folder, "--json", *words)
    assert done.returncode == 0, done.stderr
    (kernel,) = json.loads(done.stdout)["kernels"]
    return dict(kernel)


@pytest.mark.slow
def test_wide_loads_take_fewer_instructions_for_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "scalar.cu").write_text(SCALAR)
    (tmp_path / "vector.cu").write_text(VECTOR)
    once = "--nvcc-a=-DSTRIDE=1 -DPER=1"
    found = compared(tmp_path, once, "--nvcc-b=-DPER=4", "scalar.cu", "vector.cu")
    assert found["a"]["sectors"] == found["b"]["sectors"] == 2 * (1 << 14) * 4 / 32
    assert found["b"]["instructions"] < 0.5 * found["a"]["instructions"]
    assert found["lines"]["instructions"]["a"].endswith("scalar.cu:4")
    apart = compared(tmp_path, once, "--nvcc-b=-DSTRIDE=8 -DPER=1", "scalar.cu", "scalar.cu")
    assert apart["b"]["sectors"] == 9 / 2 * apart["a"]["sectors"]  # each load has a sector, one element of eight
    assert apart["lines"]["sectors"]["b"].endswith("scalar.cu:4")


@pytest.mark.slow
def test_an_unrolled_loop_keeps_more_loads_in_flight(tmp_path: Path) -> None:
    (tmp_path / "sum.cu").write_text(SUM)
    found = compared(tmp_path, "--nvcc-a=-DUNROLL=1", "--nvcc-b=-DUNROLL=8", "sum.cu", "sum.cu")
    assert found["b"]["registers"] >= found["a"]["registers"] + 7  # a load each that is under way
    assert found["b"]["instructions"] < 0.8 * found["a"]["instructions"]
    assert found["b"]["microseconds"] < 0.5 * found["a"]["microseconds"]
    lines = found["lines"]["instructions"]
    assert lines["a"] == lines["b"] and re.search(r"sum\.cu:[67]$|sum\.cu:5$", lines["a"]), lines


@pytest.mark.slow
def test_launch_bounds_that_leave_too_few_registers_spill(tmp_path: Path) -> None:
    (tmp_path / "tile.cu").write_text(TILE)
    found = compared(tmp_path, "--nvcc-a=-DBLOCKS=1", "--nvcc-b=-DBLOCKS=4", "tile.cu", "tile.cu")
    assert found["b"]["registers"] <= 64 < found["a"]["registers"]  # 65,536 for four blocks of 256
    assert found["a"]["stack bytes"] == 0 < found["b"]["stack bytes"]
    assert found["lines"]["stack bytes"]["b"].endswith("tile.cu:9")  # where the sums are needed


@pytest.mark.slow
def test_two_programs_side_by_side(tmp_path: Path) -> None:
    for name, step in (("a.cu", "1"), ("b.cu", "8")):
        (tmp_path / name).write_text(STRIDED.replace("STEP", step))
    done = diff(tmp_path, "--json", "--limit", "sectors=10", "--limit", "registers=300", "a.cu", "b.cu")
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    (kernel,) = document["kernels"]
    assert kernel["a"]["sectors"] == 2 * 1250  # 40,000 bytes read and written, in sectors of 32
    assert 3 * kernel["a"]["sectors"] < kernel["b"]["sectors"] < 10 * kernel["a"]["sectors"]
    assert kernel["b"]["microseconds"] >= kernel["a"]["microseconds"] > 1
    assert [one.split()[1] for one in document["beyond"]] == ["sectors"]
    done = diff(tmp_path, "--nvcc-b=-maxrregcount=16", "--limit", "sectors=0", "a.cu", "a.cu")
    assert done.returncode == 0 and "registers" in done.stdout, done.stderr


def test_kernels_that_have_changed_their_name_are_paired() -> None:
    a, b = {"same": row(), "old": row(registers=1)}, {"new": row(registers=2), "same": row()}
    assert [name for name, _, _ in difference.paired(a, b)] == ["same", "old -> new"]
    with pytest.raises(UserError, match="different kernels"):
        difference.paired(a, {"same": row()})


@pytest.mark.parametrize("percent, told", [(9, 1), (10, 0), (-10, 1)])
def test_limits_are_of_the_growth(percent: float, told: int) -> None:
    assert len(difference.beyond([("k", row(sectors=100), row(sectors=110))], {"sectors": percent})) == told


@pytest.mark.parametrize("word", ["sectors", "sectors=x", "nothing=3"])
def test_a_limit_that_is_none_is_refused(word: str) -> None:
    with pytest.raises(UserError, match="--limit"):
        difference.limits_of([word])


@pytest.mark.slow
def test_a_cell_is_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    interactive: Any = pytest.importorskip("IPython.core.interactiveshell")
    shell = interactive.InteractiveShell()
    shell.run_line_magic("load_ext", "gpuless")
    shell.run_cell_magic("gpuless", "--quiet", RACY)
    said = capsys.readouterr().err
    assert "race: kernel 'turn'" in said and "cell.cu:1" in said and "exit code 102" in said
