"""The race detector reports both lines and the variable, and nothing where CUDA's rules order the accesses."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import gpuless
from emulation import needs_compiler, orders, run
from gpuless import EmulatorFault

pytestmark = needs_compiler


def check(source: str, *args: Any, **launch: Any) -> None:
    run(source, *args, settings={"check_races": True}, **launch)


def race_of(source: str, *args: Any, **launch: Any) -> str:
    with pytest.raises(EmulatorFault) as caught:
        check(source, *args, **launch)
    assert caught.value.kind == "race"
    return str(caught.value)


TREE = """
__global__ void total(const float* x, float* out) {
    extern __shared__ float s[];
    s[threadIdx.x] = x[threadIdx.x];
    BARRIER;
    for (int k = 128; k > 0; k /= 2) {
        if (threadIdx.x < k) s[threadIdx.x] += s[threadIdx.x + k];
        if (k > LAST) __syncthreads(); else WARP;
    }
    if (threadIdx.x == 0) *out = s[0];
}"""


@pytest.mark.parametrize("settings", list(orders()))
@pytest.mark.parametrize(
    ("barrier", "last", "warp", "racy"),
    [
        ("__syncthreads()", 0, "", False),
        ("__syncthreads()", 32, "__syncwarp()", False),
        ("__syncthreads()", 64, "__syncwarp()", True),  # two warps still take part
        ("__syncthreads()", 32, "", True),  # counts on lockstep
        ("__syncwarp()", 0, "", True),
    ],
)
def test_a_tree_reduction(settings: dict[str, Any], barrier: str, last: int, warp: str, racy: bool) -> None:
    defines = [("BARRIER", barrier), ("LAST", str(last)), ("WARP", warp)]
    x, out = torch.randn(256), torch.zeros(1)
    if racy:
        words = race_of(TREE, x, out, block=256, shared=1024, defines=defines, **settings)
        assert "line 7" in words and "shared variable 's', element" in words
    else:
        check(TREE, x, out, block=256, shared=1024, defines=defines, **settings)
        torch.testing.assert_close(out[0], x.sum(), rtol=1e-4, atol=1e-4)


def test_both_places_and_the_variable_are_named() -> None:
    source = """
    __global__ void k(float* out) {
        __shared__ float before[3], box[64];
        if (threadIdx.x < 3) before[threadIdx.x] = 0;
        box[threadIdx.x] = threadIdx.x;
        out[threadIdx.x] =
            box[63 - threadIdx.x];
    }"""
    words = race_of(source, torch.zeros(64), block=64, order="reverse")
    assert "thread (62, 0, 0), line 7: reads what thread" in words or "line 5: writes what thread" in words
    assert "has written at line 5" in words or "has read at line 7" in words
    assert "with no barrier between: shared variable 'box', element" in words


def test_a_barrier_that_a_loop_forgets_at_its_end() -> None:
    source = """
    __global__ void k(const float* x, float* out, int n) {
        __shared__ float tile[64];
        float sum = 0;
        for (int i = 0; i < n; i++) {
            tile[threadIdx.x] = x[i * 64 + threadIdx.x];
            __syncthreads();
            for (int j = 0; j < 64; j++) sum += tile[j];
            END;
        }
        out[threadIdx.x] = sum;
    }"""
    x, out = torch.randn(3, 64), torch.zeros(64)
    check(source, x, out, 3, block=64, defines=[("END", "__syncthreads()")])
    torch.testing.assert_close(out, x.sum().expand(64), rtol=1e-4, atol=1e-4)
    words = race_of(source, x, out, 3, block=64, defines=[("END", "")])
    assert "line 6" in words and "line 8" in words


def test_warps_that_keep_to_themselves_and_atomics_do_not_race() -> None:
    source = """
    #include "rung.cuh"
    extern "C" __global__ void k(float* out) {
        __shared__ float rows[4][32];
        __shared__ int count;
        __shared__ __half halves[128];
        if (threadIdx.x == 0) count = 0;
        float* row = rows[warp_id()];
        row[lane_id()] = lane_id();
        halves[threadIdx.x] = __float2half(1.0f);  // neighbours in one word
        __syncwarp();
        float other = row[31 - lane_id()];
        __syncthreads();
        atomicAdd(&count, 1);
        float sum = block_sum(other) + block_max(other);
        __syncthreads();
        out[threadIdx.x] = sum + count;
    }"""
    out = torch.zeros(128)
    check(source, out, block=128, order="shuffled", seed=5)
    assert out.eq(4 * 496 + 31 + 128).all()


NARROW = """extern "C" __global__ void k(const float* x, float* out) {
    __shared__ volatile short halves[64];
    __shared__ volatile char bytes[64];
    const int t = threadIdx.x;
    halves[t] = short(x[t]), bytes[t] = 1;
    for (int i = 0; i < 3; i++) {
        halves[t] = halves[t] + 1, bytes[t] = bytes[t] + 2;
        if (t & 1) halves[t] = halves[t] + 1, bytes[t] = bytes[t] + 1;
    }
    out[t] = halves[OTHER] + bytes[t];
}"""


def test_threads_that_keep_to_their_own_numbers_of_a_word_do_not_race_and_others_do() -> None:
    x, out = torch.arange(64.0), torch.zeros(64)
    check(NARROW, x, out, block=64, defines=[("OTHER", "t")])
    assert out.tolist() == [i + 10 + 6 * (i % 2) for i in range(64)]
    for other in ("t ^ 1", "t ^ 2", "t ^ 32"):
        race_of(NARROW, x, out, block=64, defines=[("OTHER", other)])


def test_reading_a_counter_that_others_still_add_to() -> None:
    source = """
    __global__ void k(int* out) {
        __shared__ int count;
        if (threadIdx.x == 0) count = 0;
        __syncthreads();
        atomicAdd(&count, 1);
        out[threadIdx.x] = count;
    }"""
    assert "'count'" in race_of(source, torch.zeros(32, dtype=torch.int32))


ASYNC = """
#include "rung.cuh"
extern "C" __global__ void k(const float* x, float* out) {
    __shared__ __align__(16) float s[2][128];
    float sum = 0;
    cp_async_16(&s[0][4 * threadIdx.x], x + 4 * threadIdx.x);
    cp_async_commit();
    for (int i = 0; i < 4; i++) {
        NEXT
        cp_async_wait<WAIT>();
        __syncwarp();
        for (int j = 0; j < 128; j++) sum += s[i % 2][j];
        END
    }
    out[threadIdx.x] = sum;
}"""
NEXT = (
    "if (i < 3) cp_async_16(&s[(i + 1) % 2][4 * threadIdx.x], x + (i + 1) * 128 + 4 * threadIdx.x); cp_async_commit();"
)


def test_a_double_buffer_of_asynchronous_copies() -> None:
    x, out = torch.randn(4, 128), torch.zeros(32)
    good = [("NEXT", NEXT), ("WAIT", "1"), ("END", "__syncwarp();")]
    check(ASYNC, x, out, defines=good)
    torch.testing.assert_close(out, x.sum().expand(32), rtol=1e-4, atol=1e-4)
    overtaken = [("NEXT", NEXT), ("WAIT", "1"), ("END", "")]  # the next copy may land while others still read
    assert "line 9" in race_of(ASYNC, x, out, defines=overtaken)


BLOCKS = """
#include "rung.cuh"
extern "C" __global__ void k(float* parts, int* count, float* out) {
    float sum = block_sum(1.0f);
    __syncthreads();
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = sum;
        FENCE;
        const bool last = COUNT == gridDim.x - 1;
        AFTER;
        ADD;
        if (last) for (int b = 0; b < gridDim.x; b++) out[1] += parts[b];
    }
}"""


def on_blocks(**defines: str) -> dict[str, Any]:
    fences = {"FENCE": "__threadfence()", "AFTER": "__threadfence()", "ADD": "atomicAdd(out, sum)"}
    fences["COUNT"] = "atomicAdd(count, 1)"
    return {"grid": 4, "block": 64, "defines": list({**fences, **defines}.items())}


def test_blocks_behind_each_other_are_ordered_by_atomics_and_fences_alone() -> None:
    parts, count, out = torch.zeros(4), torch.zeros(1, dtype=torch.int32), torch.zeros(2)
    check(BLOCKS, parts, count, out, **on_blocks())
    assert out.tolist() == [256.0, 256.0]


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"ADD": "out[0] += sum"}, 11),
        ({"FENCE": ""}, 12),
        ({"AFTER": ""}, 12),
        ({"AFTER": "__syncwarp(1)"}, 12),
        ({"FENCE": "__threadfence_block()"}, 12),
        ({"AFTER": "__threadfence_block()"}, 12),
        ({"FENCE": 'asm volatile("membar.cta;" ::: "memory")'}, 12),
        ({"COUNT": "atomicAdd_block(count, 1)"}, 9),
        ({"ADD": "atomicAdd_block(out, sum)"}, 11),
        ({"ADD": 'asm volatile("red.relaxed.cta.global.add.f32 [%0], %1;" ::"l"(out), "f"(sum) : "memory")'}, 11),
    ],
    ids=str,
)
def test_what_two_blocks_do_to_a_number_is_a_race_though_each_has_barriers(changed: dict[str, str], line: int) -> None:
    parts, count, out = torch.zeros(4), torch.zeros(1, dtype=torch.int32), torch.zeros(2)
    assert f"line {line}" in race_of(BLOCKS, parts, count, out, **on_blocks(**changed))


TICKET = """
extern "C" __global__ void k(float* parts, int* count, float* out) {
    __shared__ bool last;
    if (threadIdx.x == 0) parts[blockIdx.x] = 1.0f;
    FENCE;
    if (threadIdx.x == 0) last = TICKET == gridDim.x - 1;
    __syncthreads();
    if (last && threadIdx.x == 32) for (int b = 0; b < gridDim.x; b++) *out += parts[b];
}"""


def test_the_last_block_reads_behind_a_barrier_what_the_others_have_written() -> None:
    def given(fence: str, ticket: str = "atomicAdd(count, 1)") -> dict[str, Any]:
        return {"grid": 4, "block": 64, "defines": [("FENCE", fence), ("TICKET", ticket)]}

    parts, count, out = torch.zeros(4), torch.zeros(1, dtype=torch.int32), torch.zeros(1)
    check(TICKET, parts, count, out, **given("__threadfence()"))
    assert out.item() == 4
    for wrong in (given(""), given("__threadfence_block()"), given("__threadfence()", "atomicAdd_block(count, 1)")):
        count.zero_()
        assert "line" in race_of(TICKET, parts, count, out, **wrong)


@pytest.mark.parametrize("fence", ["__threadfence()", "__threadfence_block()", 'asm volatile("membar.gl;":::"memory")'])
@pytest.mark.parametrize("count", ["atomicAdd(count, 1)", "atomicAdd_block(count, 1)"])
def test_within_a_block_its_own_scope_is_enough(fence: str, count: str) -> None:
    source = """
    extern "C" __global__ void k(float* part, int* count, float* out) {
        if (threadIdx.x % 32) return;
        part[threadIdx.x / 32] = 1.0f;
        FENCE;
        if (COUNT < 3) return;
        FENCE;
        for (int w = 0; w < 4; w++) *out += part[w];
    }"""
    part, counter, out = torch.zeros(4), torch.zeros(1, dtype=torch.int32), torch.zeros(1)
    check(source, part, counter, out, block=128, defines=[("FENCE", fence), ("COUNT", count)])
    assert out.item() == 4


def test_shared_arrays_of_16_bits_have_no_flag_that_threads_would_race_for() -> None:
    source = """
    #include "rung.cuh"
    extern "C" __global__ void k(float* out) {
        __shared__ __half tile[2][64];
        tile[1][threadIdx.x] = __float2half(1.0f);
        out[threadIdx.x] = __half2float(tile[1][threadIdx.x]);
    }"""
    out = torch.zeros(64)
    check(source, out, block=64)
    assert out.sum() == 64


READERS = """
__global__ void k(float* out) {
    __shared__ float box;
    __shared__ int turn;
    const int warp = threadIdx.x / 32;
    if (threadIdx.x == 0) box = 1, turn = 0;
    __syncthreads();
    while (atomicAdd(&turn, 0) != warp) ;
    const float seen = box;
    out[threadIdx.x] = seen;
    __syncwarp();
    if (threadIdx.x % 32 == 0) atomicExch(&turn, warp + 1);
    if (warp == 0) while (atomicAdd(&turn, 0) != WARPS) ;
    if (warp == 0 || JOINS) asm volatile("bar.sync 1, THREADS;" ::: "memory");
    if (threadIdx.x == 0) box = 2;
}"""


@pytest.mark.parametrize("order", ["forward", "reverse", "shuffled"])
@pytest.mark.parametrize("left_out", [1, 2, 3, 4, None])
def test_a_write_waits_for_every_reader(left_out: int | None, order: str) -> None:
    joins, warps = (f"warp != {left_out}", 4) if left_out else ("true", 5)
    source = READERS.replace("THREADS", str(32 * warps))
    out, defines = torch.zeros(160), [("WARPS", "5"), ("JOINS", joins)]
    if left_out is None:
        check(source, out, block=160, order=order, defines=defines)
        assert out.eq(1).all()
    else:
        words = race_of(source, out, block=160, order=order, defines=defines)
        assert "line 15: writes what thread" in words and "has read at line 9" in words
        reader = re.search(r"what thread \((\d+), 0, 0\) has read", words)
        assert reader and int(reader[1]) // 32 == left_out


def test_many_readers_between_barriers_are_no_race() -> None:
    source = """
    __global__ void k(float* out) {
        __shared__ float box[4];
        __shared__ unsigned char bytes[4];
        float sum = 0;
        for (int i = 0; i < 6; i++) {
            if (threadIdx.x < 4) box[threadIdx.x] = i, bytes[threadIdx.x] = i;
            __syncthreads();
            for (int again = 0; again < 3; again++) {
                for (int j = 0; j < 4; j++) sum += box[j] + bytes[(threadIdx.x + again) % 4];
                if (again < 2) __syncthreads();
            }
            __syncthreads();
        }
        out[threadIdx.x] = sum;
    }"""
    out = torch.zeros(256)
    check(source, out, block=256, order="shuffled", seed=3)
    assert out.eq(2 * 12 * 15).all()


@pytest.mark.parametrize(
    "declared",
    [
        "__shared__ __align__(16) __half a[64]; __half* p = a;",
        "typedef __half E; __shared__ E a[64]; E* p = a;",
        "__shared__ Four a[16]; __half* p = a[0].v;",
        "__shared__ __half2 a[32]; __half* p = &a[0].x;",
        "__shared__ Empty a; __half* p = a.v;",
    ],
)
def test_shared_variables_of_16_bits_are_no_race(declared: str) -> None:
    source = f"""
    #include <cuda_fp16.h>
    struct alignas(8) Four {{ __half v[4]; }};
    union Empty {{ __half v[64]; Empty() {{}} }};
    __global__ void k(float* out) {{
        {declared}
        p[threadIdx.x] = __float2half(threadIdx.x);
        __syncthreads();
        out[threadIdx.x] = __half2float(p[63 - threadIdx.x]);
    }}"""
    out = torch.zeros(64)
    check(source, out, block=64)
    assert out.tolist() == [63 - i for i in range(64)]


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_what_was_remembered_of_memory_that_is_given_back_is_freed() -> None:
    """Fourteen bytes are kept for each that is touched, and every tensor has other addresses."""

    def once(place: int = 0) -> None:
        x = torch.from_numpy(gpuless.guarded_empty(1 << 18, (1 << 44) + (place << 24))).view(torch.float32)
        check("__global__ void k(float* x) { x[blockIdx.x * 256 + threadIdx.x] = 1; }", x, grid=256, block=256)
        assert x.eq(1).all()

    once()
    before = resident()
    for place in range(1, 24):
        once(place)
    assert resident() - before < 8 << 20


@pytest.mark.parametrize("kind", ["__noinline__", ""])
def test_an_aggregate_passed_to_a_function_by_value_is_read(kind: str) -> None:
    source = f"""
