"""What the host's code of a file makes of its sizes and arrays before it launches: adopt reads it, or runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulation import needs_compiler
from rung import adopt
from rung.adopt import host_calls, launches
from rung.adopt.host_launches import in_a_row, launches_in
from rung.check.first_look import first_look
from rung.check.report import NEVER
from rung.errors import Unjudged
from rung.rungs import catalogue
from rung.rungs.python import PythonRung

PARTS = """
__global__ void scores(const float* Q, const float* K, float* S, int n, int d) { S[0] = Q[0] * K[0]; }
__global__ void weigh(const float* S, const float* V, float* out, int n, int d) { out[0] = S[0] * V[0]; }
int main() {
    scores<<<1, 64>>>(q, k, s, n, d);
    weigh<<<1, 64>>>(s, v, o, n, d);
}
"""
TWICE = """
__global__ void pass(const float* in, float* out, int n) { out[blockIdx.x] = in[0]; }
void solve(const float* in, float* out, int n) {
    pass<<<n, 64>>>(in, %s, n);
    pass<<<1, 64>>>(%s, out, n);
}
"""


def _file(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def _bind(operation: str, path: Path, kernel: str) -> dict[str, object]:
    """Of the likeliest call."""
    every = launches.propose(catalogue.operation(operation), path.read_text(), path)
    found: dict[str, object] = next(every.proposals[kernel]).table["bind"]
    return found


@pytest.mark.parametrize("argument", ["N / 4", "quarter"])
def test_a_number_that_the_host_calculates_is_calculated_from_the_calls_sizes(argument: str, tmp_path: Path) -> None:
    text = "__global__ void gelu(float4* out, const float4* inp, int n) { out[n - 1] = inp[n - 1]; }\n"
    text += f"void run(float4* out, const float4* inp, int N) {{ int quarter = N / 4; gelu<<<(quarter + 31) / 32, 32>>>(out, inp, {argument}); }}"
    assert _bind("gelu", _file(tmp_path / "gelu.cu", text), "gelu")["n"] == "B * T * C // 4"


def test_a_number_of_mains_is_one_calls(tmp_path: Path) -> None:
    text = "__global__ void gelu(float* out, const float* inp, int n) { out[n - 1] = inp[n - 1]; }\n"
    text += "int main() { int T = 1024, H = 4096; int n = T * H; gelu<<<(n + 255) / 256, 256>>>(o, i, n); }"
    assert _bind("gelu", _file(tmp_path / "gelu.cu", text), "gelu")["n"] == "B * T * C"


@pytest.mark.parametrize(("between", "row"), [("(float*)kept", True), ("other", False)])
def test_a_kernel_that_reads_what_it_has_written_is_run_in_a_row(between: str, row: bool) -> None:
    text = TWICE % ("kept", between)
    assert in_a_row(text, launches_in(text, {})) == row


def test_what_runs_in_a_row_on_memory_of_mains_is_judged_as_a_function(tmp_path: Path) -> None:
    path = _file(tmp_path / "attention.cu", PARTS)
    with pytest.raises(Unjudged, match=r"scores, weigh run one after another.*--call"):
        adopt.rungs_in_file(catalogue.operation("attention"), path)


def test_a_size_may_be_counted_in_float_and_sizes_vary_before_scalars(tmp_path: Path) -> None:
    text = "__global__ void k(const float* in, float* out, float N) { out[0] = in[0]; }\n"
    text += "void solve(const float* input, float* output, const float N) { k<<<1, 32>>>(input, output, N); }\n"
    path, of = _file(tmp_path / "softmax.cu", text), catalogue.operation("softmax")
    (name, function), *_ = host_calls.launching(text, path).items()
    first, second, *_ = host_calls.propose(of, text, path, name, function)
    assert {first["bind"]["N"], second["bind"]["N"]} == {"B * NH * T * S", "S"}


@needs_compiler
def test_a_kernel_that_nothing_launches_and_that_does_not_compile_says_so(tmp_path: Path) -> None:
    text = "__global__ void relu(const float* x, float* out, int N)\n{\n    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    text += "    if (i < N) out[i] = x[i] > 0 ? x[i] : x[i] != x[i] ? x[i] : 0;\n}\n"
    text += "void run(const float* x, float* out, int N) { relu<<<(N + 255) / 256, 256>>>(x, out, N); }\n"
    text += "__global__ void relu_later(const float* x, float* out, int N) { out[0] = unknown; }\n"
    path, of = _file(tmp_path / "relu.cu", text), catalogue.operation("relu")
    (rung,) = adopt.rungs_in_file(of, path)
    assert not rung.doubts and "unknown" in adopt.others_in_file(of, path)["relu_later"]


@needs_compiler
def test_a_formula_with_one_added_to_the_weights_is_named(tmp_path: Path) -> None:
    text = "__global__ void gemma(const float* x, const float* weight, float* y, int hidden, float eps)\n{\n"
    text += "    float sum = 0;\n    x += blockIdx.x * hidden;\n    y += blockIdx.x * hidden;\n"
    text += "    for (int i = 0; i < hidden; i++) sum += x[i] * x[i];\n"
    text += "    for (int i = threadIdx.x; i < hidden; i += 32) y[i] = x[i] * rsqrtf(sum / hidden + eps) * (1 + weight[i]);\n}\n"
    text += "void run(const float* x, const float* w, float* y, int n, int hidden, float eps)\n"
    text += "{ gemma<<<n, 32>>>(x, w, y, hidden, eps); }\n"
    path, of = _file(tmp_path / "rmsnorm.cu", text), catalogue.operation("rmsnorm")
    (rung,) = adopt.rungs_in_file(of, path)
    assert rung.doubts and rung.learned and rung.learned.failure["kind"] == "like"
    assert "1 + weight" in rung.learned.failure["pattern"]


@needs_compiler
@pytest.mark.slow
def test_what_the_files_own_launch_leaves_out_was_never_written(tmp_path: Path) -> None:
    text = "__global__ void add(const float* a, const float* b, float* out, int N)\n{\n"
    text += "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (i < N) out[i] = a[i] + b[i];\n}\n"
    text += "void solve(const float* a, const float* b, float* out, int N) { add<<<(N + 255) / 256, 256>>>(a, b, out, N / 4); }\n"
    path, of = _file(tmp_path / "residual.cu", text), catalogue.operation("residual")
    (rung,) = adopt.rungs_in_file(of, path)
    report = first_look(rung, (), ())
    assert report and report.verdict == "not judged" and NEVER in report.reason


TRITON = """
import torch, triton
import triton.language as tl
@triton.jit
def kernel(x, y, bias, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)
"""


def test_of_functions_that_take_the_same_that_of_the_operations_name_is_called(tmp_path: Path) -> None:
    call = "    out = torch.empty_like(x)\n    kernel[(1,)](x, x, bias, out, 4, 4)\n    return out\n"
    text = TRITON + "".join(f"def bias_{name}(x, bias):\n{call}" for name in ("relu", "gelu", "silu"))
    rung = PythonRung(catalogue.operation("bias_gelu"), _file(tmp_path / "bias.py", text))
    assert rung.facts.entry and rung.facts.entry.name == "bias_gelu"


def test_a_function_of_python_may_take_an_operand_as_one_number(tmp_path: Path) -> None:
    text = TRITON + "def solve(input: torch.Tensor, gamma: float, output: torch.Tensor, N: int, eps: float):\n"
    text += "    kernel[(1,)](input, input, gamma, output, N, 4)\n"
    of, path = catalogue.operation("rmsnorm"), _file(tmp_path / "norm.py", text)
    from rung.adopt import python_calls

    table = python_calls.propose(of, text, path)[0]
    assert table["bind"]["gamma"] == "weight[0]" and "weight == 1" not in table["needs"]
    rung = PythonRung(of, path, {**table, "adopted": "trial"})
    assert "weight" in rung.binds and rung.operation.operand("weight").alike
