"""The command `gpuless run`: CUDA programs compiled by NVIDIA's nvcc, judged while they run."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuless.program import command, nvcc_options


def gpuless(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "gpuless", *map(str, words)], capture_output=True, text=True)


def test_options_of_builds_are_for_the_gpu_in_software() -> None:
    """A build names its own architectures and runtime; lines are kept, and host code is compiled for its lines."""
    words = ["-gencode", "arch=compute_80,code=sm_80", "--gpu-architecture=sm_70", "-cudart", "static", "-c", "a.cu"]
    made = nvcc_options.translated(words, "/toolkit")
    assert made[:2] == ["-c", "a.cu"]
    assert "-arch=sm_90" in made and not any("80" in word or "70" in word for word in made)
    assert made[made.index("-cudart") + 1] == "shared" and "-lineinfo" in made
    assert "-arch=sm_90a" in nvcc_options.translated(["-gencode=arch=compute_90a,code=sm_90a", "a.cu"], "/toolkit")
    assert nvcc_options.translated(["--version"], "/toolkit") == ["--version"]
    assert "-O1" not in nvcc_options.translated(["-O3", "a.cu"], "/toolkit")
    assert "-lineinfo" not in nvcc_options.translated(["-G", "a.cu"], "/toolkit")


def test_options_stand_before_a_programs_files_or_behind_them() -> None:
    def split(*words: str) -> tuple[bool, list[str], list[str], list[str]]:
        options, nvcc, files, rest = command._split("run", words, "gpuless")
        return options.json, nvcc, files, rest

    files = ["a.cu", "b.cpp"]
    assert split("-O3", *files, "--json", "-I", "inc", "3", "c.cu") == (True, ["-O3", "-I", "inc"], files, ["3", "c.cu"])
    assert split("a.cu", "-size", "--json") == (False, [], ["a.cu"], ["-size", "--json"])
    assert split("--json", "a.cu", "--", "--seed") == (True, [], ["a.cu"], ["--seed"])
    assert split("pytest", "-q", "--json") == (False, [], [], ["pytest", "-q", "--json"])


def test_mistakes_are_told_in_a_sentence(tmp_path: Path) -> None:
    for words, told in (
        (["run", tmp_path / "none.cu"], "is not a file"),
        (["run", "--gpu", "none", "true"], "no GPU"),
        (["run", "--order", "none", "true"], "--order none is not known"),
        (["none"], "gpuless run"),
    ):
        ended = gpuless(*words)
        assert ended.returncode == 2 and told in ended.stderr, ended


def test_what_programs_seldom_call_is_there_or_refused_by_name(tmp_path: Path) -> None:
    """NVRTC as a library; the profiler's functions of the driver; a function that a graphics library would serve."""
    source = tmp_path / "seldom.cpp"
    source.write_text(
        "#include <cuda.h>\n#include <cuda_runtime.h>\n#include <nvrtc.h>\n"
        'extern "C" CUresult cuProfilerStop();\nint main()\n{\n'
        '    nvrtcProgram program;\n    nvrtcCreateProgram(&program, "__global__ void k() {}", "k.cu", 0, 0, 0);\n'
        "    if (cudaFree(0) || nvrtcCompileProgram(program, 0, 0) || cuProfilerStop()) return 7;\n"
        "    return cudaGraphicsUnmapResources(0, 0, 0) == cudaErrorNotSupported ? 0 : 8;\n}\n"
    )
    ended = gpuless("run", "-lnvrtc", "-lcuda", source)
    assert ended.returncode == 0, ended
    assert "cudaGraphicsUnmapResources is not supported" in ended.stderr


def test_builds_that_name_the_toolkit_by_another_variable_link_its_static_runtime(tmp_path: Path) -> None:
    (tmp_path / "main.cpp").write_text(
        "#include <cuda_runtime.h>\nint main() { int n; return cudaGetDeviceCount(&n) || n != 1; }\n"
    )
    build = "g++ main.cpp -o p -I$CUDAPATH/include $CUDA_DIR/lib64/libcudart_static.a -ldl -lpthread && ./p"
    command = [sys.executable, "-m", "gpuless", "run", "sh", "-c", build]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended


def test_a_call_that_takes_long_is_no_idle_host(tmp_path: Path) -> None:
    """The launch loads its code while a copy is pending: the copy has not been waited for."""
    source = tmp_path / "reused.cu"
    source.write_text(
        f"__global__ void add(int* x) {{ x[threadIdx.x] += {time.time_ns() % 1_000_000_007}; }}\nint main()\n{{\n"
        "    int *h, *x;\n    cudaMallocHost(&h, 128), cudaMalloc(&x, 128);\n    for (int i = 0; i < 32; i++) h[i] = i;\n"
        "    cudaMemcpyAsync(x, h, 128, cudaMemcpyHostToDevice, 0);\n    add<<<1, 32>>>(x);\n"
        "    h[3] = 4;\n    cudaDeviceSynchronize();\n    cudaFree(x), cudaFreeHost(h);\n}\n"
    )
    found = json.loads(gpuless("run", "--json", source).stdout)["findings"]
    assert [(one["kind"], one["related"][0]["line"]) for one in found] == [("race", 9)]


