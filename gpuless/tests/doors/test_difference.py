"""`gpuless diff`, and the cells of notebooks."""

from __future__ import annotations

import json
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
RACY = """__global__ void turn(float* x) { __shared__ float s[64]; s[threadIdx.x] = 1; x[threadIdx.x] = s[threadIdx.x ^ 1]; }
int main() { float* x; cudaMalloc(&x, 256); turn<<<1, 64>>>(x); cudaDeviceSynchronize(); }
"""


def row(**figures: float) -> difference.Row:
    return dict.fromkeys(difference.FIGURES, 0.0) | figures


@pytest.mark.slow
def test_two_programs_side_by_side(tmp_path: Path) -> None:
    for name, step in (("a.cu", "1"), ("b.cu", "8")):
        (tmp_path / name).write_text(STRIDED.replace("STEP", step))

    def diff(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "gpuless", "diff", *words], cwd=tmp_path, capture_output=True, text=True
        )

    done = diff("--json", "--limit", "sectors=10", "--limit", "registers=300", "a.cu", "b.cu")
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    (kernel,) = document["kernels"]
    assert kernel["a"]["sectors"] == 2 * 1250  # 40,000 bytes read and written, in sectors of 32
    assert 3 * kernel["a"]["sectors"] < kernel["b"]["sectors"] < 10 * kernel["a"]["sectors"]
    assert kernel["b"]["microseconds"] >= kernel["a"]["microseconds"] > 1
    assert [one.split()[1] for one in document["beyond"]] == ["sectors"]
    done = diff("--nvcc-b=-maxrregcount=16", "--limit", "sectors=0", "a.cu", "a.cu")
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