__device__ {kind} float dot(float4 a, float4 b) {{ return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }}
__global__ void f(const float4* q, float* out) {{
    __shared__ __align__(16) float p[4 * 64];
    for (int i = 0; i < 4; i++) p[4 * threadIdx.x + i] = q[threadIdx.x].x + i;
    const float4* mine = reinterpret_cast<float4*>(p + 4 * (63 - threadIdx.x));
    out[threadIdx.x] = dot(q[threadIdx.x], *mine) + dot(*mine, q[0]);
}}
"""
    assert "'p'" in race_of(source, torch.zeros(256), torch.zeros(64), block=64)


SAME = """
__global__ void sums(float* out) {
    __shared__ float of_warp[4];
    of_warp[threadIdx.x / WARP] = VALUE;
    __syncthreads();
    out[threadIdx.x] = of_warp[threadIdx.x % 2];
}"""


@pytest.mark.parametrize("settings", list(orders()))
def test_threads_may_store_one_value_to_one_address(settings: dict[str, Any]) -> None:
    out = torch.zeros(64)
    check(SAME, out, block=64, defines=[("WARP", "32"), ("VALUE", "float(threadIdx.x / 32 + 1)")], **settings)
    assert out.tolist() == [1.0, 2.0] * 32
    words = race_of(SAME, out, block=64, defines=[("WARP", "32"), ("VALUE", "float(threadIdx.x)")], **settings)
    assert "line 4" in words and "another value" in words
    check(SAME, out, block=64, defines=[("WARP", "64"), ("VALUE", "1.0f")], **settings)  # of two warps
    words = race_of(SAME, out, block=64, defines=[("WARP", "64"), ("VALUE", "float(threadIdx.x / 32)")], **settings)
    assert "line 4" in words and "another value" in words


def test_the_last_store_of_a_kernel_is_compared_too() -> None:
    kernel = "__global__ void last(float* out) { *out = VALUE; }"
    out = torch.zeros(1)
    check(kernel, out, block=32, defines=[("VALUE", "3.0f")])
    assert "another value" in race_of(kernel, out, block=32, defines=[("VALUE", "float(threadIdx.x)")])


def test_threads_of_several_warps_and_blocks_may_set_one_flag() -> None:
    kernel = "__global__ void k(int* flag) { if (threadIdx.x % 3 == 0) *flag = VALUE; }"
    flag = torch.zeros(1, dtype=torch.int32)
    check(kernel, flag, grid=4, block=96, defines=[("VALUE", "1")])
    assert "another value" in race_of(kernel, flag, grid=4, block=96, defines=[("VALUE", "threadIdx.x")])
    assert "another value" in race_of(kernel, flag, grid=4, block=1, defines=[("VALUE", "blockIdx.x")])


@pytest.mark.parametrize(
    ("read", "racy"),
    [("old = *at", False), ("old = atomicAdd(at, 0)", False), ("old = at[1] = *at", True)],
)
def test_what_a_swap_verifies_is_read_without_a_race(read: str, racy: bool) -> None:
    """The programming guide's way to make an atomic of a compare-and-swap, of blocks as well as within one."""
    source = """
    __global__ void k(const float* x, int* at) {
        int old, seen;
        READ;
        do {
            seen = old;
            old = atomicCAS(at, seen, __float_as_int(__int_as_float(seen) + x[blockIdx.x * 64 + threadIdx.x]));
        } while (old != seen);
    }"""
    x, at = torch.arange(256).float(), torch.zeros(2, dtype=torch.int32)
    launch: dict[str, Any] = {"grid": 4, "block": 64, "defines": [("READ", read)]}
    if racy:
        race_of(source, x, at, **launch)
    else:
        check(source, x, at, **launch)
        assert at.view(torch.float32)[0] == x.sum()


