"""What is judged is named: each kernel of a file has its own verdict, and no right sibling stands in for a wrong one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from emulation import needs_compiler

PLAIN = """__global__ void relu_plain(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] < 0 ? 0.f : x[i];
}
"""
FAST = PLAIN.replace("relu_plain", "relu_fast").replace("0.f : x[i]", "1.f : 2 * x[i]")
MAIN = """int main() { float *d_x, *d_out; int n = 1000;
    relu_plain<<<(n + 255) / 256, 256>>>(d_x, d_out, n);
    relu_fast<<<(n + 255) / 256, 256>>>(d_x, d_out, n);
}
"""
SIBLING = "__global__ void gelu_approximate(const float* x, float* out, int n) { out[0] = n; }\n"


ONE_ROW = """__global__ void softmax_kernel(const float* input, float* output, int N) {
    float most = -INFINITY, sum = 0.0f;
    for (int i = 0; i < N; ++i) most = fmaxf(most, input[i]);
    for (int i = 0; i < N; ++i) sum += expf(input[i] - most);
    for (int i = threadIdx.x; i < N; i += blockDim.x) output[i] = expf(input[i] - most) / sum;
}
void solve(const float* input, float* output, int N) { softmax_kernel<<<1, 256>>>(input, output, N); }
"""


def checked(path: Path, *words: str, operation: str = "relu") -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "rung", "check", operation, str(path), "--device", "emulator", "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, json.loads(done.stdout)


@needs_compiler
def test_each_kernel_has_its_own_verdict_and_the_files_is_the_worst(tmp_path: Path) -> None:
    path = tmp_path / "own.cu"
    path.write_text(PLAIN + FAST + SIBLING + MAIN)
    code, told = checked(path, "--quick")
    verdicts = {one["kernel"]: one["verdict"] for one in told["kernels"]}
    assert verdicts == {"relu_plain": "ok", "relu_fast": "failed", "gelu_approximate": "not judged"}
    assert code == 1 and all(one.get("reason") for one in told["kernels"] if one["verdict"] == "not judged")


@needs_compiler
@pytest.mark.parametrize(("kernel", "expected"), [("relu_plain", 0), ("relu_fast", 1)])
def test_a_user_names_a_kernel_and_its_launch(kernel: str, expected: int, tmp_path: Path) -> None:
    path = tmp_path / "own.cu"
    path.write_text(PLAIN + FAST + MAIN)
    given = ("--kernel", kernel, "--launch", "grid=ceil_div(N, 128), block=128", "--quick")
    code, told = checked(path, *given)
    assert code == expected and [r["kernels"] for r in told["results"]] == [[kernel]]


@pytest.mark.slow
@needs_compiler
def test_the_header_that_was_proposed_gives_the_same_verdict(tmp_path: Path) -> None:
    path = tmp_path / "own.cu"
    path.write_text(ONE_ROW)
    bare = checked(path, operation="softmax")
    checked(path, "--quick", "--write", operation="softmax")
    written = checked(path, operation="softmax")
    assert path.read_text().startswith("/*---")
    facts = [(code, [(r["verdict"], r["cases"]) for r in told["results"]]) for code, told in (bare, written)]
    assert facts[0] == facts[1] and facts[0][0] == 0


@needs_compiler
def test_a_header_that_asks_who_runs_it_is_no_verdict(tmp_path: Path) -> None:
    path = tmp_path / "own.cu"
    launch = '[[launch]]\nkernel = "{}"\ngrid = "ceil_div(N, 256)"\nblock = 256\nwhen = "{}"\n'
    head = '/*---\nidea = "x"\n[bind]\nn = "N"\n' + launch.format("relu_plain", "emulated")
    path.write_text(head + launch.format("relu_fast", "1 - emulated") + "---*/\n" + PLAIN + FAST)
    assert checked(path, "--quick")[0] == 3


@needs_compiler
def test_editors_read_the_place(tmp_path: Path) -> None:
    path = tmp_path / "own.cu"
    path.write_text(PLAIN.replace("if (i < n) ", "") + MAIN.replace("    relu_fast<<<(n + 255) / 256, 256>>>(d_x, d_out, n);\n", ""))
    command = [sys.executable, "-m", "rung", "check", "relu", str(path), "--device", "emulator", "--format", "gcc"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout.startswith(f"{path}:3: error: "), done.stdout + done.stderr


@pytest.mark.slow
@needs_compiler
def test_many_kernels_of_a_file_are_judged_in_several_processes(tmp_path: Path) -> None:
    path = tmp_path / "own.cu"
    names = [f"relu_{i}" for i in range(5)]
    launches = "\n".join(f"    {name}<<<(n + 255) / 256, 256>>>(d_x, d_out, n);" for name in names)
    kernels = "".join(PLAIN.replace("relu_plain", name) for name in names)
    path.write_text(kernels + "int main() { float *d_x, *d_out; int n = 1000;\n" + launches + "\n}\n")
    code, told = checked(path, "--quick")
    assert {one["kernel"]: one["verdict"] for one in told["kernels"]} == dict.fromkeys(names, "ok") and code == 0


@needs_compiler
@pytest.mark.parametrize(("bound", "expected"), [("i < n", "ok"), ("i <= n", "not judged")])
def test_another_launch_does_not_stand_in_for_the_files_own(bound: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "own.cu"
    host = "void forward(float* out, const float* in, int n) { relu_plain<<<(n + 127) / 128, 128>>>(in, out, n); }\n"
    path.write_text(PLAIN.replace("i < n", bound) + host)
    _, told = checked(path, operation="relu")
    assert [one["verdict"] for one in told["kernels"]] == [expected]
    gelu = tmp_path / "gelu.cu"  # of three dims: a block for each row hides the element behind the last
    of_x = "0.5f * x[i] * (1 + tanhf(0.7978845608f * (x[i] + 0.044715f * x[i] * x[i] * x[i])))"
    gelu.write_text(path.read_text().replace("x[i] < 0 ? 0.f : x[i]", of_x))
    _, told = checked(gelu, operation="gelu")
    assert [one["verdict"] for one in told["kernels"]] == [expected]


@needs_compiler
def test_what_nvrtc_alone_refuses_is_no_failure_of_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "common.h").write_text("template <typename T> void fill(T* x, int n) { for (; n--;) x[n] = rand(); }\n")
    path = tmp_path / "own.cu"
    path.write_text('#include "common.h"\n' + PLAIN)
    _, told = checked(path)
    assert [one["verdict"] for one in told["kernels"]] in (["ok"], ["not judged"])


@needs_compiler
def test_a_kernel_that_tests_its_index_is_not_confirmed_by_a_grid_that_fits_exactly(tmp_path: Path) -> None:
    path = tmp_path / "own.cu"
    path.write_text(
        "__global__ void add(const float* a, const float* b, float* c, int n) {\n"
        "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "    if (i <= n) c[i] = a[i] + b[i];\n}\n"
    )
    code, told = checked(path, operation="residual")
    assert code == 3 and [one["verdict"] for one in told["kernels"]] == ["not judged"]


@needs_compiler
def test_a_fault_of_the_files_own_launch_at_whole_tiles_too_is_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "own.cu"
    host = "void forward(float* out, const float* in, int n) { relu_plain<<<n / 32 + 2, 32>>>(in, out, n); }\n"
    path.write_text(PLAIN.replace("if (i < n) ", "") + host)
    code, told = checked(path)
    assert code == 1 and [(one["kind"], one["place"]["line"]) for one in told["findings"]] == [("bounds", 3)]


@needs_compiler
@pytest.mark.slow
def test_kernels_beyond_the_files_share_of_work_are_told_so(tmp_path: Path) -> None:
    path = tmp_path / "own.cu"
    wrong = PLAIN.replace("if (i < n) out[i]", "for (int k = 0; k < 50; ++k) out[i % (n - 1)]")
    path.write_text("".join(wrong.replace("relu_plain", f"relu_{k}") for k in range(16)))
    _, told = checked(path)
    reasons = [one["text"] for one in told["findings"]]
    assert {r["verdict"] for r in told["results"]} == {"not judged"} and len(reasons) == 16
    assert "--kernel" in reasons[-1] and "--kernel" not in reasons[0]


@needs_compiler
def test_what_the_compiler_refuses_has_a_place(tmp_path: Path) -> None:
    path = tmp_path / "own.cu"
    path.write_text(PLAIN.replace("x[i] < 0", "y[i] < 0"))
    code, told = checked(path)
    assert code == 1 and [one["place"]["line"] for one in told["findings"]] == [3]


@needs_compiler
@pytest.mark.parametrize("sign", ["0.f", "x[i]"])
def test_a_kernel_that_a_macro_makes_is_judged(sign: str, tmp_path: Path) -> None:
    path = tmp_path / "own.cu"
    made = PLAIN.replace("relu_plain", "relu_##NAME").replace("float", "TYPE").replace("0.f", sign).replace("\n", " \\\n")
    path.write_text(f"#define MAKE(NAME, TYPE) {made}\n\nMAKE(plain,\n     float)\n")
    code, told = checked(path, "--quick")
    assert (code == 0) == (sign == "0.f") and [r["kernels"] for r in told["results"]] == [["relu_plain"]]


TRITON = """import torch
import triton
import triton.language as tl


