"""Mistakes that may go well by luck: the emulator refuses them in every order."""

import pytest
import torch

import gpuless
from emulation import needs_compiler, run

pytestmark = needs_compiler
RACES = {"check_races": True}
PTX_READ = 'asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(value) : "l"(data + other));'


@pytest.mark.parametrize("read", ["value = __ldg(data + other);", PTX_READ])
@pytest.mark.parametrize("written", [True, False])
def test_the_read_only_cache_does_not_serve_what_a_launch_writes(read: str, written: bool) -> None:
    source = f"""
    extern "C" __global__ void k(float* data, float* out) {{
        const int other = 63 - threadIdx.x;
        if ({int(written)}) data[threadIdx.x] = threadIdx.x;
        __syncthreads();
        float value;
        {read}
        out[threadIdx.x] = value;
    }}"""
    data, out = torch.ones(64), torch.zeros(64)
    if written:
        with pytest.raises(gpuless.EmulatorFault, match=r"reads through the read-only cache what thread .* has written") as fault:
            run(source, data, out, block=64, settings=RACES)
        assert fault.value.kind == "race" and "parameter 'data'" in str(fault.value)
    else:
        run(source, data, out, block=64, settings=RACES)
        assert out.eq(1).all()


@pytest.mark.parametrize(("consumers", "fits"), [(240, True), (248, False)])
def test_registers_of_a_block_are_counted(consumers: int, fits: bool) -> None:
    """Two warpgroups of 240 and one of 24 fit in 65,536 registers; with 248 the last warps would wait for ever."""
    source = f"""
    extern "C" __global__ void __launch_bounds__(384, 1) k(float* out) {{
        if (threadIdx.x < 128) asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        else asm volatile("setmaxnreg.inc.sync.aligned.u32 {consumers};");
        out[threadIdx.x] = 1.0f;
    }}"""
    out = torch.zeros(384)
    if fits:
        run(source, out, block=384)
        assert out.eq(1).all()
    else:
        with pytest.raises(gpuless.EmulatorFault, match="polls"):
            run(source, out, block=384, settings=RACES)


GENERIC = "cooperative_groups::this_cluster().map_shared_rank(&mine, (rank + 1) % 2)[0] = rank + 1;"
PTX = """
        unsigned there;
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there)
                     : "r"((unsigned)__cvta_generic_to_shared(&mine)), "r"((rank + 1) % 2));
        asm volatile("st.shared::cluster.s32 [%0], %1;" :: "r"(there), "r"(rank + 1) : "memory");"""


@pytest.mark.parametrize("write", [GENERIC, PTX])
@pytest.mark.parametrize("order", ["forward", "reverse", "shuffled"])
@pytest.mark.parametrize("first", [True, False])
def test_a_block_of_a_cluster_may_not_have_started(write: str, order: str, first: bool) -> None:
    source = f"""
    #include <cooperative_groups.h>
    extern "C" __global__ void k(int* out) {{
        __shared__ int mine;
        auto cluster = cooperative_groups::this_cluster();
        const int rank = cluster.block_rank();
        if ({int(first)}) cluster.sync();
        if (threadIdx.x == 0) {{ {write} }}
        cluster.sync();
        if (threadIdx.x == 0) out[rank] = mine;
    }}"""
    out = torch.zeros(2, dtype=torch.int32)
    launch = {"grid": 2, "cluster": (2, 1, 1), "order": order, "settings": RACES}
    if first:
        run(source, out, **launch)  # type: ignore[arg-type]
        assert out.tolist() == [2, 1]
    else:
        with pytest.raises(gpuless.EmulatorFault, match="started"):
            run(source, out, **launch)  # type: ignore[arg-type]


@pytest.mark.parametrize("races", [False, True])
@pytest.mark.parametrize("asked", [16, 128, 1024])
def test_dynamic_shared_memory_is_aligned_as_requested_and_no_more(asked: int, races: bool) -> None:
    source = f"""
    #include "rung.cuh"
    extern "C" __global__ void k(float* out) {{
        extern __shared__ __align__({asked}) unsigned char memory[];
        const float most = block_max(float(threadIdx.x));  // which has static shared memory
        volatile unsigned long long address = (unsigned long long)memory;
        if (threadIdx.x == 0) out[0] = address % 1024, out[1] = most;
    }}"""
    out = torch.zeros(2)
    run(source, out, block=64, shared=4096, settings={"check_races": races})
    assert out.tolist() == [0.0 if asked == 1024 else 128.0, 63.0]


@pytest.mark.parametrize("order", ["forward", "reverse", "shuffled"])
def test_a_wait_that_may_time_out_is_repeated(order: str) -> None:
    """`try_wait` returns false after a while: a kernel that calls it once reads too early."""
    source = """
    #include "rung.cuh"
    #include "ptx.cuh"
    extern "C" __global__ void k(int* early, int again) {
        __shared__ alignas(8) uint64_t barrier;
        const unsigned at = (unsigned)__cvta_generic_to_shared(&barrier);
        if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at) : "memory");
        __syncthreads();
        if (threadIdx.x == 32) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at) : "memory");
        if (threadIdx.x < 32) {
            int done = 0;
            do {
                asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.b32 %0, 1, 0, p; }"
                             : "=r"(done) : "r"(at) : "memory");
            } while (again && !done);
            if (!done) early[0] = 1;
        }
    }"""
    for again in (1, 0):
        early = torch.zeros(1, dtype=torch.int32)
        run(source, early, again, block=64, order=order, settings=RACES)
        if again:
            assert early.item() == 0
        elif order == "reverse":
            assert early.item() == 1


POLLS = """
    while (__syncthreads_and(!known)) {
        if (!threadIdx.x) asm volatile("ld.global.acquire.gpu.b32 %0, [%1];" : "=r"(known) : "l"(flag) : "memory");
        known = __shfl_sync(~0u, known, 0);
    }"""


@pytest.mark.parametrize("cooperative", [True, False])
def test_a_block_that_polls_at_a_barrier_waits_for_one_that_runs(cooperative: bool) -> None:
    """The first block waits for the last: that one runs only if the launch promises it."""
    source = f"""
    extern "C" __global__ void k(int* flag, int* out) {{
        int known = 0;
        if (blockIdx.x == gridDim.x - 1) {{
            for (int i = 0; i < 3000; i++) out[1] += i;
            __threadfence();
            if (!threadIdx.x) atomicExch(flag, 1);
            return;
        }}
        {POLLS}
        if (!threadIdx.x) out[0] = 7;
    }}"""
    flag, out = torch.zeros(1, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    settings = {"steps": 3_000_000}
    if cooperative:
        run(source, flag, out, grid=2, cooperative=True, settings=settings)
        assert out.tolist()[0] == 7
    else:
        with pytest.raises(gpuless.EmulatorFault) as fault:
            run(source, flag, out, grid=2, settings=settings)
        assert fault.value.kind == "deadlock"


def test_the_last_blocks_of_a_slow_launch_are_no_deadlock() -> None:
    """Each ends soon; the limit is reached while the last ones run."""
    source = """
    extern "C" __global__ void k(int* out, int n) {
        int x = threadIdx.x;
        for (int i = 0; i < n; i++) x = x * 5 + 3;
        out[blockIdx.x * 64 + threadIdx.x] = x;
    }"""
    kinds = set()
    for steps in range(2000, 3000, 37):
        with pytest.raises(gpuless.EmulatorFault) as fault:
            run(source, torch.zeros(64 * 64, dtype=torch.int32), 40, grid=64, block=64, settings={"steps": steps})
        kinds.add(fault.value.kind)
    assert kinds == {"unfinished"}
