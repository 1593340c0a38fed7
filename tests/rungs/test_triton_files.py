"""Triton as in its tutorials: a function that returns its result, autotuned kernels, no docstring."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gpuless.base.expressions import evaluate
from rung import adopt
from rung.check.judge import report_on
from rung.check.report import QUICK, CheckRequest
from rung.cuda import pretended
from rung.dtypes import dtype as dtype_named
from rung.errors import RungError, TooLarge
from rung.profile import inspect_triton
from rung.rungs import catalogue
from rung.rungs.python import PythonRung

FOREIGN = Path(__file__).parents[1] / "foreign"


def test_a_tutorials_softmax_is_called_with_rows_and_columns() -> None:
    pytest.importorskip("triton")
    of = catalogue.operation("softmax")
    rung = adopt.rung_from_file(of, FOREIGN / "tutorial_softmax.py")
    assert rung.kind == "triton"
    values = of.complete({"B": 2, "NH": 1, "T": 3, "S": 7, "causal": 0, "scale": 1.0})
    x = torch.randn(2, 1, 3, 7, generator=torch.Generator().manual_seed(0))
    out = torch.full_like(x, torch.nan)
    rung.prepare({"x": x, "out": out}, values, dtype_named("f32"), device="emulator").run()
    assert torch.allclose(out, x.softmax(-1), atol=1e-6)
    assert rung.binds == {"x", "out"}


@pytest.mark.slow
def test_what_no_configuration_of_a_tuner_has_room_for_is_too_large() -> None:
    pytest.importorskip("triton")
    of = catalogue.operation("softmax")
    rung = adopt.rung_from_file(of, FOREIGN / "tutorial_softmax.py")
    values = of.complete({"B": 1, "NH": 1, "T": 1, "S": 50257, "causal": 0, "scale": 1.0})
    x = torch.zeros(1, 1, 1, 50257)
    with pytest.raises(TooLarge):
        rung.prepare({"x": x, "out": x.clone()}, values, dtype_named("f32"), device="emulator").run()


def test_without_a_fitting_function_the_operands_are_told(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def other(a, b):\n    return a\n")
    with pytest.raises(RungError, match=r"\(x, out\); define run\(x, out\)"):
        adopt.rung_from_file(catalogue.operation("softmax"), path)
    with pytest.raises(RungError, match=r"define run\(q, k, v, out\)"):
        adopt.rung_from_file(catalogue.operation("attention"), path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("from numba import cuda\n\n\n@cuda.jit\ndef softmax(a, b):\n    b[0] = a[0]\n", "is of numba"),
        ("import triton\n\n\n@triton.jit\ndef softmax_kernel(a, b):\n    pass\n", "no function that launches its kernels"),
    ],
)
def test_what_a_file_without_a_function_to_call_has_is_told(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(text)
    with pytest.raises(RungError, match=told):
        adopt.rung_from_file(catalogue.operation("softmax"), tmp_path / "own.py")


def test_a_function_of_another_name_than_run_is_compiled_for_a_gpu() -> None:
    rung = adopt.rung_from_file(catalogue.operation("softmax"), FOREIGN / "tutorial_softmax.py")
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


def checked(text: str, tmp_path: Path, *how: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "own.py"
    path.write_text(text)
    command = [sys.executable, "-m", "rung", "check", "residual", str(path), *how]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.slow
def test_a_result_that_is_returned_is_not_the_one_of_an_earlier_run(tmp_path: Path) -> None:
    every, later = "a.numel()", "a.numel() if len(calls) == 1 else 0"  # memory of the first result comes back
    assert checked(RESIDUAL.replace("LAST", every), tmp_path, "--quick").returncode == 0
    refused = checked(RESIDUAL.replace("LAST", later), tmp_path)  # the first run is right
    assert refused.returncode == 1 and "failed" in refused.stdout


@pytest.mark.slow
def test_an_error_within_a_kernel_is_told_with_its_line(tmp_path: Path) -> None:
    text = RESIDUAL.replace("LAST", "a.numel()").replace("a + b, mask", "a + tl.reshape(b, (3, 5)), mask")
    line = 1 + text.splitlines().index("    tl.store(out_ptr + at, a + tl.reshape(b, (3, 5)), mask=at < last)")
    refused = checked(text, tmp_path, "--quick")
    assert refused.returncode == 1 and f"own.py, line {line}:" in refused.stdout


SCRIPT = '''import os

import matplotlib.pyplot as plt
import pytest
import torch
import triton
import triton.language as tl

DEVICE = triton.runtime.driver.active.get_active_torch_device()
WARPS = [1]
if "MANY_WARPS" in os.environ:
    WARPS = [4]
WARPS.append(2)


@triton.autotune(configs=[triton.Config({}, num_warps=w) for w in WARPS], key=["N"])
@triton.jit
def _forward(x, y, w, b, stride, N, eps, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.load(x + tl.program_id(0) * stride + at, mask=at < N, other=0.0)
    mean = tl.sum(row, 0) / N
    off = tl.where(at < N, row - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(off * off, 0) / N + eps)
    y_row = off * scale * tl.load(w + at, mask=at < N) + tl.load(b + at, mask=at < N)
    tl.store(y + tl.program_id(0) * stride + at, y_row, mask=at < N)


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, normalized_shape, weight, bias, epsilon):
        assert x.shape[-1] <= 4096
        y = torch.empty_like(x)
        x_arg = x.reshape(-1, x.shape[-1])
        M, N = x_arg.shape
        _forward[(M,)](x_arg, y, weight, bias, x_arg.stride(0), N, epsilon, BLOCK=triton.next_power_of_2(N))
        return y


norm = Norm.apply


@pytest.mark.parametrize("N", [64, 128])
def test_norm(N):
    getattr(torch, "exp")(torch.ones(N))


WARPS = None
figures = [norm(torch.ones(2, n, device=DEVICE), (n,), torch.ones(n), torch.ones(n), 1e-5) for n in (2, 4)]
plt.plot(figures)
'''  # fmt: skip


@pytest.mark.slow
def test_of_a_script_only_what_its_function_needs_is_executed(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    rung = adopt.rung_from_file(catalogue.operation("layernorm"), path)
    assert isinstance(rung, PythonRung) and rung.facts.entry is not None
    assert rung.facts.entry.meaning == {
        **{name: name for name in ("x", "normalized_shape", "weight", "bias")},
        "epsilon": "eps",
    }
    kept = rung.source
    assert "WARPS.append(2)" in kept and "os.environ" in kept  # the tuner's choices
    assert not any(word in kept for word in ("pytest", "plt", "figures", "WARPS = None", "getattr"))
    assert kept.splitlines().index("class Norm(torch.autograd.Function):") == SCRIPT.splitlines().index(
        "class Norm(torch.autograd.Function):"
    )
    report = report_on(CheckRequest(rung.full_name, "f32", "emulator", file=str(path), effort=QUICK))
    assert (report.verdict, report.reason) == ("ok", "")


def test_a_product_of_two_matrices_is_known_by_the_names_of_its_sizes(tmp_path: Path) -> None:
    text = (FOREIGN / "tutorial_matmul.py").read_text()
    text = text[: text.index("DTYPES")]
    by_columns = "def matmul(a, b):\n    M, K = a.shape\n    K, N = b.shape\n    return torch.empty((M, N), dtype=torch.float16)\n"
    by_rows = by_columns.replace("K, N = b.shape", "N, K = b.shape")
    unknown = by_columns.replace("    K, N = b.shape\n", "").replace("N)", "b.shape[1])")
    path = tmp_path / "product.py"
    for function, meant in ((by_columns, "weight_t"), (by_rows, "weight"), (unknown, None)):
        path.write_text(text + function)
        if meant is None:
            with pytest.raises(RungError, match="define run"):
                adopt.rung_from_file(catalogue.operation("matmul"), path)
            continue
        rung = adopt.rung_from_file(catalogue.operation("matmul"), path)
        assert isinstance(rung, PythonRung) and rung.facts.entry is not None
        assert rung.facts.entry.meaning == {"a": "x", "b": meant}
        assert rung.dtypes == ("f16",)


def test_a_tensor_that_has_the_name_of_a_size_is_an_operand(tmp_path: Path) -> None:
    path = tmp_path / "product.py"
    shapes = "    M, K = A.shape\n    K, N = B.shape\n    return torch.empty((M, N), device=A.device)\n"
    for given in ("A: torch.Tensor, B: torch.Tensor, alpha: float = 1.0", "A, B"):
        path.write_text(f"import torch\n\n\ndef matmul({given}):\n{shapes}")
        rung = adopt.rung_from_file(catalogue.operation("matmul"), path)
        assert isinstance(rung, PythonRung) and rung.facts.entry is not None
        assert rung.facts.entry.meaning == {"A": "x", "B": "weight_t"}


def test_what_a_function_asserts_and_does_not_take_are_needs(tmp_path: Path) -> None:
    path = tmp_path / "heads.py"
    path.write_text(
        "import torch\n\n\ndef attention(q, k, v, causal, sm_scale):\n    Z, H, LENGTH = q.shape[:3]\n    TILE = 64\n"
        "    assert LENGTH % TILE == 0\n    assert q.shape[-1] in {32, 64}\n    D = k.shape[-1]\n    assert D in [32, 64]\n    assert D not in (7, 8)\n"
        "    o = torch.empty_like(q)\n    return o\n"
    )
    rung = adopt.rung_from_file(catalogue.operation("attention"), path)
    assert rung.header.needs == ("T % 64 == 0", "HS == 32 or HS == 64")
    assert rung.binds == {"q_heads", "k_heads", "v_heads", "out_heads"}
    path.write_text("def softmax(x):\n    return x\n")
    rows = adopt.rung_from_file(catalogue.operation("softmax"), path)
    assert rows.header.needs == ("causal == 0", "scale == 1.0")


SOLVE = """import torch
import triton
import triton.language as tl


