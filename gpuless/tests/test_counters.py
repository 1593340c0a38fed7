"""Requests, sectors and passes over the banks equal those counted from the addresses, instructions those of the machine
code; lines and reasons are named."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

import gpuless
from emulation import INCLUDE, load, needs_compiler, run
from gpuless import machine
from gpuless.base.errors import UserError
from gpuless.counts.counters import Access, Launched, Sample
from gpuless.counts.counters_explained import figures, judge_goals, reason, remark
from gpuless.launch import Build, LaunchConfig

pytestmark = [needs_compiler, pytest.mark.skipif(bool(machine.unavailable()), reason=machine.unavailable())]
HALVES = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"


def aligned(count: int) -> torch.Tensor:
    memory = torch.zeros(4 * count + 512, dtype=torch.uint8)
    return memory[-memory.data_ptr() % 512 :][: 4 * count].view(torch.float32)


def counted(source: str, *args: Any, **launch: Any) -> Launched:
    with gpuless.current().recorded() as launches:
        run(source, *args, settings={"counters": True}, **launch)
    return launches[0]


PATTERNS = {
    "contiguous": "t",
    "shifted": "t + 3",
    "strided": "t * 33",
    "column": "t * 32",
    "broadcast": "7 + 0 * t",
    "pairs": "t / 2",
    "scattered": "(t * 37 + t * t * 5) % 1000",
    "backwards": "100 - t",
}


@pytest.mark.slow
@pytest.mark.parametrize("index", PATTERNS.values(), ids=PATTERNS)
def test_sectors_and_wavefronts_are_those_of_the_addresses(index: str) -> None:
    source = f"""
__global__ void f(const float* x, float* out) {{
    __shared__ float s[2048];
    int t = threadIdx.x;
    for (int i = t; i < 2048; i += 32) s[i] = 1.0f;
    __syncthreads();
    out[t] = x[{index}] + s[{index}];
}}
"""
    found = counted(source, aligned(2048), aligned(64))
    words = [eval(index.replace("/", "//"), {"t": t}) for t in range(32)]
    load = found.total("global", "read", "plain")
    assert (load.requests, load.lanes) == (1, 32)
    assert load.sectors == len({w // 8 for w in words})
    assert load.lines == len({w // 32 for w in words})
    assert load.unique_bytes == 4 * len(set(words))
    assert found.total("shared", "read", "plain").wavefronts == max(Counter(w % 32 for w in set(words)).values())


@pytest.mark.parametrize(("unroll", "requests"), [(1, 32), (4, 8 * 4 + 3)])
def test_lanes_of_one_iteration_make_one_request(unroll: int, requests: int) -> None:
    """Lanes with other trip counts leave; the others go on together. Of an unrolled loop the rest is a loop of its own."""
    source = f"""
__global__ void f(const float* x, float* out) {{
    float sum = 0;
    #pragma unroll {unroll}
    for (int i = 0; i <= threadIdx.x; i++) sum += x[i * 32 + threadIdx.x];
    out[threadIdx.x] = sum;
}}
"""
    found = counted(source, aligned(1024), aligned(32))
    load = found.total("global", "read", "plain")
    assert (load.requests, load.lanes) == (requests, 32 * 33 // 2)
    store = found.total("global", "write", "plain")
    assert (store.requests, store.sectors) == (1, 4)


def test_branches_are_separate_requests_of_their_lanes() -> None:
    source = """
__global__ void f(const float* x, float* out) {
    float v;
    if (threadIdx.x % 2) v = x[threadIdx.x];
    else v = x[64 + threadIdx.x] * 2;
    out[threadIdx.x] = v;
}
"""
    lines = counted(source, aligned(128), aligned(32)).accesses
    assert {a.line: (c.requests, c.lanes) for a, c in lines.items() if a.direction == "read"} == {
        4: (1, 16),
        5: (1, 16),
    }


def test_a_vector_is_one_access_and_passes_the_banks_by_quarters() -> None:
    source = """
__global__ void f(const float4* x, float4* out) {
    __shared__ float4 s[64];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x ^ 1];
}
"""
    found = counted(source, aligned(128), aligned(128))
    assert [found.total("global", d, "plain").sectors for d in ("read", "write")] == [16, 16]
    assert found.total("shared", "read", "plain").wavefronts == 4
    assert figures(found)["conflicts_load"] == 0
    assert found.total("shared", "read", "barrier").requests == 1


def test_neighbouring_accesses_that_nvcc_merges_are_one() -> None:
    source = """