@triton.jit
def forward(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, larger(tl.load(x + at, mask=at < n)), mask=at < n)


@triton.jit
def larger(value):
    return tl.where(value < 0, 0.0, value)


@triton.jit
def backward(dy, dx, n, BLOCK: tl.constexpr):
    tl.store(dx, 1.0)


class Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        forward[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)
        return out

    @staticmethod
    def backward(ctx, dy):
        dx = torch.empty_like(dy)
        backward[(1,)](dy, dx, dy.numel(), BLOCK=256)
        return dx


relu = Relu.apply
"""


def test_a_kernel_of_a_python_file_that_its_call_does_not_launch_is_named(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(TRITON)
    code, told = checked(path, "--quick")
    verdicts = {one["kernel"]: one["verdict"] for one in told["kernels"]}
    assert (code, verdicts) == (0, {"forward": "ok", "backward": "not judged"})
    assert [one["kernel"] for one in told["kernels"] if one.get("reason")] == ["backward"]


LATE = """__global__ void reduce_rows(const float* x, float* out, int B, int N) {
    __shared__ float part[1024];
    float sum = 0.0f;
    for (int i = threadIdx.x; i < N; i += blockDim.x) sum += x[blockIdx.x * N + i];
    part[threadIdx.x] = sum;
    if (N <= 100) __syncthreads();
    if (threadIdx.x == 0) {
        float all = 0.0f;
        for (int t = 0; t < blockDim.x; ++t) all += part[t];
        out[blockIdx.x] = all;
    }
}
"""


@needs_compiler
@pytest.mark.parametrize(
    ("host", "words", "expected"),
    [
        ("", (), "not judged"),
        ("", ("--kernel", "reduce_rows", "--launch", "grid=B, block=256"), "failed"),
        ("void solve(const float* x, float* out, int B, int N) { reduce_rows<<<B, 256>>>(x, out, B, N); }", (), "failed"),
    ],
)
def test_a_race_is_the_kernels_only_where_somebody_has_said_its_launch(
    host: str, words: tuple[str, ...], expected: str, tmp_path: Path
) -> None:
    path = tmp_path / "own.cu"
    path.write_text(LATE + host)
    _, told = checked(path, *words, operation="reduce")
    (finding,) = told["findings"]
    assert (told["verdict"], finding["kind"]) == (expected, "race") and ("guessed" in finding["text"]) == (not host and not words)
