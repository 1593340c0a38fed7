"""What a wrong kernel is told to need is exact, and confirmed on both sides; other mistakes get no such advice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from emulation import needs_compiler
from rung.check.judge import check
from rung.rungs import catalogue

HEADER = '/*---\nidea = "{name}"\n{keys}\n[[launch]]\nkernel = "k"\ngrid = {grid}\nblock = {block}\n---*/\n'
ROW = "int row = blockIdx.x, i = threadIdx.x;"
ADD = "(const float* a, const float* b, float* out, int B, int T, int C)"
SUM = "(const float* x, float* out, int B, int N)"
# Name, operation, grid, block, other keys, the kernel's parameters and body, and the condition at which it is right.
KERNELS = [
    (
        "tiles of rows and columns", "transpose", '["ceil_div(C, 32)", "ceil_div(R, 32)"]', "[32, 32]", "",
        "(const float* x, float* out, int R, int C)",
        "int r = blockIdx.y * 32 + threadIdx.y, c = blockIdx.x * 32 + threadIdx.x; out[c * R + r] = x[r * C + c];",
        "R % 32 == 0 and C % 32 == 0",
    ),
    (
        "tiles of columns", "transpose", '["ceil_div(C, 16)", "ceil_div(R, 16)"]', "[16, 16]", "",
        "(const float* x, float* out, int R, int C)",
        "int r = blockIdx.y * 16 + threadIdx.y, c = blockIdx.x * 16 + threadIdx.x;"
        " if (r < R) out[c * R + r] = x[r * C + c];",
        "C % 16 == 0",
    ),
    (
        "vectors of four", "relu", '"ceil_div(N, 1024)"', "256", "", "(const float* x, float* out, int N)",
        "int i = blockIdx.x * 256 + threadIdx.x; if (i < N / 4) for (int j = 0; j < 4; ++j)"
        " { float v = x[4 * i + j]; out[4 * i + j] = v < 0 ? 0 : v; }",
        "N % 4 == 0",
    ),
    (
        "a tree of halves", "reduce", '"B"', '"N"', 'needs = "N <= 1024"', SUM,
        f"__shared__ float s[1024]; {ROW} s[i] = x[row * N + i]; __syncthreads();"
        " for (int h = N / 2; h; h /= 2) { if (i < h) s[i] += s[i + h]; __syncthreads(); } if (!i) out[row] = s[0];",
        "next_pow2(N) == N",
    ),
    (
        "a thread a column", "residual", '"B * T"', "256", "", ADD,
        f"{ROW} if (i < C) out[row * C + i] = a[row * C + i] + b[row * C + i];",
        "C <= 256",
    ),
    (
        "a hundred columns", "reduce", '"B"', "1", "", SUM,
        "float sum = 0; for (int i = 0; i < N && i < 100; ++i) sum += x[blockIdx.x * N + i]; out[blockIdx.x] = sum;",
        "N <= 100",
    ),
    (
        "at least a warp", "reduce", '"B"', "1", "", SUM,
        "float sum = 0; for (int i = 0; i < 32; ++i) sum += x[blockIdx.x * N + i];"
        " for (int i = 32; i < N; ++i) sum += x[blockIdx.x * N + i]; out[blockIdx.x] = sum;",
        "N >= 32",
    ),
    (
        "eps", "layernorm", '"B * T"', "1", "",
        "(const float* x, const float* weight, const float* bias, float* out, int C, float eps)",
        "const float* r = x + blockIdx.x * C; float m = 0, v = 0; for (int i = 0; i < C; ++i) m += r[i] / C;"
        " for (int i = 0; i < C; ++i) v += (r[i] - m) * (r[i] - m) / C;"
        " for (int i = 0; i < C; ++i) out[blockIdx.x * C + i] = (r[i] - m) * rsqrtf(v + 1e-5f) * weight[i] + bias[i];",
        "eps == 1e-05",
    ),
    (
        "another formula", "relu", '"ceil_div(N, 256)"', "256", "", "(const float* x, float* out, int N)",
        "int i = blockIdx.x * 256 + threadIdx.x; if (i < N) out[i] = x[i] < 0 ? 0 : 1.01f * x[i];",
        "",
    ),
    (
        "one row", "residual", '"B * T"', "1", "", ADD,
        "if (blockIdx.x != 5) for (int i = blockIdx.x * C; i < (blockIdx.x + 1) * C; ++i)"
        " out[i] = a[i] + b[i];",
        "",
    ),
    (
        "three blocks", "relu", "3", "256", "", "(const float* x, float* out, int N)",
        "int i = blockIdx.x * 256 + threadIdx.x; if (i < N) out[i] = x[i] < 0 ? 0 : x[i];",
        "N <= 768",
    ),
    (
        "not a number", "reduce", '"B"', "1", "", SUM,
        "float sum = 0; for (int i = 0; i < N; ++i) sum += x[blockIdx.x * N + i];"
        " out[blockIdx.x] = N % 8 ? __int_as_float(0x7fffffff) : sum;",
        "",
    ),
    (
        "not a number beyond a size", "reduce", '"B"', "1", "", SUM,
        "float sum = 0; for (int i = 0; i < N; ++i) sum += x[blockIdx.x * N + i];"
        " out[blockIdx.x] = N > 100 ? __int_as_float(0x7fffffff) : sum;",
        "N <= 100",
    ),
    (
        "whole blocks of all elements", "residual", '"ceil_div(B * T * C, 64)"', "64", "", ADD,
        "int i = blockIdx.x * 64 + threadIdx.x; if (blockIdx.x < B * T * C / 64) out[i] = a[i] + b[i];",
        "B * T * C % 64 == 0",
    ),
    (
        "a race", "reduce", '"B"', '"N"', 'needs = "N <= 1024 and next_pow2(N) == N"', SUM,
        f"__shared__ float s[1024]; {ROW} s[i] = x[row * N + i];"
        " for (int h = N / 2; h; h /= 2) { if (i < h) s[i] += s[i + h]; __syncthreads(); } if (!i) out[row] = s[0];",
        "",
    ),
]  # fmt: skip


@needs_compiler
@pytest.mark.parametrize(
    ("operation", "grid", "block", "keys", "parameters", "body", "needs"),
    [kernel[1:] for kernel in KERNELS],
    ids=[kernel[0] for kernel in KERNELS],
)
def test_a_wrong_kernel_is_told_exactly_what_it_needs(
    operation: str, grid: str, block: str, keys: str, parameters: str, body: str, needs: str, tmp_path: Path
) -> None:
    header = HEADER.format(name="A mistake.", keys=keys, grid=grid, block=block)
    (tmp_path / "own.cu").write_text(f"{header}__global__ void k{parameters}\n{{\n    {body}\n}}\n")
    rung = catalogue.rung_from_file(catalogue.operation(operation), tmp_path / "own.cu")
    report = check(rung, "f32", device="emulator")
    assert report.verdict == "failed", report
    assert report.failure.get("needs", "") == needs, report


WHOLE_TILES = '''
import torch
import triton
import triton.language as tl


@triton.jit
def relu_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.maximum(tl.load(x_ptr + at), 0.0))


def relu(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    relu_kernel[(triton.cdiv(x.numel(), 128),)](x, out, BLOCK=128)
    return out
'''


LIMITED = WHOLE_TILES.replace("BLOCK)\n    tl.store(", "BLOCK)\n    tl.static_assert(N <= 3000)\n    tl.store(")
LIMITED = LIMITED.replace("(x_ptr + at), 0.0)", "(x_ptr + at, mask=at < N), 0, tl.PropagateNan.ALL), mask=at < N")
LIMITED = LIMITED.replace("out_ptr, BLOCK", "out_ptr, N: tl.constexpr, BLOCK").replace("(x, out, ", "(x, out, x.numel(), ")
RAISES = "    if x.numel() > 3000:\n        raise ValueError('too long')\n    out ="


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("text", "needs"),
    [
        (WHOLE_TILES, "N % 128 == 0"),
        (LIMITED, "N <= 3000"),
        (LIMITED.replace("    tl.static_assert(N <= 3000)\n", "").replace("    out =", RAISES), "N <= 3000"),
    ],
)
def test_a_strangers_kernel_for_some_sizes_is_told_its_condition_and_not_refused(
    text: str, needs: str, tmp_path: Path
) -> None:
    pytest.importorskip("triton")
    (tmp_path / "own.py").write_text(text)
    words = [sys.executable, "-m", "rung", "check", "relu", str(tmp_path / "own.py"), "--device", "emulator", "--json"]
    ended = subprocess.run(words, capture_output=True, text=True)
    (found,) = json.loads(ended.stdout)["findings"]
    assert ended.returncode == 3 and found["evidence"]["needs"] == needs, ended
    assert f'NEEDS = "{needs}"' in found["text"], found
