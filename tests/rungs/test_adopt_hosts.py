"""What the host's code of a file makes of its sizes and arrays before it launches: adopt reads it, or runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulation import needs_compiler
from rung import adopt
from rung.adopt import host_calls, launches
from rung.adopt.host_launches import in_a_row, launches_in
from rung.check.first_look import first_look
from rung.check.judge import report_on
from rung.check.report import ALONE, CheckRequest
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
    assert report and report.verdict == "not judged" and report.failure["unwritten"]


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


RACY = """
__global__ void sum_rows(const float* x, float* part, int n) {
    __shared__ float t[64];
    t[threadIdx.x] = threadIdx.x < n ? x[blockIdx.x * n + threadIdx.x] : 0.0f;
    for (int i = threadIdx.x + 64; i < n; i += 64) t[threadIdx.x] += x[blockIdx.x * n + i];
    __syncthreads();
    for (int o = 32; o; o /= 2)
        if (threadIdx.x < o) t[threadIdx.x] += t[threadIdx.x + o];
    if (!threadIdx.x) part[blockIdx.x] = t[0];
}
__global__ void pass(const float* part, float* out) { out[blockIdx.x] = part[blockIdx.x]; }
void solve(const float* x, float* out, int B, int N) {
    float* part;
    cudaMalloc(&part, B * sizeof(float));
    sum_rows<<<B, 64>>>(x, part, N);
    pass<<<B, 1>>>(part, out);
    cudaFree(part);
}
"""


def test_a_race_of_a_host_functions_kernel_is_the_files(tmp_path: Path) -> None:
    (rung,) = adopt.rungs_in_file(catalogue.operation("reduce"), _file(tmp_path / "own.cu", RACY))
    told = first_look(rung, [], [])
    assert told and (told.verdict, told.cause) == ("failed", "race")
    assert told.place["line"] == 8 and told.place["kernel"] == "sum_rows"


SQUARE = """
__global__ void copy_matrix(const float* A, float* B, int total) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < total) B[i] = A[i];
}
void solve(const float* A, float* B, int N) {
    int total = N * N;
    copy_matrix<<<(total + 255) / 256, 256>>>(A, B, total);
}
"""
LAYOUT = """
__global__ void product(const float* A, const float* B, float* C, int M, int N, int K) {
    int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < K && row < M && col < N; k++) sum += A[row * K + k] * B[k * N + col];
    if (row < M && col < N) C[row * N + col] = sum;
}
torch::Tensor forward(torch::Tensor A, torch::Tensor B, torch::Tensor C) {
    const int M = A.size(0), K = A.size(1), N = B.size(1);
    dim3 blocks((N + 15) / 16, (M + 15) / 16), threads(16, 16);
    product<<<blocks, threads>>>(A.data_ptr<float>(), B.data_ptr<float>(), C.data_ptr<float>(), M, N, K);
    return C;
}
"""
ROWS = """
__global__ void attend(const float* Q, const float* K, const float* V, float* O, int N, int d_model, int h) {
    int d = d_model / h, row = blockIdx.x, head = blockIdx.y;
    Q += row * d_model + head * d, K += head * d, V += head * d, O += row * d_model + head * d;
    float most = -INFINITY, sum = 0;
    for (int n = 0; n < N; n++) {
        float s = 0;
        for (int c = 0; c < d; c++) s += Q[c] * K[n * d_model + c];
        most = fmaxf(most, s * rsqrtf(d));
    }
    for (int c = 0; c < d; c++) O[c] = 0;
    for (int n = 0; n < N; n++) {
        float s = 0;
        for (int c = 0; c < d; c++) s += Q[c] * K[n * d_model + c];
        s = expf(s * rsqrtf(d) - most), sum += s;
        for (int c = 0; c < d; c++) O[c] += s * V[n * d_model + c];
    }
    for (int c = 0; c < d; c++) O[c] /= sum;
}
void solve(const float* Q, const float* K, const float* V, float* O, int N, int d_model, int h) {
    attend<<<dim3(N, h), 1>>>(Q, K, V, O, N, d_model, h);
}
"""
UNUSED = """
__global__ void softmax_kernel(const float* input, float* output, int N) {
    extern __shared__ float unused[];
    float most = -INFINITY, sum = 0;
    for (int i = blockIdx.x * 128; i < min(N, blockIdx.x * 128 + 128); i++) most = fmaxf(most, input[i]);
    for (int i = blockIdx.x * 128; i < min(N, blockIdx.x * 128 + 128); i++) sum += expf(input[i] - most);
    int i = blockIdx.x * 128 + threadIdx.x;
    if (i < N) output[i] = expf(input[i] - most) / sum;
}
void solve(const float* input, float* output, int N) {
    softmax_kernel<<<(N + 127) / 128, 128>>>(input, output, N);
}
"""


@pytest.mark.parametrize(
    ("operation", "text", "bind"),
    [
        ("copy", SQUARE, {"N": "int(sqrt(N))"}),
        ("matmul", LAYOUT, {"B": "weight_t", "N": "OC", "K": "C"}),
        ("attention", ROWS, {"Q": "q_rows", "d_model": "C", "N": "T", "h": "NH"}),
    ],
)
def test_sizes_and_layouts_that_names_do_not_tell_are_tried(
    operation: str, text: str, bind: dict[str, str], tmp_path: Path
) -> None:
    rung = adopt.rung_from_file(catalogue.operation(operation), _file(tmp_path / "own.cu", text))
    learned = rung.learned
    assert learned and not rung.doubts and {name: learned.table["bind"].get(name, name) for name in bind} == bind


def test_a_launch_that_is_right_for_one_block_alone_is_judged_as_the_file_has_it(tmp_path: Path) -> None:
    rung = adopt.rung_from_file(catalogue.operation("softmax"), _file(tmp_path / "own.cu", UNUSED))
    assert rung.doubts


def test_a_call_for_one_row_does_not_hide_what_is_wrong_in_others(tmp_path: Path) -> None:
    kernel = """
