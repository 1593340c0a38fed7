"""Threads, warps, blocks: what the emulator's primitives compute, against numpy and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from emulation import load, needs_compiler, orders, run
from gpuless.base.errors import UserError
from gpuless.launch import LaunchConfig

pytestmark = needs_compiler


def test_every_thread_knows_its_place() -> None:
    source = """
    __global__ void places(int* out) {
        int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
        int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
        int threads = blockDim.x * blockDim.y * blockDim.z;
        out[block * threads + thread] += block * threads + thread;
    }"""
    out = torch.zeros(2 * 3 * 4 * 5 * 6 * 2, dtype=torch.int32)
    run(source, out, grid=(2, 3, 4), block=(5, 6, 2))
    assert torch.equal(out, torch.arange(out.numel(), dtype=torch.int32))


def test_one_lane_is_elected_though_it_ends_at_once() -> None:
    source = """
    __global__ void elect(int* out) {
        unsigned chosen;
        asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(chosen));
        if (!chosen) return;
        atomicAdd(out, 1);
    }"""
    out = torch.zeros(1, dtype=torch.int32)
    run(source, out, block=32)
    assert out.item() == 1


@pytest.mark.parametrize("settings", list(orders()))
def test_tree_reduction_sums_in_every_order(settings: dict[str, object]) -> None:
    source = """
    __global__ void total(const float* x, float* out) {
        __shared__ float s[256];
        s[threadIdx.x] = x[blockIdx.x * 256 + threadIdx.x];
        __syncthreads();
        for (int k = 128; k > 0; k /= 2) {
            if (threadIdx.x < k) s[threadIdx.x] += s[threadIdx.x + k];
            __syncthreads();
        }
        if (threadIdx.x == 0) out[blockIdx.x] = s[0];
    }"""
    x = torch.randn(5, 256)
    out = torch.empty(5)
    run(source, x, out, grid=5, block=256, **settings)
    torch.testing.assert_close(out, x.double().sum(1).float())


def test_rung_cuh_reductions_over_a_block_repeated() -> None:
    source = """
    #include "rung.cuh"
    extern "C" __global__ void k(const float* x, float* out) {
        float v = x[thread_rank()];
        float sum = block_sum(v), top = block_max(v), again = block_sum(v * v);
        if (thread_rank() == 37) { out[0] = sum; out[1] = top; out[2] = again; }
    }"""
    x, out = torch.randn(16, 12), torch.empty(3)
    run(source, x, out, block=(12, 16), order="shuffled", seed=3)
    torch.testing.assert_close(out, torch.stack([x.sum(), x.max(), (x * x).sum()]))


SHUFFLES = """
template <class T> __device__ void all(T v, T* out, int width, int by) {
    int lane = threadIdx.x;
    out[lane] = __shfl_sync(0xffffffff, v, by, width);
    out[32 + lane] = __shfl_up_sync(0xffffffff, v, by, width);
    out[64 + lane] = __shfl_down_sync(0xffffffff, v, by, width);
    out[96 + lane] = __shfl_xor_sync(0xffffffff, v, by, width);
}
extern "C" __global__ void k(const TYPE* x, TYPE* out, int width, int by) { all<TYPE>(x[threadIdx.x], out, width, by); }
"""


@pytest.mark.parametrize(
    ("ctype", "dtype"),
    [
        ("float", torch.float32),
        ("double", torch.float64),
        ("int", torch.int32),
        ("long long", torch.int64),
    ],
)
def test_shuffles_read_the_lane_that_cuda_says(ctype: str, dtype: torch.dtype) -> None:
    x = torch.arange(100, 132).to(dtype)
    lane = np.arange(32)
    for width, by in ((32, 1), (32, 5), (16, 3), (8, 7), (4, 2)):
        first = lane // width * width
        inside = lane - first
        up = np.where(inside >= by, lane - by, lane)
        down = np.where(inside + by < width, lane + by, lane)
        xor = np.where((lane ^ by) < first + width, lane ^ by, lane)
        expected = np.concatenate([first + by % width, up, down, xor])
        out = torch.zeros(128, dtype=dtype)
        run(SHUFFLES, x, out, width, by, defines=[("TYPE", ctype)], order="shuffled")
        assert torch.equal(out, x[torch.from_numpy(expected)]), (width, by)


def test_votes_and_reductions() -> None:
    source = """
    __global__ void k(unsigned* out) {
        unsigned lane = threadIdx.x, all = 0xffffffff;
        unsigned ballot = __ballot_sync(all, lane % 3 == 0);
        unsigned match = __match_any_sync(all, lane % 4);
        unsigned half = lane < 16 ? 0x0000ffff : 0xffff0000;
        unsigned partial = __ballot_sync(half, lane % 2);
        unsigned* o = out + lane * 10;
        o[0] = ballot; o[1] = match; o[2] = partial;
        o[3] = __any_sync(all, lane == 7); o[4] = __any_sync(all, 0);
        o[5] = __all_sync(all, lane < 32); o[6] = __all_sync(all, lane < 31);
        o[7] = __reduce_add_sync(all, lane); o[8] = __reduce_max_sync(half, (int)lane - 20); o[9] = __reduce_min_sync(all, lane + 3);
    }"""
    out = torch.zeros(32, 10, dtype=torch.int32)
    run(source, out, order="reverse")
    rows = out.numpy().view(np.uint32)
    lanes = range(32)
    for lane in lanes:
        assert rows[lane][0] == sum(1 << i for i in lanes if i % 3 == 0)
        assert rows[lane][1] == sum(1 << i for i in lanes if i % 4 == lane % 4)
        assert rows[lane][2] == sum(1 << i for i in lanes if i % 2 and i // 16 == lane // 16)
        assert list(rows[lane][3:8]) == [1, 0, 1, 0, 496]
        assert rows[lane][8].astype(np.int32) == (-5 if lane < 16 else 11)
        assert rows[lane][9] == 3


def test_diverged_halves_of_a_warp_shuffle_apart() -> None:
    source = """
    __global__ void k(int* out) {
        int lane = threadIdx.x;
        if (lane < 8) out[lane] = __shfl_xor_sync(0xff, lane, 1);
        else out[lane] = __shfl_xor_sync(0xffffff00, lane * 10, 2);
    }"""
    out = torch.zeros(32, dtype=torch.int32)
    run(source, out)
    assert out.tolist() == [i ^ 1 for i in range(8)] + [10 * (i ^ 2) for i in range(8, 32)]


def test_a_block_smaller_than_a_warp_and_one_that_is_no_multiple() -> None:
    source = """
    __global__ void k(int* out) {
        int n = __syncthreads_count(threadIdx.x % 2);
        int any = __syncthreads_or(threadIdx.x == 3), all = __syncthreads_and(threadIdx.x < 5);
        int warp = __popc(__ballot_sync(0xffffffff, 1));
        if (threadIdx.x == blockDim.x - 1) { out[0] = n; out[1] = any; out[2] = all; out[3] = warp; }
    }"""
    for threads in (5, 33, 70):
        out = torch.zeros(4, dtype=torch.int32)
        run(source, out, block=threads)
        assert out.tolist() == [threads // 2, 1, int(threads <= 5), (threads - 1) % 32 + 1]


def test_static_shared_memory_in_functions_and_templates() -> None:
    source = """
    template <int N> __device__ int swapped(int v) {
        __shared__ int box[N];
        __shared__ __align__(16) unsigned char bytes[N];
        __shared__ alignas(16) float more[4];
        __syncthreads();
        box[threadIdx.x] = v; bytes[threadIdx.x] = v; more[threadIdx.x % 4] = 1;
        __syncthreads();
        return box[N - 1 - threadIdx.x] + 1000 * bytes[(threadIdx.x + 1) % N];
    }
    __global__ void k(int* out) { int a = swapped<64>(threadIdx.x), b = swapped<64>(2 * threadIdx.x); out[threadIdx.x] = a + b; }"""
    out = torch.zeros(64, dtype=torch.int32)
    run(source, out, block=64, order="shuffled", seed=1)
    t = torch.arange(64, dtype=torch.int32)
    expected = (63 - t) * 3 + 1000 * (3 * ((t + 1) % 64))
    assert torch.equal(out, expected)


def test_dynamic_shared_arrays_are_one_memory_under_several_names_and_types() -> None:
    source = """
    extern __shared__ float floats[];
    template <class T> __device__ T* raw() { extern __shared__ __align__(16) unsigned char bytes[]; return (T*)bytes; }
    __global__ void k(float* out, int n) {
        for (int i = threadIdx.x; i < n; i += blockDim.x) floats[i] = i;
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = raw<float>()[n - 1 - i];
    }"""
    n = 56 * 1024  # 224 KB
    out = torch.zeros(n)
    run(source, out, n, block=256, shared=4 * n)
    assert torch.equal(out, torch.arange(n - 1, -1, -1).float())


def test_shared_memory_is_poisoned_before_every_block() -> None:
    source = """
    extern __shared__ float dynamic[];
    __global__ void k(float* out) {
        out[2 * blockIdx.x] = dynamic[1 + blockDim.y]; out[2 * blockIdx.x + 1] = dynamic[2];
        dynamic[threadIdx.x + 2] = 5;
    }"""
    out = torch.zeros(6)
    run(source, out, grid=3, block=1, shared=64)
    assert not out.eq(5).any() and not out.eq(0).any()


def test_registers_do_not_keep_what_the_block_before_left() -> None:
    source = """
    __global__ void k(float* out, int n) {
        float sum;
        for (int i = 0; i < n; i++) asm volatile("add.f32 %0, %0, %1;" : "+f"(sum) : "f"(out[3 + i]));
        out[blockIdx.x] = sum;
    }"""
    out = torch.zeros(7)
    run(source, out, 4, grid=3, block=1)
    assert out[:3].isnan().all()


def test_atomics_count_exactly() -> None:
    source = """
    __global__ void k(int* i, unsigned* u, unsigned long long* l, float* f, double* d) {
        __shared__ int n;
        if (threadIdx.x == 0) n = 0;
        __syncthreads();
        atomicAdd(&n, 1);
        int t = blockIdx.x * blockDim.x + threadIdx.x;
        atomicAdd(&i[0], t); atomicSub(&i[1], 1); atomicMax(&i[2], t); atomicMin(&i[3], -t); atomicExch(&i[4], 7);
        atomicOr(&u[0], 1u << (t % 32)); atomicAnd(&u[1], ~(1u << (t % 4))); atomicXor(&u[2], t); atomicInc(&u[3], 9u);
        atomicAdd(l, 1ull << 33); atomicAdd(f, 0.5f); atomicAdd(d, 0.25);
        int old, seen = i[5];
        do { old = seen; seen = atomicCAS(&i[5], old, old + 2); } while (seen != old);
        __syncthreads();
        if (threadIdx.x == 0) atomicAdd(&i[6], n);
    }"""
    i, u = torch.zeros(7, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    u[1] = -1
    l, f, d = torch.zeros(1, dtype=torch.int64), torch.zeros(1), torch.zeros(1, dtype=torch.float64)
    run(source, i, u, l, f, d, grid=3, block=40)
    assert i.tolist() == [120 * 119 // 2, -120, 119, -119, 7, 240, 120]
    assert u.tolist() == [-1, -16, int(np.bitwise_xor.reduce(np.arange(120))), 120 % 10]
    assert (l.item(), f.item(), d.item()) == (120 << 33, 60.0, 30.0)


@pytest.mark.parametrize("apart", [0, 3])
@pytest.mark.parametrize(("type_", "sign"), [("signed char", -1), ("unsigned char", 1), ("short", -1), ("unsigned short", 1), ("int", -1), ("long long", -1)])  # fmt: skip
def test_lanes_read_constants_of_any_width_at_an_index(type_: str, sign: int, apart: int) -> None:
    source = f"""
    __constant__ {type_} table[32] = {{{", ".join(str(sign * (i + 100)) for i in range(32))}}};
    __global__ void k(long long* out, int apart, int first) {{ out[threadIdx.x] = table[(threadIdx.x * apart + first) % 32]; }}
    """
    out = torch.zeros(64, dtype=torch.int64)
    run(source, out, apart, 7, block=64)
    wrap = {"signed char": 128}.get(type_, 1 << 62)
    expected = [sign * ((i * apart + 7) % 32 + 100) for i in range(64)]
    assert out.tolist() == [value + 2 * wrap if value < -wrap else value for value in expected]


def test_constant_memory_is_set_and_too_much_is_refused() -> None:
    source = """
    __constant__ float weight[6];
    __global__ void k(float* out) { out[threadIdx.x] = 2 * weight[threadIdx.x]; }"""
    module = load(source)
    out = torch.zeros(6)
    for values in (torch.randn(6), torch.randn(6)):
        module.set_constant("weight", values)
        module.launch("k", LaunchConfig((1, 1, 1), (6, 1, 1)), [("pointer", out)])
        assert torch.equal(out, 2 * values)
    with pytest.raises(UserError, match="room for 24 bytes, and 28"):
        module.set_constant("weight", torch.randn(7))
    with pytest.raises(UserError, match="no __constant__ variable named 'wight'"):
        module.set_constant("wight", torch.randn(6))


def test_constants_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(UserError, match="constant"):
        load("""
    __constant__ float weight[9000], bias[9000];
    __global__ void k(float* out) { out[0] = weight[0] + bias[0]; }""")


def test_scalars_of_every_kind_and_null_pointers_arrive() -> None:
    source = """
    __global__ void k(double* out, int a, unsigned b, long long c, unsigned long long d, float e, double f, bool g, const float* none) {
        out[0] = a; out[1] = b; out[2] = c; out[3] = d; out[4] = e; out[5] = f; out[6] = g; out[7] = none == nullptr;
    }"""
    module = load(source)
    out = torch.zeros(8, dtype=torch.float64)
    args = [("pointer", out), ("i32", -5), ("u32", 4000000000), ("i64", -(2**40)), ("u64", 2**50)]
    args += [("f32", 1.5), ("f64", 0.1), ("bool", True), ("pointer", None)]
    module.launch("k", LaunchConfig((1, 1, 1), (1, 1, 1)), args)
    assert out.tolist() == [-5, 4e9, -(2.0**40), 2.0**50, 1.5, 0.1, 1, 1]
    with pytest.raises(UserError, match="has 9 parameters, and 8 were given"):
        module.launch("k", LaunchConfig((1, 1, 1), (1, 1, 1)), args[:-1])
    with pytest.raises(UserError, match="parameter 2 of kernel 'k' is a value of 4 bytes, and a f64 was given"):
        module.launch("k", LaunchConfig((1, 1, 1), (1, 1, 1)), [args[0], ("f64", 1.0), *args[2:]])


def test_template_kernels_are_built_by_instance() -> None:
    source = "template <int N, class T> __global__ void fill(T* out) { out[threadIdx.x] = N; }"
    module = load(source, kernels=("fill<3, float>", "fill<4, int>"))
    f, i = torch.zeros(4), torch.zeros(4, dtype=torch.int32)
    module.launch("fill<3, float>", LaunchConfig((1, 1, 1), (4, 1, 1)), [("pointer", f)])
    module.launch("fill<4, int>", LaunchConfig((1, 1, 1), (4, 1, 1)), [("pointer", i)])
    assert f.tolist() == [3.0] * 4 and i.tolist() == [4] * 4


def test_a_thousand_threads_of_a_warp_each_keep_their_stacks() -> None:
    source = """
    __global__ void k(int* out) {
        int mine[64];
        for (int i = 0; i < 64; i++) mine[i] = threadIdx.x * i;
        __syncthreads();
        int sum = 0;
        for (int i = 0; i < 64; i++) { sum += mine[i]; if (i % 16 == 0) __syncthreads(); }
        out[threadIdx.x] = sum;
    }"""
    out = torch.zeros(1024, dtype=torch.int32)
    run(source, out, block=1024)
    assert torch.equal(out, torch.arange(1024, dtype=torch.int32) * 2016)
