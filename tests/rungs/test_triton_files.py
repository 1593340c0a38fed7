"""Triton as in its tutorials: a function that returns its result, autotuned kernels, no docstring."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rung.dtypes import dtype as dtype_named
from rung.errors import RungError
from rung.profile import inspect_triton
from rung.rungs import catalogue

FOREIGN = Path(__file__).parents[1] / "foreign"


def test_a_tutorials_softmax_is_called_with_rows_and_columns() -> None:
    pytest.importorskip("triton")
    of = catalogue.operation("softmax")
    rung = catalogue.rung_from_file(of, FOREIGN / "tutorial_softmax.py")
    assert rung.kind == "triton"
    values = of.complete({"B": 2, "NH": 1, "T": 3, "S": 7, "causal": 0, "scale": 1.0})
    x = torch.randn(2, 1, 3, 7, generator=torch.Generator().manual_seed(0))
    out = torch.full_like(x, torch.nan)
    rung.prepare({"x": x, "out": out}, values, dtype_named("f32"), device="emulator").run()
    assert torch.allclose(out, x.softmax(-1), atol=1e-6)
    assert rung.binds == {"x", "out"}


def test_without_a_fitting_function_the_operands_are_told(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def other(a, b):\n    return a\n")
    with pytest.raises(RungError, match=r"\(x, out\); define run\(x, out\)"):
        catalogue.rung_from_file(catalogue.operation("softmax"), path)


def test_a_function_of_another_name_than_run_is_compiled_for_a_gpu() -> None:
    rung = catalogue.rung_from_file(catalogue.operation("softmax"), FOREIGN / "tutorial_softmax.py")
    values = rung.operation.complete(dict(B=1, NH=1, T=4, S=32, causal=0, scale=1))
    kernels, _ = inspect_triton._compiled(rung, "sm_90", values, dtype_named("f32"), None)
    assert {kernel.metadata.name for kernel in kernels} == {"softmax_kernel"}


RESIDUAL = """import torch
import triton
import triton.language as tl

calls = []


@triton.jit
def add(a_ptr, b_ptr, out_ptr, n, last, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a, b = tl.load(a_ptr + at, mask=at < n), tl.load(b_ptr + at, mask=at < n)
    tl.store(out_ptr + at, a + b, mask=at < last)


def residual(a, b):
    calls.append(1)
    out = torch.empty_like(a)
    last = LAST
    add[(triton.cdiv(a.numel(), 64),)](a, b, out, a.numel(), last, BLOCK=64)
    return out
"""


def checked(text: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "own.py"
    path.write_text(text)
    command = [sys.executable, "-m", "rung", "check", "residual", str(path), "--quick"]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.slow
def test_a_result_that_is_returned_is_not_the_one_of_an_earlier_run(tmp_path: Path) -> None:
    every, later = "a.numel()", "a.numel() if len(calls) == 1 else 0"  # memory of the first result comes back
    assert checked(RESIDUAL.replace("LAST", every), tmp_path).returncode == 0
    refused = checked(RESIDUAL.replace("LAST", later), tmp_path)
    assert refused.returncode == 1 and "failed" in refused.stdout


@pytest.mark.slow
def test_an_error_within_a_kernel_is_told_with_its_line(tmp_path: Path) -> None:
    text = RESIDUAL.replace("LAST", "a.numel()").replace("a + b, mask", "a + tl.reshape(b, (3, 5)), mask")
    line = 1 + text.splitlines().index("    tl.store(out_ptr + at, a + tl.reshape(b, (3, 5)), mask=at < last)")
    refused = checked(text, tmp_path)
    assert refused.returncode == 1 and f"kernel 'add', line {line}" in refused.stdout