BEGINS = """
__global__ void meets(float* out) {
    __shared__ alignas(8) unsigned long long full;
    const unsigned at = (unsigned)__cvta_generic_to_shared(&full);
    if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(at), "r"(blockDim.x) : "memory");
    BETWEEN;
    asm volatile("{ .reg .b64 s; mbarrier.arrive.shared.b64 s, [%0]; }" :: "r"(at) : "memory");
    asm volatile("{ .reg .pred p; W: mbarrier.try_wait.parity.shared.b64 p, [%0], 0; @!p bra W; }" :: "r"(at) : "memory");
    out[threadIdx.x] = 1;
}"""


@pytest.mark.parametrize(
    ("threads", "between", "racy"),
    [(32, "", True), (32, "__syncwarp()", False), (64, "__syncwarp()", True), (64, "__syncthreads()", False)],
)
def test_a_byte_barrier_is_initialised_before_other_threads_use_it(threads: int, between: str, racy: bool) -> None:
    out, how = torch.zeros(threads), {"block": threads, "defines": [("BETWEEN", between)]}
    if racy:
        assert "shared variable 'full'" in race_of(BEGINS, out, **how)
    else:
        check(BEGINS, out, **how)
        assert out.sum() == threads


# A whole warp writes rows of 32 words and reads them, each lane so many words at once, from so many words on. The
# history of such a row is held once, until its words differ.
ROWS = """
using W = WRITTEN; using R = READ;
__global__ void rows(float* out) {
    __shared__ __align__(512) float s[2 * 32 * 8];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int i = threadIdx.x; i < 512; i += blockDim.x) s[i] = 0;
    __syncthreads();
    float sum = 0;
    for (int n = 0; n < 3; n++) {
        if (warp == 0) reinterpret_cast<W*>(s)[lane] = W{};
        BETWEEN;
        const R* const from = reinterpret_cast<const R*>(s + (FIRST) * sizeof(R) / 4);
        const R one = from[(LANE)];
        sum += *reinterpret_cast<const float*>(&one);
        BEHIND;
    }
    out[threadIdx.x] = sum;
}"""
WIDTHS = ("float", "float2", "float4")


