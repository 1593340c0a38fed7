"""Kernels that Triton's interpreter runs and its compiler for a GPU refuses; no GPU is needed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rung.cuda import triton_compile
from rung.errors import CompileError
from rung.rungs import python_module

TEXT = """import triton
import triton.language as tl


@triton.jit
def kernel(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    BODY


def run(x, out):
    kernel[(1,)](x, out, WITH)
"""
SQUARE = "a = tl.load(x + i[:, None] * N + i[None, :])\n    tl.store(out + i, tl.sum(tl.dot(a, a), 0))"
pytestmark = pytest.mark.skipif(not triton_compile.available(), reason="Triton's compiler is not installed")


def compiled(folder: Path, body: str, options: str) -> None:
    path = folder / "rung.py"
    path.write_text(TEXT.replace("BODY", body).replace("WITH", options))
    module = python_module.load(path)
    triton_compile.compiles(lambda: module.run(torch.zeros(4096), torch.zeros(4096)))


@pytest.mark.parametrize(
    ("body", "options", "message"),
    [
        ("for p in (x, out):\n        tl.store(p + i, 0.0)\n        break", "N=16", "does not compile for sm_90"),
        ("tl.store(out + i, tl.load(x + i))", "N=16, num_warps=77", "does not compile for sm_90"),
        ("tl.store(out + i, tl.load(x + i))", "N=16, num_warps=64", "threads|does not compile for sm_90"),
        ("tl.store(out + i, tl.load(x + i))", "N=16, nonsense=3", "nonsense"),
        (SQUARE, "N=256", "bytes of shared memory|does not compile"),
    ],
    ids=["a break", "77 warps", "64 warps", "an unknown option", "shared memory"],
)
def test_a_kernel_that_no_gpu_runs_is_refused(body: str, options: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=message):
        compiled(tmp_path, body, options)


def test_a_kernel_that_compiles_is_taken(tmp_path: Path) -> None:
    compiled(tmp_path, SQUARE, "N=32, num_warps=4")
