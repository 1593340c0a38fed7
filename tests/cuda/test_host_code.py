"""What people include beside a kernel and write around it: both compilers take the kernel."""

from __future__ import annotations

import pytest
import torch

from emulation import needs_compiler, run
from gpuless.compile import nvrtc
from gpuless.compile.host_code import device_part, host_part
from gpuless.compile.source import kernels_in
from gpuless.launch import Build
from rung.errors import CompileError
from rung.operation import LADDERS

HEADERS = [
    *("float.h", "stdint.h", "math.h", "stdio.h", "stdlib.h", "assert.h", "limits", "limits.h", "string.h", "cassert"),
    *("cstdio", "cstdint", "cmath", "cfloat", "climits", "cstdlib", "cstring", "cstddef", "algorithm", "type_traits"),
    *("utility", "array", "vector", "iostream", "chrono", "cublas_v2.h", "torch/extension.h", "cuda.h"),
    *("cuda_runtime.h", "cuda_fp16.h", "cuda_bf16.h", "device_launch_parameters.h"),
]
KERNEL = """
using namespace std;
#define cudaCheck(e) check_error((e), __FILE__, __LINE__)
inline void check_error(cudaError_t e, const char* file, int line) { if (e != cudaSuccess) exit(1); }
typedef float floatX;
constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
static vector<float> kept;
cublasHandle_t handle;
struct Timer { cudaEvent_t a; void go() { cudaEventRecord(a); } };
struct Pair { int a, b; int sum() const { return a + b; } };
__device__ float lowest() { Pair p{1, 2}; return p.a > 5 ? -INFINITY : numeric_limits<float>::lowest(); }
template <typename T>
__global__ void widest(const T* x, floatX* out, int n) {
    assert(n > 0);
    static_assert(is_same<T, float>::value, "only float");
    float best = lowest();
    for (int k = 0; k < ceil_div(n, 4); k++) {
        for (int i = 4 * k; i < min(n, 4 * k + 4); i++) best = fmaxf(best, x[i]);
    }
    out[0] = best == -FLT_MAX ? -INFINITY : best;
    out[1] = float(sizeof(uint64_t) + sizeof(int8_t));
}
void launch(const float* x, float* y, int n) {
    widest<float><<<ceil_div(n, n), dim3(1)>>>(x, y, n);
    cudaCheck(cudaGetLastError());
}
int main(int argc, char** argv) {
#ifdef NOTHING
    return 1;
#endif
    vector<float> h(1024);
    cublasCreate(&handle);
    std::cout << h[0] << '\\n';
    return 0;
}
"""


@pytest.fixture
def source() -> str:
    return "".join(f"#include <{name}>\n" for name in HEADERS) + KERNEL


def build(source: str, *kernels: str) -> Build:
    return Build(device_part(source), "test.cu", kernels or kernels_in(source), ())


def test_nvrtc_takes_a_file_with_host_code(source: str) -> None:
    cubin = nvrtc.compile_cubin(build(source, "widest<float>"), "sm_90")
    assert cubin.resources["widest<float>"].registers > 0


@needs_compiler
def test_the_emulator_runs_a_file_with_host_code(source: str) -> None:
    out = torch.zeros(2)
    run(device_part(source), torch.tensor([1.0, 7.0, 3.0, -2.0, 5.0]), out, 5, block=1, kernel="widest<float>")
    assert out.tolist() == [7.0, 9.0]


def test_lines_and_directives_stay(source: str) -> None:
    cleaned = device_part(source)
    assert cleaned.count("\n") == source.count("\n")
    assert cleaned.splitlines().index("#ifdef NOTHING") == source.splitlines().index("#ifdef NOTHING")
    for gone in ("main", "void launch", "Timer", "cublasHandle_t", "<vector>", "check_error(cudaError_t"):
        assert gone not in cleaned
    for there in ("ceil_div(int a", "struct Pair", "typedef float floatX", "float lowest()"):
        assert there in cleaned