def rows(written: str, read: str, between: str, behind: str, *, lane: str = "lane", first: int = 0) -> str:
    text = ROWS.replace("WRITTEN", written).replace("READ", read)
    for name, value in (("BETWEEN", between), ("BEHIND", behind), ("LANE", lane), ("FIRST", str(first))):
        text = text.replace(name, value)
    return text


@pytest.mark.parametrize("threads", [32, 64])
@pytest.mark.parametrize("written", WIDTHS)
@pytest.mark.parametrize("read", WIDTHS)
def test_rows_of_a_warp_in_order(written: str, read: str, threads: int) -> None:
    barrier = "__syncthreads()" if threads > 32 else "__syncwarp()"
    for lane, first in (("lane", 0), ("0", 3), ("31 - lane", 0), ("lane", 1)):
        check(rows(written, read, barrier, barrier, lane=lane, first=first), torch.zeros(threads), block=threads)


@pytest.mark.parametrize("written", WIDTHS)
@pytest.mark.parametrize("read", WIDTHS)
def test_a_row_that_another_warp_reads_needs_both_barriers(written: str, read: str) -> None:
    for between, behind in (("", "__syncthreads()"), ("__syncthreads()", "")):
        race_of(rows(written, read, between, behind), torch.zeros(64), block=64)