@triton.jit
def kernel(a, b, c, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(c + at, tl.load(a + at, mask=at < n) + tl.load(b + at, mask=at < n), mask=at < n)


def solve(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, N: int):
    kernel[(triton.cdiv(N, 64),)](a, b, c, N, BLOCK=64)
"""
ROW = """import torch
import triton
import triton.language as tl


@triton.jit
def row(source, target, N, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(source + at, mask=at < N, other=-float("inf"))
    e = tl.exp(x - tl.max(x, 0))
    tl.store(target + at, e / tl.sum(e, 0), mask=at < N)


def solve(input: torch.Tensor, output: torch.Tensor, N: int):
    row[(1,)](input, output, N, BLOCK=triton.next_power_of_2(N))
"""
PRODUCT = """import torch
import triton
import triton.language as tl


@triton.jit
def product(a, b, c, M, N, K, T: tl.constexpr):
    m, k = tl.program_id(0) * T + tl.arange(0, T), tl.program_id(1) * T + tl.arange(0, T)
    sums = tl.zeros((T, T), dtype=tl.float32)
    for first in range(0, N, T):
        n = first + tl.arange(0, T)
        x = tl.load(a + m[:, None] * N + n[None, :], mask=(m[:, None] < M) & (n[None, :] < N), other=0.0)
        y = tl.load(b + n[:, None] * K + k[None, :], mask=(n[:, None] < N) & (k[None, :] < K), other=0.0)
        sums += tl.dot(x, y)
    tl.store(c + m[:, None] * K + k[None, :], sums, mask=(m[:, None] < M) & (k[None, :] < K))


def solve(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, M: int, N: int, K: int):
    product[(triton.cdiv(M, 16), triton.cdiv(K, 16))](a, b, c, M, N, K, T=16)
"""


@pytest.mark.parametrize(
    ("operation", "text", "meaning", "needs", "dtypes"),
    [
        ("residual", SOLVE, {"a": "a", "b": "b", "c": "out", "N": "B * T * C"}, (), ("f32",)),
        (
            "residual", SOLVE.replace("solve(a: torch.Tensor", "solve(a_ptr: int").replace("(a, b, c, N", "(a_ptr, b, c, N"),
            {"a_ptr": "a", "b": "b", "c": "out", "N": "B * T * C"}, (), ("f32",),
        ),
        pytest.param(
            "softmax", ROW, {"input": "x", "output": "out", "N": "S"}, ("B == 1", "NH == 1", "T == 1"), ("f32",),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "matmul", PRODUCT, {"a": "x", "b": "weight_t", "c": "out", "M": "B * T", "N": "C", "K": "OC"}, (),
            ("tf32",), marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_sizes_and_operands_of_a_function_that_is_given_its_result_are_found_by_trials(
    tmp_path: Path, operation: str, text: str, meaning: dict[str, str], needs: tuple[str, ...], dtypes: tuple[str, ...]
) -> None:
    path = tmp_path / "own.py"
    path.write_text(text)
    rung = adopt.rung_from_file(catalogue.operation(operation), path)
    assert isinstance(rung, PythonRung) and rung.facts.entry and rung.guessed and not rung.doubts
    values = rung.operation.complete(rung.operation.cases[0].values) | {"B": 1, "NH": 1, "T": 1, "S": 7, "C": 5, "OC": 3}
    found = {name: evaluate(m, values) if m[0].isupper() else m for name, m in rung.facts.entry.meaning.items()}
    assert found == {name: evaluate(m, values) if m[0].isupper() else m for name, m in meaning.items()}
    assert set(needs) <= {*rung.needs} and rung.dtypes == dtypes


MODULE = """import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def row(source, gain, target, N, eps, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(source + tl.program_id(0) * N + at, mask=at < N, other=0.0)
    y = x / tl.sqrt(tl.sum(x * x, 0) / N + eps) * tl.load(gain + at, mask=at < N)
    tl.store(target + tl.program_id(0) * N + at, y, mask=at < N)


class ModelNew(nn.Module):
    def __init__(self, num_features: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(num_features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, N = torch.empty_like(x), x.shape[-1]
        row[(x.numel() // N,)](x, self.weight, y, N, self.eps, BLOCK=triton.next_power_of_2(N))
        return y
"""


@pytest.mark.slow
def test_a_module_is_made_with_its_sizes_and_is_given_its_parameters(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(MODULE)
    rung = adopt.rung_from_file(catalogue.operation("rmsnorm"), path)
    assert isinstance(rung, PythonRung) and rung.facts.entry and not rung.doubts and rung.needs == ("eps == 1e-5",)
    assert rung.facts.entry.meaning == {"num_features": "C", "weight": "weight", "x": "x"}


FIXED = """import torch
import triton
import triton.language as tl


@triton.jit
def row(source, gain, target, N, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(source + tl.program_id(0) * N + at, mask=at < N, other=0.0)
    y = x / tl.sqrt(tl.sum(x * x, 0) / N + 1e-4) * tl.load(gain + at, mask=at < N)
    tl.store(target + tl.program_id(0) * N + at, y, mask=at < N)


def normalised(x, weight):
    y, N = torch.empty_like(x), x.shape[-1]
    assert N <= 512
    row[(x.numel() // N,)](x, weight, y, N, BLOCK=triton.next_power_of_2(N))
    return y
"""


@pytest.mark.slow
def test_a_number_that_a_function_does_not_take_is_found_by_trials(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(FIXED)
    command = [sys.executable, "-m", "rung", "check", "rmsnorm", str(path), "--quick", "--json"]
    told = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
    assert told["verdict"] == "ok"
    rung = adopt.rung_from_file(catalogue.operation("rmsnorm"), path)
    assert isinstance(rung, PythonRung) and {*rung.needs} == {"C <= 512", "eps == 1e-4"} and not rung.doubts


@pytest.mark.slow
def test_sizes_of_more_axes_than_an_operation_has_are_one(tmp_path: Path) -> None:
    text = FIXED.replace("normalised(x, weight)", "normalised(X, weight, Y, B: int, F: int, D1: int, D2: int)")
    text = text.replace("y, N = torch.empty_like(x), x.shape[-1]", "N = F * D1 * D2 * X.element_size() // Y.element_size()").replace("    return y\n", "")
    text = text.replace("[(x.numel() // N,)](x, weight, y,", "[(B,)](X, weight, Y,").replace("    assert N <= 512\n", "")
    (tmp_path / "own.py").write_text(text)
    rung = adopt.rung_from_file(catalogue.operation("rmsnorm"), tmp_path / "own.py")
    assert isinstance(rung, PythonRung) and not rung.doubts and "T == 1" in rung.needs
    assert rung.facts.entry and [rung.facts.entry.meaning[n] for n in ("B", "F", "D1", "D2")] == ["B", "C", "1", "1"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "host", "dtypes"),
    [
        ("    acc += tl.dot(x, w, allow_tf32=False).to(tl.float16)\n", "", ("f32",)),
        ("    acc = tl.sum(x.to(tl.bfloat16))\n    tl.store(c, acc)\n", "", ("f32",)),
        ("    acc = tl.dot(x.to(tl.float16), w.to(tl.float16), allow_tf32=False)\n", "    # torch.float16\n", ("f32",)),
        ("    acc = x\n", "    a = a.to(torch.float16)\n", ("f32",)),
        ("    p = x.to(tl.float16)\n    acc = tl.dot(p, w)\n", "", ("f16",)),
        ("    acc = x.to(tl.float16)\n    tl.store(c, acc)\n", "", ("f16",)),
        ("    acc = tl.load(c.to(tl.pointer_type(tl.bfloat16)))\n", "", ("bf16",)),
        ("    acc = x\n", "    assert a.dtype == torch.float16\n", ("f16",)),
    ],
)
def test_what_a_kernel_converts_on_its_way_is_no_format_of_its_operands(
    kernel: str, host: str, dtypes: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "own.py"
    begin = "import torch, triton\nimport triton.language as tl\n\n\n@triton.jit\ndef kernel(a, b, c):\n    x, w = tl.load(a), tl.load(b)\n"
    path.write_text(f"{begin}{kernel}\n\ndef solve(a, b, c):\n{host}    kernel[(1,)](a, b, c)\n")
    rung = adopt.rung_from_file(catalogue.operation("residual"), path)
    assert rung.dtypes == dtypes


def test_a_call_whose_operands_are_told_is_said_to_be_right_up_to_a_size(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(FIXED.replace("    assert N <= 512\n", "").replace("triton.next_power_of_2(N)", "512"))
    command = [sys.executable, "-m", "rung", "check", "rmsnorm", str(path)]
    told = subprocess.run(command, capture_output=True, text=True)
    assert told.returncode == 3 and 'NEEDS = "C <= 512"' in told.stdout


def test_of_two_functions_that_fit_the_one_that_takes_more_operands_is_called(tmp_path: Path) -> None:
    path = tmp_path / "norms.py"
    functions = "def layer(x, weight, bias, eps=1e-5):\n    return x\n\n\ndef rms(x, weight, eps=1e-6):\n    return x\n"
    path.write_text(functions)
    rung = adopt.rung_from_file(catalogue.operation("layernorm"), path)
    assert isinstance(rung, PythonRung) and rung.facts.entry and rung.facts.entry.name == "layer"


def test_a_function_that_only_calls_torch_is_not_taken_in_place_of_one_with_kernels(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(SOLVE + "\n\ndef by_torch(a: torch.Tensor, b: torch.Tensor):\n    return a + b\n\n\ndef run():\n    by_torch(1, 2)\n")
    rung = adopt.rung_from_file(catalogue.operation("residual"), path)
    assert isinstance(rung, PythonRung) and rung.facts.entry and rung.facts.entry.name == "solve" and not rung.doubts


POWER = FIXED.replace("    assert N <= 512\n", "").replace("triton.next_power_of_2(N)", "N").replace("1e-4", "1e-5")


@pytest.mark.parametrize(("written", "code"), [("", 3), ('NEEDS = "next_pow2(C) == C"\n', 0)])
def test_a_kernel_for_powers_of_two_is_not_judged_until_its_file_says_so(tmp_path: Path, written: str, code: int) -> None:
    path = tmp_path / "own.py"
    path.write_text(POWER + written)
    rung = adopt.rung_from_file(catalogue.operation("rmsnorm"), path)
    assert bool(rung.doubts) == (code == 3)
    if code == 3:
        assert '"next_pow2(C) == C"' in rung.doubts[0]
    else:
        assert {*rung.needs} == {"next_pow2(C) == C", "eps == 1e-5"}


ROWS = """import torch
import triton
import triton.language as tl


@triton.jit
def each(source, target, pitch, to, N, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(source + tl.program_id(0) * pitch + at, mask=at < N)
    tl.store(target + tl.program_id(0) * to + at, tl.maximum(x, 0, tl.PropagateNan.ALL), mask=at < N)


def solve(input, output):
    rows, cols = input.shape
    each[(rows,)](input, output, input.stride(0), output.stride(0), cols, BLOCK=triton.next_power_of_2(cols))
"""


@pytest.mark.slow
def test_a_function_of_rows_is_given_every_operand_of_that_shape_as_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.py"
    path.write_text(ROWS)
    command = [sys.executable, "-m", "rung", "check", "relu", str(path), "--quick"]
    told = subprocess.run(command, capture_output=True, text=True)
    assert told.returncode == 0 and "solve(input=x, output=out)" in told.stderr


MATRICES = """import torch
import triton
import triton.language as tl


@triton.jit
def doubled(a, b, c, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(c + at, tl.load(a + at, mask=at < n) + tl.load(b + at, mask=at < n), mask=at < n)


def solve(a, b):
    if a.dim() != 2:
        raise ValueError("a must have rows and columns")
    c = torch.empty_like(a)
    doubled[(triton.cdiv(a.numel(), 256),)](a, b, c, a.numel(), BLOCK=256)
    return c
"""


@pytest.mark.slow
@pytest.mark.parametrize(("dims", "verdict"), [(2, "ok"), (5, "not judged")])
def test_a_function_that_refuses_operands_gets_them_as_rows_and_what_it_refuses_still_is_no_mistake(
    dims: int, verdict: str, tmp_path: Path
) -> None:
    path = tmp_path / "own.py"
    path.write_text(MATRICES.replace("!= 2", f"!= {dims}"))
    command = [sys.executable, "-m", "rung", "check", "residual", str(path), "--json"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert json.loads(result.stdout)["verdict"] == verdict, result.stdout


def test_a_file_that_cannot_be_imported_is_not_said_to_be_called_wrongly(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    imports = "import triton\n", "import triton\nfrom no_such_package import SIZE\n"
    path.write_text(SOLVE.replace(*imports).replace("64", "SIZE"))
    assert not adopt.rung_from_file(catalogue.operation("residual"), path).doubts


@pytest.mark.slow
@pytest.mark.parametrize(("change", "code"), [(("a", "a"), 0), (("b + at, mask=at < n)", "b + at, mask=at < n) * 2"), 3)])
def test_a_call_that_no_trial_confirms_is_no_verdict(tmp_path: Path, change: tuple[str, str], code: int) -> None:
    told = checked(SOLVE.replace(*change), tmp_path, "--quick")
    assert told.returncode == code
    assert ("not judged" in told.stdout) == ('perhaps entry = "solve"' in told.stdout) == (code == 3)


RELU = """import torch
import triton
import triton.language as tl

{constant}

@triton.jit
def relu_kernel(input, output, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(input + at, mask=at < n)
    tl.store(output + at, tl.where(x > 0, x, 0.0), mask=at < n)


def solve(input: torch.Tensor, output: torch.Tensor, N: int):
    relu_kernel[(triton.cdiv(N, 1024),)](input, output, N, BLOCK=1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("constant", "code"), [("", 3), ("LOSES_NAN = True", 0)])
def test_a_file_of_others_that_loses_nan_is_not_judged_or_says_so(constant: str, code: int, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    path = tmp_path / "relu.py"
    path.write_text(RELU.format(constant=constant))
    command = [sys.executable, "-m", "rung", "check", "relu", str(path), "--device", "emulator"]
    told = subprocess.run(command, capture_output=True, text=True)
    assert told.returncode == code, told.stdout
    assert ("LOSES_NAN" in told.stdout) == (code == 3)


PROJECT = {
    "pyproject.toml": "",
    "src/ours/__init__.py": "from .checks import same\nfrom no_such_package import drawn\n",
    "src/ours/checks.py": "import os\n\n\ndef same(a, b):\n    assert a.shape == b.shape\n\n\nos.system('false')\n",
    "src/ours/sizes.py": "BLOCK = 64\n",
    "helpers/grids.py": "import triton\n\nfrom ours.sizes import BLOCK\n\n\ndef blocks(n):\n    return (triton.cdiv(n, BLOCK),)\n",
}
OF_PROJECT = RESIDUAL.replace("import torch\n", "import torch\nfrom helpers import grids\n", 1)
OF_PROJECT = OF_PROJECT.replace("tl\n", "tl\nfrom .. import same\nfrom ..sizes import BLOCK\n", 1)
OF_PROJECT = OF_PROJECT.replace("calls.append(1)", "same(a, b)").replace("LAST", "a.numel()")
OF_PROJECT = OF_PROJECT.replace("(triton.cdiv(a.numel(), 64),)", "grids.blocks(a.numel())").replace("=64", "=BLOCK")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "text", "verdict"),
    [
        ("src/ours/sizes.py", "BLOCK = 64\n", "ok"),
        ("helpers/grids.py", "def blocks(n):\n    return (n // 64,)\n", "failed"),
        ("src/ours/checks.py", "import numpy\n\n\ndef same(a, b):\n    numpy.add(a, b)\n", "not judged"),
        ("src/ours/checks.py", "from no_such_package import same\n", "not judged"),
    ],
)
def test_a_file_imports_what_it_needs_of_its_own_project(file: str, text: str, verdict: str, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    path = tmp_path / "src/ours/ops/add.py"
    for name, content in {**PROJECT, file: text, "src/ours/ops/add.py": OF_PROJECT}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    command = [sys.executable, "-m", "rung", "check", "residual", str(path), "--quick", "--device", "emulator", "--json"]
    told = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
    assert [one["verdict"] for one in told["results"]] == [verdict], told


HEAD = """import torch
import triton
import triton.language as tl


@triton.jit
def attend(Q, K, V, O, qm, qd, km, kd, vm, vd, om, od, M, N, d, scale, BN: tl.constexpr, BD: tl.constexpr):
    row, at, i = tl.program_id(0), tl.arange(0, BD), tl.arange(0, BN)
    q = tl.load(Q + row * qm + at * qd, mask=at < d, other=0.0)
    inner = (i[:, None] < N) & (at[None, :] < d)
    s = tl.sum(q[None, :] * tl.load(K + i[:, None] * km + at[None, :] * kd, mask=inner, other=0.0), axis=1) * scale
    s = tl.where(i < N, s, -float("inf"))
    p = tl.exp(s - tl.max(s, axis=0))
    v = tl.load(V + i[:, None] * vm + at[None, :] * vd, mask=inner, other=0.0)
    tl.store(O + row * om + at * od, tl.sum(p[:, None] * v, axis=0) / tl.sum(p, axis=0), mask=at < d)


def solve(Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, output: torch.Tensor, M: int, N: int, d: int):
    BN, BD = triton.next_power_of_2(N), triton.next_power_of_2(d)
    attend[(M,)](Q, K, V, output, Q.stride(0), Q.stride(1), K.stride(0), K.stride(1), V.stride(0), V.stride(1),
                 output.stride(0), output.stride(1), M, N, d, d**-0.5, BN=BN, BD=BD)
"""


def test_of_a_function_of_one_head_the_others_are_one_and_its_operands_are_matrices(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    (tmp_path / "own.py").write_text(HEAD)
    rung = adopt.rung_from_file(catalogue.operation("attention"), tmp_path / "own.py")
    assert not rung.doubts and {*rung.needs} == {"B == 1", "NH == 1", "causal == 0", "scale == 1 / sqrt(C // NH)"}


HALVES = RESIDUAL.replace("    return out\n", "    return a, b, out\n").replace("LAST", "a.numel()")


@pytest.mark.slow
def test_what_a_function_was_given_is_no_result_of_it(tmp_path: Path) -> None:
    assert checked(HALVES, tmp_path, "--quick").returncode == 0


def test_a_kernel_that_a_gpu_has_no_room_for_is_no_mistake_on_a_gpu_either() -> None:
    pytest.importorskip("triton")
    of = catalogue.operation("softmax")
    rung = adopt.rung_from_file(of, FOREIGN / "tutorial_softmax.py")
    values = of.complete({"B": 1, "NH": 1, "T": 2, "S": 1 << 17, "causal": 0, "scale": 1.0})
    x = torch.zeros(1, 1, 2, 1 << 17)
    with pretended.gpu(lambda kernel: None), pytest.raises(TooLarge):
        rung.prepare({"x": x, "out": x.clone()}, values, dtype_named("f32"), device="cuda").run()


TUNED = """import torch
import triton
import triton.language as tl


@triton.autotune([triton.Config({"BLOCK": b}, num_warps=w) for b in (64, 128, 256) for w in (1, 2, 4)], key=["n"])
@triton.jit
def add(a, b, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(a + at, mask=at < n) + tl.load(b + at, mask=at < n), mask=at < n - BLOCK // 256)


def residual(a, b):
    out = torch.empty_like(a)
    add[lambda meta: (triton.cdiv(a.numel(), meta["BLOCK"]),)](a, b, out, a.numel())
    return out
"""


@pytest.mark.slow
@pytest.mark.parametrize(("most", "code", "told"), [("512", 0, "2 of its tuner's 9 configurations"), ("256", 1, "BLOCK=256 ")])
def test_few_configurations_of_a_tuner_run_and_the_wrong_one_is_named(
    most: str, code: int, told: str, tmp_path: Path
) -> None:
    ended = checked(TUNED.replace("// 256", f"// {most}"), tmp_path)
    assert ended.returncode == code and told in ended.stdout, ended.stdout