def test_what_only_instances_of_the_hosts_templates_name_is_left_out() -> None:
    text = "struct State { std::string name; };\ntemplate <class T> void call(State& s, T* x) { k<<<1, 1>>>(x); }\n"
    text += "template void call<float>(State&, float*);\ntemplate <> void call<int>(State&, int*) {}\n"
    text += "template <class T> __global__ void k(T* x) { *x = 1; }\ntemplate __global__ void k<float>(float*);\n"
    cleaned = device_part(text)
    assert "State" not in cleaned and "k<float>" in cleaned
    nvrtc.compile_cubin(build(text, "k<float>"), "sm_90")


def test_launches_are_in_the_hosts_part(source: str) -> None:
    assert "<<<" in host_part(source)
    assert "__global__" not in host_part(source)


def test_no_file_of_the_ladders_has_host_code() -> None:
    files = [path for path in LADDERS.rglob("*.cu*") if "__global__" in path.read_text()]
    assert len(files) > 200
    assert [path for path in files if device_part(path.read_text()) != path.read_text()] == []


def test_a_helper_without_device_is_refused_as_by_nvcc() -> None:
    plain = "float twice(float x) { return 2 * x; }\n__global__ void k(float* x) { x[0] = twice(x[1]); }"
    with pytest.raises(CompileError, match="twice"):
        nvrtc.compile_cubin(build(plain), "sm_90")


CUB = """
#include <cub/cub.cuh>
template <int BLOCK>
__global__ void primitives(const float* x, float* sums, float* scanned, int* sorted) {
    typedef cub::BlockReduce<float, BLOCK> Reduce;
    typedef cub::BlockScan<float, BLOCK> Scan;
    typedef cub::BlockRadixSort<int, BLOCK, 1> Sort;
    typedef cub::WarpReduce<float> Warp;
    typedef cub::BlockLoad<float, BLOCK, 1> Load;
    __shared__ union {
        typename Reduce::TempStorage reduce;
        typename Scan::TempStorage scan;
        typename Sort::TempStorage sort;
    } shared;
    __shared__ typename Warp::TempStorage warps[BLOCK / 32];
    float item[1];
    Load().Load(x, item);
    float total = Reduce(shared.reduce).Sum(item[0]);
    if (threadIdx.x == 0) sums[0] = total;
    __syncthreads();
    float most = Reduce(shared.reduce).Reduce(item[0], cub::Max(), BLOCK - 1);
    if (threadIdx.x == 0) sums[1] = most;
    __syncthreads();
    float before, all;
    Scan(shared.scan).ExclusiveSum(item[0], before, all);
    scanned[threadIdx.x] = before;
    if (threadIdx.x == 5) sums[2] = all;
    __syncthreads();
    float own = Warp(warps[threadIdx.x / 32]).Sum(item[0]);
    if (threadIdx.x % 32 == 0) sums[3 + threadIdx.x / 32] = own;
    int key[1] = {int(item[0] * 100.0f)};
    Sort(shared.sort).SortDescending(key);
    sorted[threadIdx.x] = key[0];
}
"""


@needs_compiler
def test_cubs_primitives_agree_with_torch() -> None:
    x = torch.randn(64, generator=torch.Generator().manual_seed(0))
    sums, scanned, sorted_ = torch.zeros(5), torch.zeros(64), torch.zeros(64, dtype=torch.int32)
    run(CUB, x, sums, scanned, sorted_, block=64, kernel="primitives<64>")
    expected = torch.stack([x.sum(), x[:63].max(), x.sum(), x[:32].sum(), x[32:].sum()])
    assert torch.allclose(sums, expected, atol=1e-5)
    assert torch.allclose(scanned, x.cumsum(0) - x, atol=1e-5)
    assert torch.equal(sorted_, (x * 100.0).to(torch.int32).sort(descending=True).values)