__global__ void f(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float s[128];
    for (int i = threadIdx.x; i < 128; i += 32) s[i] = x[i];
    __syncthreads();
    float sum = 0;
    #pragma unroll
    for (int k = 0; k < 4; k++) sum += s[4 * threadIdx.x + k];
    out[threadIdx.x] = sum;
}
"""
    load = counted(source, aligned(128), aligned(32)).total("shared", "read", "plain")
    assert (load.requests, load.bytes) == (1, 512)


def test_atomics_and_asynchronous_copies_are_counted_apart() -> None:
    source = (
        HALVES
        + """
#include "ptx.cuh"
__global__ void f(const float* x, float* out) {
    __shared__ __align__(16) float s[128];
    cp_async_16(s + 4 * threadIdx.x, x + 4 * threadIdx.x);
    cp_async_commit();
    cp_async_wait<0>();
    __syncwarp();
    atomicAdd(out, s[threadIdx.x]);
}
"""
    )
    found = figures(counted(source, aligned(128), aligned(32)))
    assert (found["async_copy_bytes"], found["global_read_bytes"], found["global_read_requests"]) == (512, 512, 1)
    assert found["global_loads"] == 0


def test_ldmatrix_reads_rows_of_sixteen_bytes() -> None:
    source = (
        HALVES
        + """
#include "ptx.cuh"
__global__ void f(unsigned* out) {
    __shared__ __align__(128) unsigned s[32 * 32];
    for (int i = threadIdx.x; i < 1024; i += 32) s[i] = i;
    __syncthreads();
    uint32_t r[4];
    ldmatrix_x4(r, s + STRIDE * threadIdx.x);
    out[threadIdx.x] = r[0] + r[1] + r[2] + r[3];
}
"""
    )
    ways = []
    for stride in (4, 32):
        found = counted(source, aligned(64), defines=(("STRIDE", str(stride)),))
        matrix = found.total("shared", "read", "matrix")
        assert matrix.requests == 1
        ways.append(matrix.wavefronts)
    assert ways == [4, 32]


STRIDED = """
__global__ void f(const float* x, float* out, int C) {
    out[threadIdx.x] = x[threadIdx.x * C];
}
"""


def test_the_remark_names_line_stride_and_dimension() -> None:
    found = counted(STRIDED, aligned(32 * 64), aligned(32), 64)
    text = remark([found], {"C": 64, "T": 7})
    assert text.startswith("line 3: 32 sectors per request")
    assert "C = 64 elements" in text
    assert remark([counted(STRIDED, aligned(64), aligned(32), 1)]) == ""


@pytest.mark.parametrize(
    ("index", "said"),
    [("t * 32", "32 lanes meet in one bank"), ("t * 4", "multiple of 4"), ("t * 33", ""), ("5", "broadcast")],
)
def test_bank_conflicts_are_explained(index: str, said: str) -> None:
    source = f"""
__global__ void f(float* out) {{
    __shared__ float s[2048];
    int t = threadIdx.x;
    for (int i = t; i < 2048; i += 32) s[i] = 1.0f;
    __syncthreads();
    out[t] = s[{index}];
}}
"""
    found = counted(source, aligned(32))
    access = Access("test.cu", 7, "shared", "read", "plain")
    assert said in reason(access, found.worst[access])


def test_vectors_that_pass_the_banks_without_conflicts_are_not_said_to_meet() -> None:
    source = """
__global__ void f(float4* out) {
    __shared__ float4 s[64];
    s[threadIdx.x] = out[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x];
}
"""
    found = counted(source, aligned(128))
    access = next(a for a in found.worst if (a.memory, a.direction) == ("shared", "read"))
    assert "meet" not in reason(access, found.worst[access]) and "16 bytes" in reason(access, found.worst[access])


@pytest.mark.parametrize(
    ("size", "apart", "said"),
    [
        (16, [lane // 4 * 256 + lane % 4 * 16 for lane in range(32)], "8 pieces of 64 bytes, 256 bytes apart"),
        (4, [lane // 4 * 272 + lane % 4 * 4 for lane in range(32)], "8 pieces of 16 bytes, 272 bytes apart; not all"),
        (4, [lane % 4 * 4 for lane in range(32)], "only 4 different addresses"),
        (16, [lane * 64 for lane in range(32)], "64 bytes apart"),
        (4, [lane * 64 for lane in range(32)], "16 elements apart"),
        (4, [-lane * 4 for lane in range(32)], "starts 4 bytes into a sector"),
        (4, [lane * 4 for lane in range(32)], ""),
    ],
)
def test_pieces_of_a_request_to_global_memory_are_described(size: int, apart: list[int], said: str) -> None:
    access = Access("test.cu", 1, "global", "read", "plain")
    why = reason(access, Sample(size, 0, dict(enumerate(apart))))
    assert said in why and bool(said) == bool(why)


def test_lanes_of_different_parts_of_a_wide_access_do_not_meet() -> None:
    """Rows of 36 words, of which each lane reads four: eight lanes fill the banks."""
    access = Access("test.cu", 1, "shared", "read", "plain")
    assert "8 lanes at a time" in reason(access, Sample(16, 0, {lane: lane * 144 for lane in range(32)}))
    assert "8 lanes meet" in reason(access, Sample(16, 0, {lane: lane * 128 for lane in range(32)}))


def test_of_requests_that_waste_the_same_the_largest_is_kept() -> None:
    """One sector too many each: that of two lanes comes first, that of 32 lanes has five sectors."""
    source = """