__global__ void add_bias(const float* x, const float* bias, float* out, int n, int OC) {
    const float each = 1.0f / OC;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        out[i] = x[i] + bias[i - int(i * each) * OC];
}
void add(const float* x, const float* bias, float* out, int rows, int OC) {
    const int n = rows * OC;
    add_bias<<<(n + 255) / 256, 256>>>(x, bias, out, n, OC);
}
"""
    rung = adopt.rung_from_file(catalogue.operation("bias"), _file(tmp_path / "own.cu", kernel))
    assert rung.learned and rung.learned.table["bind"]["n"] == "B * T * OC"
    report = report_on(CheckRequest("bias/own", "f32", file=str(rung.path), effort=ALONE))
    assert report.verdict == "failed" and report.cause in ("values", "bounds"), report


VECTORS = """
__global__ void relu4(const float4* x, float4* out, int n4) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n4) return;
    float4 v = x[i];
    out[i] = make_float4(v.x < 0 ? 0 : v.x, v.y < 0 ? 0 : v.y, v.z < 0 ? 0 : v.z, v.w < 0 ? 0 : v.w);
}
int main() {
    const int N = 1 << 20;
    relu4<<<(N / 4 + 255) / 256, 256>>>((float4*)x, (float4*)out, N / 4);
}
"""
COMMENTED = """
// product<<<grid, block>>>(d_output, d_input, n);
__global__ void product(float* M, float* N, float* P, int width) {
    int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < width && row < width && col < width; k++) sum += M[row * width + k] * N[k * width + col];
    if (row < width && col < width) P[row * width + col] = sum;
}
"""


@pytest.mark.parametrize(
    ("operation", "text", "bind"),
    [("relu", VECTORS, {"n4": "N // 4"}), ("matmul", COMMENTED, {"M": "x", "N": "weight_t", "P": "out"})],
)
def test_mains_numbers_and_another_kernels_launch_do_not_mislead(
    operation: str, text: str, bind: dict[str, str], tmp_path: Path
) -> None:
    rung = adopt.rung_from_file(catalogue.operation(operation), _file(tmp_path / "own.cu", text))
    assert rung.learned and {name: rung.learned.table["bind"].get(name, name) for name in bind} == bind, rung.learned
