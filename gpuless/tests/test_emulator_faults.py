"""Faulty kernels: each fault is reported with kind and place, and the process continues."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import threading
from typing import Any

import pytest
import torch

from emulation import guarded, load, needs_compiler, orders, run
from gpuless import EmulatorFault, Settings, guarded_empty
from gpuless.base.errors import UserError
from gpuless.launch import LaunchConfig

pytestmark = needs_compiler


def fault_of(source: str, *args: Any, **launch: Any) -> EmulatorFault:
    with pytest.raises(EmulatorFault) as caught:
        run(source, *args, **launch)
    still_works()
    return caught.value


def still_works() -> None:
    out = torch.zeros(32)
    run("__global__ void k(float* out) { __syncthreads(); out[threadIdx.x] = 1; }", out)
    assert out.sum() == 32


# ---- barriers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", list(orders()))
def test_a_barrier_inside_a_condition(settings: dict[str, Any]) -> None:
    source = """
    __global__ void k(float* out) {
        if (threadIdx.x < 32) __syncthreads();
        out[threadIdx.x] = 1;
    }"""
    fault = fault_of(source, torch.zeros(128), block=128, **settings)
    assert fault.kind == "barrier"
    assert fault.place["line"] == 3
    assert "has returned" in str(fault)


def test_a_barrier_behind_an_early_return() -> None:
    source = """
    __global__ void k(float* out, int n) {
        if (threadIdx.x >= n) return;
        __syncthreads();
        out[threadIdx.x] = 1;
    }"""
    fault = fault_of(source, torch.zeros(64), 50, block=64)
    assert fault.kind == "barrier" and "has returned" in str(fault)


def test_lanes_of_one_warp_at_different_barriers() -> None:
    source = """
    __global__ void k(float* out) {
        if (threadIdx.x % 2)
            __syncthreads();
        else
            __syncthreads();
        out[threadIdx.x] = 1;
    }"""
    fault = fault_of(source, torch.zeros(64), block=64)
    assert fault.kind == "barrier" and fault.place["line"] in (4, 6)


def test_half_of_a_warp_that_waits_for_lanes_that_have_ended() -> None:
    source = """
    __global__ void k(float* out) {
        if (threadIdx.x < 16) { out[threadIdx.x] = 1; asm volatile("bar.sync 2, 64;"); }
    }"""
    fault = fault_of(source, torch.zeros(32))
    assert fault.kind == "barrier" and fault.place["line"] == 3


def test_a_shuffle_against_a_barrier() -> None:
    source = """
    __global__ void k(float* out) {
        if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0xffffffff, 1.0f, 0);
        else __syncthreads();
    }"""
    assert fault_of(source, torch.zeros(32)).kind == "barrier"


def test_mma_by_a_part_of_the_warp() -> None:
    source = """
    #include "rung.cuh"
    extern "C" __global__ void k(float* out) {
        if (threadIdx.x > 30) return;
        float d[4] = {}; uint32_t a[4] = {}, b[2] = {};
        mma_m16n8k16<__half>(d, a, b);
        out[threadIdx.x] = d[0];
    }"""
    fault = fault_of(source, torch.zeros(32))
    assert fault.kind == "barrier"


# ---- memory -----------------------------------------------------------------------------------------------------------

COPY = """
__global__ void k(const float* x, float* out, int n, int from, int to) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i + to] = x[i + from];
}"""


@pytest.mark.parametrize(("n", "blocks"), [(4, 1), (1000, 4), (4096, 16)])
def test_reads_and_writes_beside_a_tensor_name_parameter_thread_and_line(n: int, blocks: int) -> None:
    x, out = guarded(torch.randn(n)), guarded(torch.zeros(n))
    run(COPY, x, out, n, 0, 0, grid=blocks, block=256)
    assert torch.equal(x, out)
    last = f"block ({(n - 1) // 256}, 0, 0), thread ({(n - 1) % 256}, 0, 0)"
    past = f"past the end: element {n} (a tensor of {n} elements)"
    for shift, name in (((1, 0), "x"), ((0, 1), "out")):
        fault = fault_of(COPY, x, out, n, *shift, grid=blocks, block=256)
        assert fault.kind == "bounds"
        assert last in str(fault) and f"parameter '{name}' {past}" in str(fault) and "line 5" in str(fault)
    fault = fault_of(COPY, x, out, n, -9000, 0, grid=blocks, block=256)
    assert "parameter 'x' before the start: element -9000 " in str(fault)


def test_a_null_pointer() -> None:
    fault = fault_of(COPY, None, torch.zeros(4), 4, 0, 0, grid=1, block=4)
    assert fault.kind == "bounds" and "null pointer" in str(fault)


def test_a_misaligned_vector() -> None:
    source = """
    __global__ void k(const float* x, float* out) {
        float4 v = *reinterpret_cast<const float4*>(x + 1);
        out[0] = v.x + v.y + v.z + v.w;
    }"""
    fault = fault_of(source, torch.zeros(8), torch.zeros(1), block=1)
    assert fault.kind == "bounds" and "multiple of" in str(fault)


def test_guarded_memory_starts_aligned_ends_at_the_guard_and_is_freed() -> None:
    for size in (1, 15, 16, 17, 4096, 10_001):
        memory = guarded_empty(size)
        assert memory.ctypes.data % 16 == 0 and memory.size == size and (memory == 255).all()
        memory[:] = 0
    assert guarded_empty(0).size == 0
    from gpuless import guard

    before = len(guard._alive)
    view = torch.from_numpy(guarded_empty(64))[8:].view(torch.int32)
    assert len(guard._alive) >= 1
    del view, memory
    assert len(guard._alive) <= before


def test_a_write_past_dynamic_shared_memory() -> None:
    source = """
    extern __shared__ float s[];
    __global__ void k(float* out, int n) { s[threadIdx.x] = 1; __syncthreads(); out[threadIdx.x] = s[threadIdx.x]; }"""
    run(source, torch.zeros(64), 64, block=64, shared=256)
    fault = fault_of(source, torch.zeros(64), 64, block=64, shared=252)
    assert fault.kind == "bounds" and "252 bytes of shared memory" in str(fault)


@pytest.mark.parametrize(
    ("declared", "dynamic", "reason"),
    [
        (12289, 0, "49168 bytes of shared memory; 49152"),
        (1024, 224 * 1024, "233472 bytes"),
        (16, 227 * 1024, "232512 bytes"),
    ],
)
def test_too_much_shared_memory(declared: int, dynamic: int, reason: str) -> None:
    source = f"""
    extern __shared__ float dynamic[];
    __global__ void k(float* out) {{ __shared__ float s[{declared}]; s[threadIdx.x] = 1; __syncthreads(); out[0] = s[0] + dynamic[0]; }}
    __global__ void other(float* out) {{ __shared__ float s[12000]; s[0] = *out; __syncthreads(); *out = s[0]; }}"""
    fault = fault_of(source, torch.zeros(1), shared=dynamic, kernel="k")
    assert fault.kind == "shared" and reason in str(fault)


def test_static_shared_memory_is_known_for_each_kernel() -> None:
    source = """
    __device__ float helper(float v) { __shared__ float h[8]; h[threadIdx.x % 8] = v; __syncthreads(); return h[0]; }
    extern "C" __global__ void one(float* out) { __shared__ float s[100]; s[0] = *out; __syncthreads(); *out = helper(s[0]); }
    __global__ void two(float* out) { __shared__ __align__(16) char s[48]; s[threadIdx.x] = *out; __syncthreads(); *out = helper(s[1]); }"""
    resources = load(source).resources
    assert resources["one"].static_shared == 36 and resources["two"].static_shared == 80


# ---- the rest ---------------------------------------------------------------------------------------------------------


def test_an_assertion_and_a_trap() -> None:
    source = """
    __global__ void k(int* out, int what) {
        if (threadIdx.x == 3) {
            if (what == 0) assert(out[0] == 5);
            if (what == 1) __trap();
        }
    }"""
    out = torch.zeros(2, dtype=torch.int32)
    for what, words in enumerate(("an assertion fails: out[0] == 5", "traps")):
        fault = fault_of(source, out, what)
        assert fault.kind == "trap" and words in str(fault) and fault.place["line"] == 4 + what


def test_a_stack_that_overflows() -> None:
    source = """
    __device__ __noinline__ int deep(int n) { volatile int a[64]; a[n % 64] = n; return n ? deep(n - 1) + a[n % 64] : 0; }
    __global__ void k(int* out, int n) { out[threadIdx.x] = deep(n); }"""
    run(source, torch.zeros(32, dtype=torch.int32), 0)
    fault = fault_of(source, torch.zeros(32, dtype=torch.int32), 100_000)
    assert fault.kind == "bounds" and "the thread's stack" in str(fault)


def test_compile_errors_carry_the_files_own_lines() -> None:
    source = "#include <cuda_fp16.h>\n\n__global__ void k(float* out) {\n    out[0] = undefined_name;\n}\n"
    with pytest.raises(UserError, match=r"test\.cu:4: identifier .undefined_name. is undefined") as caught:
        run(source, torch.zeros(1))
    assert not isinstance(caught.value, EmulatorFault)


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        ({"block": 1025}, "1025 threads along x, but 1 to 1024"),
        ({"grid": (1, 70000)}, "70000 blocks along y, but 1 to 65535"),
        ({"grid": 0}, "0 blocks along x"),
        ({"grid": 3, "cluster": (2, 1, 1)}, "not a multiple of the cluster's 2"),
        ({"grid": 32, "cluster": (32, 1, 1)}, "outside 1 to 16"),
    ],
)
def test_illegal_launches(launch: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        run("__global__ void k(float* out) { out[0] = 1; }", torch.zeros(1), **launch)


def test_a_race_shows_as_a_difference_between_orders() -> None:
    source = """
    __global__ void k(const float* x, float* out) {
        __shared__ float s[64];
        s[threadIdx.x] = x[threadIdx.x];
        out[threadIdx.x] = s[63 - threadIdx.x];  // a barrier is missing
    }"""
    x = torch.randn(64)
    results = []
    for settings in orders():
        out = torch.zeros(64)
        run(source, x, out, block=64, **settings)
        results.append(out)
    assert any(not torch.equal(results[0].nan_to_num(9), other.nan_to_num(9)) for other in results[1:])


def test_blocks_that_rely_on_their_order_show() -> None:
    source = "__global__ void k(float* out) { out[blockIdx.x] = blockIdx.x ? out[blockIdx.x - 1] + 1 : 0; }"
    forward, reverse = torch.zeros(8), torch.zeros(8)
    run(source, forward, grid=8, block=1)
    run(source, reverse, grid=8, block=1, order="reverse")
    assert not torch.equal(forward, reverse)


def test_the_same_seed_gives_the_same_order() -> None:
    source = (
        "__global__ void k(int* next, int* out) { out[blockIdx.x * blockDim.x + threadIdx.x] = atomicAdd(next, 1); }"
    )
    seen = []
    for seed in (1, 1, 1, 1, 1, 1, 2):  # with each pattern of unwritten memory
        out = torch.zeros(96, dtype=torch.int32)
        run(source, torch.zeros(1, dtype=torch.int32), out, grid=2, block=48, order="shuffled", seed=seed)
        seen.append(out.tolist())
    assert all(one == seen[0] for one in seen[:-1]) and seen[0] != seen[-1]
    assert sorted(seen[-1]) == list(range(96))


def test_signal_handlers_of_the_process_are_put_back() -> None:
    was_enabled = faulthandler.is_enabled()
    faulthandler.enable()
    before = [signal.getsignal(s) for s in (signal.SIGSEGV, signal.SIGFPE, signal.SIGINT)]
    fault_of(COPY, None, torch.zeros(4), 4, 0, 0, grid=1, block=4)
    assert [signal.getsignal(s) for s in (signal.SIGSEGV, signal.SIGFPE, signal.SIGINT)] == before
    if not was_enabled:
        faulthandler.disable()


def test_launches_from_many_python_threads_take_turns() -> None:
    source = """
    __global__ void k(float* out, int n) {
        __shared__ float s[64];
        s[threadIdx.x] = n;
        __syncthreads();
        out[threadIdx.x] = s[63 - threadIdx.x] + __shfl_xor_sync(0xffffffff, 1.0f, 1);
    }"""
    module = load(source, settings=Settings(order="shuffled", seed=4))
    wrong: list[int] = []

    def work(number: int) -> None:
        for i in range(20):
            out = torch.zeros(64)
            module.launch("k", LaunchConfig((3, 1, 1), (64, 1, 1)), [("pointer", out), ("i32", number + i)])
            if not out.eq(number + i + 1).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ---- threads that spin ------------------------------------------------------------------------------------------------


def test_a_thread_that_spins_lets_the_one_it_waits_for_run() -> None:
    source = """
    __global__ void k(volatile int* flag, int* out) {
        if (threadIdx.x == 0) { while (*flag != 7) ; *out = 5; }
        if (threadIdx.x == 40) *flag = 7;
    }"""
    out = torch.zeros(1, dtype=torch.int32)
    run(source, torch.zeros(1, dtype=torch.int32), out, block=64)
    assert out.item() == 5


GRID_BARRIER = """
__global__ void k(unsigned* count, float* out) {
    __syncthreads();
    if (threadIdx.x == 0) { atomicAdd(count, 1u); while (atomicAdd(count, 0u) < gridDim.x) ; }
    __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = *count;
}"""


def test_a_grid_barrier_of_atomics_works_when_all_blocks_are_resident() -> None:
    out = torch.zeros(3, 32)
    run(GRID_BARRIER, torch.zeros(1, dtype=torch.int32), out, grid=3, cooperative=True)
    assert out.eq(3).all()


def test_an_endless_spin_is_reported_at_once() -> None:
    fault = fault_of(GRID_BARRIER, torch.zeros(1, dtype=torch.int32), torch.zeros(3, 32), grid=3)
    assert fault.kind == "deadlock" and fault.place["line"] in (4, 5)


def test_a_spin_that_the_runtime_does_not_see_is_stopped() -> None:
    source = """
    __global__ void k(volatile int* flag) {
        if (threadIdx.x == 0)
            while (*flag == 0) continue;
    }"""
    fault = fault_of(source, torch.zeros(1, dtype=torch.int32), settings={"seconds": 0.3})
    assert fault.kind == "deadlock" and "line 4" in str(fault)


def test_a_process_without_cpu_time_is_not_considered_waiting() -> None:
    source = """
    __global__ void k(float* out, int turns) {
        float x = out[threadIdx.x];
        for (int i = 0; i < turns; i++) x = x * 0.5f + 1.0f;
        out[threadIdx.x] = x;
    }"""
    out = torch.zeros(1)
    stop = f"sleep 0.1; kill -STOP {os.getpid()}; sleep 1; kill -CONT {os.getpid()}"
    with subprocess.Popen(["sh", "-c", stop]):
        run(source, out, 300_000, block=1, settings={"seconds": 0.9})
    assert out.item() == 2.0


def test_an_index_outside_of_an_array_names_the_array() -> None:
    source = """
    __global__ void k(const float* x, float* out, int n) {
        __shared__ float tile[8][33];
        tile[threadIdx.x % 8][threadIdx.x] = x[0];
        __syncthreads();
        out[threadIdx.x] = tile[n][0];
    }"""
    run(source, torch.zeros(1), torch.zeros(32), 3)
    fault = fault_of(source, torch.zeros(1), torch.zeros(32), -1)
    assert fault.kind == "bounds" and fault.place["line"] == 6


def test_the_element_behind_the_last_of_a_subscripted_struct() -> None:
    source = """struct Four { float v[4]; __device__ float& operator[](int i) { return v[i]; } };
__global__ void k(float* x, int n)
{
    Four four;
    for (int i = 0; i <= n; i++) four[i] = x[i];
    x[0] = four[3];
}"""
    x = torch.ones(8)
    fault = fault_of(source, x, 4)
    assert fault.kind == "bounds" and fault.place["line"] == 5
    run(source, x, 3)