__global__ void f(const float* x, float* out) {
    for (int i = 0; i < 2; i++)
        if (i || threadIdx.x < 2) out[i * 32 + threadIdx.x] = x[7 + threadIdx.x];
}
"""
    found = counted(source, aligned(64), aligned(64))
    (worst,) = [sample for access, sample in found.worst.items() if access.direction == "read"]
    assert len(worst.lanes) == 32


def test_goals_are_expressions_over_counters() -> None:
    kernels = [counted(STRIDED, aligned(32 * 64), aligned(32), 64)]
    good, bad = "sectors_per_request(ld) == 32 and sectors_per_request(st) <= 4", "sectors_per_request(ld) <= 1.1"
    assert [goal.met for goal in judge_goals([good, bad], kernels)] == [True, False]
    for wrong in ("speed(ld) > 1", "speed > 1", "sectors_per_request(ld) <="):
        with pytest.raises(UserError):
            judge_goals([wrong], kernels)


def test_a_plain_launch_counts_nothing() -> None:
    with gpuless.current().recorded() as launches:
        run(STRIDED, aligned(32), aligned(32), 1)
    assert launches == []


def test_arithmetic_is_counted_by_lanes_and_that_of_functions_by_what_nvcc_makes_of_them() -> None:
    """A loop that nvcc unrolls, an exponential of one FADD, four FFMA and one MUFU, and a branch of half of the lanes."""
    source = """
__global__ void f(const float* x, float* out, int n) {
    float sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * x[i + threadIdx.x];
    if (threadIdx.x < 16) sum += 1.5f;
    out[threadIdx.x] = expf(sum);
}
"""
    found = counted(source, aligned(128), aligned(32), 37)
    assert [figures(found)[name] for name in ("fadd", "ffma", "mufu", "hmma")] == [16 + 32, (37 + 4) * 32, 1, 0]
    by_line = {line: lanes for (_, line), lanes in found.lanes.items()}
    assert (by_line[4]["FFMA"], by_line[5]["FADD"], by_line[5]["FFMA"]) == (37 * 32, 16, 0)


def test_products_of_tensor_cores_are_counted_by_warps_and_halves_are_no_floats() -> None:
    source = """
#include <cuda_fp16.h>
#include <mma.h>
using namespace nvcuda;
__global__ void f(const __half* x, float* out, int n) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> b;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> c;
    wmma::fill_fragment(c, 0.0f);
    wmma::load_matrix_sync(a, x, 16);
    wmma::load_matrix_sync(b, x, 16);
    for (int i = 0; i < n; i++) wmma::mma_sync(c, a, b, c);
    wmma::store_matrix_sync(out, c, 16, wmma::mem_row_major);
    out[threadIdx.x] = __half2float(__hadd(x[threadIdx.x], x[1]));
}
"""
    found = figures(counted(source, aligned(128).view(torch.float16), aligned(256), 5))
    assert (found["hmma"], found["fadd"], found["ffma"]) == (10, 0, 0)


def test_a_predicate_that_switches_off_a_whole_warp_is_an_instruction_and_no_request() -> None:
    """A tree of 128 threads: seven steps of four warps evaluate the condition, fewer and fewer of them take part."""
    source = """