@pytest.mark.parametrize("written", WIDTHS)
@pytest.mark.parametrize("read", WIDTHS)
def test_a_lane_reads_its_own_words_without_a_barrier_and_no_others(written: str, read: str) -> None:
    source, out = rows(written, read, "", ""), torch.zeros(32)
    if written == read:
        check(source, out, block=32)
    else:
        race_of(source, out, block=32)
    race_of(rows(written, read, "", "", lane="0"), out, block=32)
    race_of(rows(written, read, "", "", lane="lane ^ 16"), out, block=32)


def test_a_row_is_read_by_all_and_one_word_of_it_is_written() -> None:
    source = """
__global__ void one(float* out) {
    __shared__ __align__(128) float s[64];
    s[threadIdx.x] = 1;
    __syncthreads();
    float x = s[threadIdx.x % 32];
    BARRIER;
    if (threadIdx.x == 40) s[7] = 2;
    out[threadIdx.x] = x;
}"""
    check(source.replace("BARRIER", "__syncthreads()"), torch.zeros(64), block=64)
    words = race_of(source.replace("BARRIER", ""), torch.zeros(64), block=64)
    assert "element 7" in words and "line 6" in words  # of the warp itself, which comes to the barrier last


def test_rows_of_global_memory_that_blocks_write_and_read() -> None:
    source = """
__global__ void rows(float* x, float* out) {
    if (blockIdx.x == 0) reinterpret_cast<float4*>(x)[threadIdx.x] = float4{};
    else out[threadIdx.x] = x[threadIdx.x + FIRST];
}"""
    for first in (0, 96, 97):
        race_of(source.replace("FIRST", str(first)), torch.zeros(160), torch.zeros(32), grid=2, block=32)
    check(source.replace("FIRST", "128"), torch.zeros(160), torch.zeros(32), grid=2, block=32)