APART = {
    "calls": """
__device__ int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
__global__ void k(int* p)
{
    p[threadIdx.x] = fibonacci(threadIdx.x % 12);
    if (threadIdx.x == 9) printf("%d.", p[9]);
}
""",
    "addresses of functions and variables": """
typedef int (*F)(int);
__device__ int twice(int x) { return 2 * x; }
__device__ int square(int x) { return x * x; }
__device__ F table[2] = {twice, square};
__constant__ int weights[2] = {3, 5};
__device__ int total = 7;
__global__ void k(int* p) { p[threadIdx.x] = table[threadIdx.x % 2](threadIdx.x) * weights[threadIdx.x / 16] + total; }
""",
    "shared memory of a function": """
__device__ int sum(int x) {
    __shared__ int all[32];
    all[threadIdx.x] = x;
    __syncthreads();
    int s = 0;
    for (int i = 0; i < 32; i++) s += all[i];
    return s;
}
__global__ void other(int* p) { p[threadIdx.x] = sum(1); }
__global__ void k(int* p) {
    __shared__ int own[32];
    own[threadIdx.x] = sum(threadIdx.x);
    __syncwarp();
    p[threadIdx.x] = own[31 - threadIdx.x] - threadIdx.x;
}
""",
}
MAIN = """
int main() {
    int *p, all[32];
    cudaMalloc(&p, sizeof all);
    k<<<1, 32>>>(p);
    cudaMemcpy(all, p, sizeof all, cudaMemcpyDeviceToHost);
    for (int i = 0; i < 32; i++) printf(" %d", all[i]);
    cudaFree(p);
}
"""


@pytest.mark.parametrize("options", [("-G",), ("-rdc=true",), ("-rdc=true", "-G")], ids=" ".join)
@pytest.mark.parametrize("kernels", APART.values(), ids=APART)
def test_functions_in_sections_of_their_own_are_executed(tmp_path: Path, kernels: str, options: Sequence[str]) -> None:
    """Code for debuggers, and code that several files share, keeps functions apart from the kernels that call them."""
    source = tmp_path / "apart.cu"
    source.write_text(f"#include <cstdio>\n{kernels}\n{MAIN}")
    plain = gpuless("run", source)
    apart = gpuless("run", *options, source)
    assert (apart.returncode, apart.stdout) == (0, plain.stdout)
    assert plain.stdout.count(" ") == 32


def test_a_race_in_a_function_of_its_own_section_has_its_line(tmp_path: Path) -> None:
    source = tmp_path / "apart.cu"
    source.write_text(
        "__device__ int next(int* s, int x) {\n"
        "    s[threadIdx.x] = x;\n"
        "    return s[(threadIdx.x + 1) % 64]; }\n"
        "__global__ void k(int* p) { __shared__ int s[64]; p[threadIdx.x] = next(s, threadIdx.x); }\n"
        "int main() { int* p; cudaMalloc(&p, 256); k<<<1, 64>>>(p); cudaDeviceSynchronize(); cudaFree(p); }\n"
    )
    found = json.loads(gpuless("run", "-G", "--json", source).stdout)["findings"]
    assert [(one["kind"], {one["place"]["line"], one["related"][0]["line"]}) for one in found] == [("race", {2, 3})]


def test_the_last_parameter_is_shorter_than_a_word(tmp_path: Path) -> None:
    """Code reads a whole word, of which constant memory has half."""
    source = tmp_path / "short.cu"
    source.write_text(
        "#include <cstdio>\n"
        '__global__ void k(unsigned short n) { printf("%d", __popc(n)); }\n'
        "int main() { k<<<1, 1>>>(0xffff); cudaDeviceSynchronize(); }\n"
    )
    assert gpuless("run", source).stdout == "16"


MANY = """#include <cstdio>
template <int N> __global__ void grow(float* x, float a)
{
    float v = x[threadIdx.x];
#pragma unroll
    for (int i = 0; i < 1100; i++) v = v * a + i * N;
    x[threadIdx.x] = v;
    if (N == 7) x[0] = threadIdx.x;
}
template <int N> void all(float* x)
{
    grow<N><<<1, 32>>>(x, 0.5f);
    if constexpr (N > 0) all<N - 1>(x);
}
int main(int count, char**)
{
    float* x;
    cudaMallocManaged(&x, 32 * sizeof *x);
    for (int i = 0; i < 32; i++) x[i] = i;
    if (count > 1) all<9>(x);
    grow<3><<<1, 32>>>(x, 0.5f);
    cudaDeviceSynchronize();
    printf("%g", x[31]);
    cudaFree(x);
}
"""


def test_of_a_large_file_the_kernels_that_run_are_read(tmp_path: Path) -> None:
    source = tmp_path / "many.cu"
    source.write_text(MANY)
    one = gpuless("run", source)
    assert (one.returncode, one.stdout) == (0, "6588"), one
    every = gpuless("run", "--json", source, "7")
    report = json.loads(every.stdout)
    assert [(fault["kind"], fault["place"]["line"]) for fault in report["findings"]] == [("race", 8)], every
    counted = gpuless("count", "--json", source)
    kernels = json.loads(counted.stdout)["kernels"]
    assert [(one["kernel"], one["figures"]["launches"]) for one in kernels] == [("grow<3>", 1)], counted
    assert kernels[0]["figures"]["instructions"] > 1000 and kernels[0]["figures"]["microseconds"] > 0