@pytest.mark.slow
@needs_compiler
def test_a_barrier_that_cub_needs_is_missed() -> None:
    from rung.errors import EmulatorFault

    twice = CUB.replace("    __syncthreads();\n    float most", "    float most", 1)
    with pytest.raises(EmulatorFault) as fault:
        x = torch.randn(64)
        run(twice, x, torch.zeros(5), torch.zeros(64), torch.zeros(64, dtype=torch.int32), block=64,
            kernel="primitives<64>", settings={"check_races": True})  # fmt: skip
    assert fault.value.kind == "race"


@pytest.mark.slow
def test_nvrtc_takes_cubs_primitives() -> None:
    assert nvrtc.compile_cubin(build(CUB, "primitives<64>"), "sm_90").resources["primitives<64>"].static_shared > 0


HALVES = """
#include <cuda_fp16.h>
__global__ void halves(const __half* x, __half* out, const float* f, int* ints) {
    out[0] = __hmax_nan(x[0], x[1]);
    out[1] = __hmax(x[0], x[1]);
    out[2] = __low2half(__hmin2_nan(__halves2half2(x[0], x[2]), __halves2half2(x[2], x[2])));
    out[3] = __float2half_rz(f[0]);
    out[4] = __float2half_ru(f[0]);
    out[5] = __float2half_rd(f[0]);
    out[6] = __ll2half_rz(70000);
    ints[0] = __half2ushort_rn(x[2]);
    ints[1] = __hbgeu2(__halves2half2(x[0], x[2]), __halves2half2(x[2], x[2]));
    ints[2] = (int)__heq2_mask(__halves2half2(x[2], x[0]), __halves2half2(x[2], x[0]));
}
"""


@needs_compiler
def test_halves_as_cuda_defines_them() -> None:
    x = torch.tensor([float("nan"), 1.0, 2.5], dtype=torch.float16)
    out, ints = torch.zeros(7, dtype=torch.float16), torch.zeros(3, dtype=torch.int32)
    run(HALVES, x, out, torch.tensor([-1.0001]), ints, block=1)
    assert out[:3].isnan().tolist() == [True, False, True]
    step = 2.0**-10
    assert out[1:].tolist()[0] == 1.0
    assert out[3:].tolist() == [-1.0, -1.0, -1.0 - step, 65504.0]
    assert ints.tolist() == [2, 1, 0xFFFF]


@needs_compiler
def test_what_a_file_names_of_the_standard_library_without_including_it_is_there() -> None:
    source = "#include <vector>\ntypedef std::vector<bool> Code;\n__global__ void k(float* x) {\n    bool first = true;\n"
    source += "    x[first] = std::is_same<float, int>::value ? 0 : std::numeric_limits<float>::max();\n}\n"
    source += "Code host(int n) { return Code(n); }\n"
    build = Build(device_part(source), "test.cu", ("k",), ())
    assert nvrtc.compile_cubin(build, "sm_90", again=True).lowered == {"k": "_Z1kPf"}


def test_torchs_names_of_numbers_of_16_bits_are_known() -> None:
    source = """#include <torch/extension.h>
template <typename T> struct Of { using type = T; };
template <> struct Of<c10::Half> { using type = __half; };
template <> struct Of<at::BFloat16> { using type = __nv_bfloat16; };
__global__ void k(const Of<c10::Half>::type* x, Of<at::BFloat16>::type* out) { *out = __float2bfloat16(__half2float(*x)); }
"""
    assert nvrtc.compile_cubin(Build(device_part(source), "test.cu", ("k",), ()), "sm_90")


def test_a_struct_of_the_hosts_goes_whatever_its_members_are_called() -> None:
    state = "typedef struct { float* C; cublasHandle_t handle; } State;"
    pair = "typedef struct { int a; } Pair;"
    kernel = "__global__ void k(float* out, int C) { Pair p{C}; out[0] = p.a; }"
    kept = device_part(f"#include <cublas_v2.h>\n{state}\n{pair}\n{kernel}\nvoid make(State* s) {{ k<<<1, 1>>>(s->C, 1); }}")
    assert "State" not in kept and pair in kept and kernel in kept