__global__ void f(const float* x, float* out) {
    __shared__ float s[128];
    const int t = threadIdx.x;
    s[t] = x[t];
    for (int stride = 64; stride > 0; stride /= 2) {
        __syncthreads();
        if (t < stride) s[t] = fmaxf(s[t], s[t + stride]);
    }
    if (t == 0) out[0] = s[0];
}
"""
    found = counted(source, aligned(128), aligned(32), block=128)
    assert found.total("shared", "write", "plain").requests == 4 + 2 + 1 + 5
    assert [figures(found)[name] for name in ("shared_stores", "wavefronts_store")] == [4 + 7 * 4, 4 + 2 + 1 + 5]
    assert figures(found)["shared_loads"] in (2 * 28 + 1, 2 * 28 + 4)  # of the last line, by a branch or a predicate


def test_a_sum_takes_the_last_product_of_an_exponential() -> None:
    source = """
__global__ void f(const float* x, float* out, int n) {
    float sum = 0;
    for (int i = 0; i < n; i++) sum += expf(x[i]);
    out[threadIdx.x] = sum;
}
"""
    found = figures(counted(source, aligned(128), aligned(32), 7))
    assert [found[name] / 32 / 7 for name in ("fadd", "fmul", "ffma")] == [1, 0, 5]


def test_divisions_by_one_number_share_its_reciprocal() -> None:
    source = """
__global__ void f(int* x, int n, int m) {
    const int i = x[threadIdx.x];
    x[threadIdx.x] = i / n % m + i % n * 7 + (i + 3) / n;
}
"""
    assert figures(counted(source, aligned(32).view(torch.int32), 5, 3))["mufu"] == 2
    part = "x[32 * {0} + threadIdx.x] /= y;"
    fast = f"__global__ void f(float* x, float y) {{ {''.join(map(part.format, range(4)))} }}"
    module = load(fast, options=("-use_fast_math",), settings=gpuless.Settings(counters=True))
    with gpuless.current().recorded() as launches:
        module.launch("f", LaunchConfig((1, 1, 1), (32, 1, 1)), [("pointer", aligned(128)), ("f32", 3.0)])
    assert figures(launches[0])["mufu"] == 1


def test_a_file_may_be_named_as_a_header_of_halves() -> None:
    build = Build("__global__ void f(float* x) { x[threadIdx.x] += 1.5f; }", "16_bits.cu", ("f",), ())
    module = gpuless.load(build, settings=gpuless.Settings(counters=True))
    with gpuless.current().recorded() as launches:
        module.launch("f", LaunchConfig((1, 1, 1), (32, 1, 1)), [("pointer", aligned(32))])
    assert figures(launches[0])["fadd"] == 32


def test_a_fast_exponential_ends_with_no_product() -> None:
    source = "__global__ void f(float* x) { x[threadIdx.x] = 1.0f + expf(x[threadIdx.x]); }"
    module = load(source, options=("--use_fast_math",), settings=gpuless.Settings(counters=True))
    with gpuless.current().recorded() as launches:
        module.launch("f", LaunchConfig((1, 1, 1), (32, 1, 1)), [("pointer", aligned(32))])
    found = figures(launches[0])
    assert [found[name] for name in ("fadd", "fmul", "ffma", "mufu")] == [32, 32, 0, 1]


def test_instructions_of_warps_are_those_of_the_machine_code() -> None:
    """Of four warps three take part: each executes the whole code but for the end behind its EXIT, the last one less."""
    source = """
__global__ void f(float* x) {
    if (threadIdx.x < 96) x[threadIdx.x] = 2.0f;
}
"""
    found = counted(source, aligned(128), block=128)
    made = machine.program(Build(source, "test.cu", ("f",), (), include=(INCLUDE,)), "f").instructions
    ends = [number for number, instruction in enumerate(made) if instruction.name == "EXIT"]
    assert figures(found)["instructions"] == 3 * (ends[-1] + 1) + ends[0] + 1
    assert found.total("global", "write", "plain").requests == 3
    assert sum(executed["STG"] for executed in found.executed.values()) == 3


def test_code_that_the_compiler_adds_has_the_line_of_its_call() -> None:
    """The division of a number that is too small for the fast way."""
    source = """
__global__ void f(float* x) {
    const float a = x[threadIdx.x];
    x[threadIdx.x] = a / x[32];
}
"""
    x = aligned(64)
    x[:32], x[32] = 1e-40, 3.0
    found = counted(source, x)
    assert x[0] == torch.tensor(1e-40) / 3
    assert {line for _, line in found.executed} <= {2, 3, 4, 5}
    assert found.executed["test.cu", 4]["CALL"] == found.executed["test.cu", 4]["RET"] == 1