BLOCKS_READ = """
__global__ void k(float* x, float* out, int writer, int late, int all) {
    const int i = threadIdx.x, block = blockIdx.x;
    if (block != late) out[block * 32 + i] = READ;
    if (block == writer && (i == 5 || all)) x[i] = 1;
    if (block == late) out[block * 32 + i] = READ;
}"""


@pytest.mark.parametrize("order", ["forward", "reverse", "shuffled"])
@pytest.mark.parametrize(
    "read",
    ["x[i]", "x[i % 16]", "x[5]", "x[(i * 7 + block) % 32]", "x[i ^ 5]", "reinterpret_cast<float2*>(x)[i % 16].y",
     "reinterpret_cast<unsigned char*>(x)[i + 12]", "reinterpret_cast<unsigned short*>(x)[i]", "__ldg(x + i)",
     "i > 3 && i < 20 ? x[i] : 0"],
)  # fmt: skip
def test_one_of_many_blocks_writes_what_all_read(read: str, order: str) -> None:
    x, out = torch.zeros(32), torch.zeros(6 * 32)
    how = {"grid": 6, "order": order, "defines": [("READ", read)]}
    for writer in (0, 3, 5):
        for late in (7, writer):
            race_of(BLOCKS_READ, x, out, writer, late, writer % 2, **how)
    check(BLOCKS_READ, x, out, 7, 7, 1, **how)


@pytest.mark.parametrize("left_out", [0, 1, 2, None])
def test_warps_read_a_word_by_different_lanes_before_it_is_written(left_out: int | None) -> None:
    source = """
    __global__ void k(float* out) {
        __shared__ float s[32];
        const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        float sum = 0;
        for (int n = 0; n < 4; n++) {
            if (warp == 3) s[lane] = n;
            __syncthreads();
            if (warp != LATE) for (int k = 0; k < 3; k++) sum += s[lane + warp * 7 + k & 31];
            __syncthreads();
            if (warp == LATE) sum += s[lane];
        }
        out[threadIdx.x] = sum;
    }"""
    if left_out is None:
        check(source, torch.zeros(128), block=128, defines=[("LATE", "9")])
        return
    for order in ("forward", "reverse", "shuffled"):
        race_of(source, torch.zeros(128), block=128, defines=[("LATE", str(left_out))], order=order)
