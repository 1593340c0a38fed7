"""What the machine finds in a launch: bounds, memory that nothing has written, barriers, races, copies that nobody waits for;
and nothing where CUDA's rules order the accesses. Kinds and places are asserted."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from emulation import INCLUDE, guarded, needs_compiler, orders
from on_machine import run
from rung.cuda.launch import Build, LaunchConfig
from rung.emulator import machine
from rung.emulator.judged import Judging, Region
from rung.errors import EmulatorFault

pytestmark = [needs_compiler, pytest.mark.skipif(bool(machine.unavailable()), reason=machine.unavailable())]
RACES = {"check_races": True}
ORDERS = list(orders())


def fault_of(source: str, *args: Any, **launch: Any) -> tuple[str, set[int], str]:
    """Kind, lines and sentence of the fault."""
    launch.setdefault("settings", RACES)
    with pytest.raises(EmulatorFault) as caught:
        run(source, *args, **launch)
    words = str(caught.value)
    return caught.value.kind, {int(n) for n in re.findall(r"line (\d+)", words)}, words


# ---- memory -----------------------------------------------------------------------------------------------------------

COPY = """
__global__ void k(const float* x, float* out, int n, int from, int to) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i + to] = x[i + from];
}"""


@pytest.mark.parametrize(("n", "blocks"), [(4, 1), (1000, 4)])
@pytest.mark.parametrize(("shift", "name", "element"), [((1, 0), "x", 0), ((0, 1), "out", 0), ((-9, 0), "x", -9)])
def test_accesses_beside_a_tensor_name_parameter_element_and_line(
    n: int, blocks: int, shift: tuple[int, int], name: str, element: int
) -> None:
    x, out = guarded(torch.randn(n)), guarded(torch.zeros(n))
    run(COPY, x, out, n, 0, 0, grid=blocks, block=256)
    assert torch.equal(x, out)
    kind, lines, words = fault_of(COPY, x, out, n, *shift, grid=blocks, block=256)
    assert (kind, lines) == ("bounds", {5})
    assert f"parameter '{name}'" in words and f"element {element if element < 0 else n} " in words


def test_a_null_pointer_and_a_misaligned_vector() -> None:
    assert fault_of(COPY, None, torch.zeros(4), 4, 0, 0, block=4)[:2] == ("bounds", {5})
    source = """
    __global__ void k(const float* x, float4* out) {
        *out = *reinterpret_cast<const float4*>(x + 1);
    }"""
    kind, lines, words = fault_of(source, torch.zeros(8), torch.zeros(4), block=1)
    assert (kind, lines) == ("bounds", {3}) and "multiple of 16" in words


def test_an_input_is_not_written() -> None:
    source = """
    __global__ void k(float* x) {
        x[threadIdx.x] = 1;
    }"""
    x = torch.zeros(4)
    build = Build(source, "test.cu", ("k",), (), include=(INCLUDE,))
    region = Region(x.data_ptr(), x.data_ptr() + 16, "parameter 'x'", 4, writable=False)
    values = [machine.aligned(x.data_ptr().to_bytes(8, "little"), 64)]
    with pytest.raises(EmulatorFault) as caught:
        machine.run(
            machine.program(build, "k"), LaunchConfig((1, 1, 1), (1, 1, 1)), machine.Variables(build), values,
            room=0, seconds=6.0, regions=[region],
        )  # fmt: skip
    assert caught.value.kind == "bounds" and "line 3" in str(caught.value)
    assert "writes to parameter 'x', which is an input: element 0" in str(caught.value)


UNWRITTEN = """
__global__ void k(const float* x, float* out, int n) {
    __shared__ float tile[64];
    float mine[8];
    if (threadIdx.x < n) tile[threadIdx.x] = x[threadIdx.x];
    for (int i = 0; i < n; i++) mine[i & 7] = i;
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x] +
        mine[(n + 31) & 7];
}"""


@pytest.mark.parametrize(("n", "lines"), [(64, set()), (63, {8}), (0, {8, 9})])
def test_what_nothing_has_written_is_found_where_it_is_read(n: int, lines: set[int]) -> None:
    x, out, settings = torch.zeros(64), torch.zeros(64), {"unwritten": True}
    if not lines:
        return run(UNWRITTEN, x, out, n, block=64, settings=settings)
    kind, where, words = fault_of(UNWRITTEN, x, out, n, block=64, settings=settings)
    assert kind == "unwritten" and where <= lines
    assert n == 0 or "'tile', element 63" in words
    return None


def test_bits_of_written_memory_serve_the_launches_that_follow() -> None:
    source = """
    __global__ void k(float* x, int from) {
        if (threadIdx.x < 4) x[threadIdx.x] = from ? x[threadIdx.x + from] : 1.0f;
    }"""
    x, bits = torch.zeros(8), bytearray(4)
    build = Build(source, "test.cu", ("k",), (), include=(INCLUDE,))

    def launch(first: int) -> None:
        region = Region(x.data_ptr(), x.data_ptr() + 32, "parameter 'x'", 4, written=bits)
        values = [
            machine.aligned(x.data_ptr().to_bytes(8, "little"), 64),
            machine.aligned(first.to_bytes(4, "little"), 64),
        ]
        machine.run(
            machine.program(build, "k"), LaunchConfig((1, 1, 1), (32, 1, 1)), machine.Variables(build), values,
            room=0, seconds=6.0, regions=[region], judging=Judging(unwritten=True),
        )  # fmt: skip

    launch(0)
    assert bits == b"\xff\xff\x00\x00"
    with pytest.raises(EmulatorFault) as caught:
        launch(2)
    assert caught.value.kind == "unwritten" and "element 4" in str(caught.value)


# ---- barriers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", ORDERS)
@pytest.mark.parametrize("condition", ["threadIdx.x < 32", "threadIdx.x < 50"])
def test_a_barrier_that_not_every_thread_reaches(settings: dict[str, Any], condition: str) -> None:
    source = f"""
    __global__ void k(float* out) {{
        if (!({condition})) return;
        __syncthreads();
        out[threadIdx.x] = 1;
    }}"""
    assert fault_of(source, torch.zeros(64), block=64, **settings)[:2] == ("barrier", {4})


def test_a_named_barrier_for_different_counts() -> None:
    source = """
    extern "C" __global__ void k() {
        if (threadIdx.x < 32) asm volatile("bar.sync 1, 96;" ::: "memory");
        else asm volatile("bar.sync 1, 64;" ::: "memory");
    }"""
    assert fault_of(source, block=96)[0] == "barrier"


# ---- races ------------------------------------------------------------------------------------------------------------

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


@pytest.mark.parametrize("settings", ORDERS)
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
    launch = {
        "block": 256,
        "shared": 1024,
        "defines": [("BARRIER", barrier), ("LAST", str(last)), ("WARP", warp)],
        **settings,
    }
    x, out = torch.randn(256), torch.zeros(1)
    if racy:
        kind, lines, words = fault_of(TREE, x, out, **launch)
        assert kind == "race" and 7 in lines and "shared variable 's', element" in words
    else:
        run(TREE, x, out, settings=RACES, **launch)
        torch.testing.assert_close(out[0], x.sum(), rtol=1e-4, atol=1e-4)


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
GOOD = {
    "FENCE": "__threadfence()",
    "AFTER": "__threadfence()",
    "ADD": "atomicAdd(out, sum)",
    "COUNT": "atomicAdd(count, 1)",
}


@pytest.mark.parametrize("settings", ORDERS[:3])
@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({}, 0),
        ({"ADD": "out[0] += sum"}, 11),
        ({"FENCE": ""}, 12),
        ({"AFTER": ""}, 12),
        ({"AFTER": "__syncwarp(1)"}, 12),
        ({"FENCE": "__threadfence_block()"}, 12),
        ({"AFTER": "__threadfence_block()"}, 12),
        ({"COUNT": "atomicAdd_block(count, 1)"}, 9),
        ({"ADD": "atomicAdd_block(out, sum)"}, 11),
    ],
    ids=str,
)
def test_blocks_are_ordered_by_atomics_and_fences_alone(
    settings: dict[str, Any], changed: dict[str, str], line: int
) -> None:
    parts, count, out = torch.zeros(4), torch.zeros(1, dtype=torch.int32), torch.zeros(2)
    launch = {"grid": 4, "block": 64, "defines": list({**GOOD, **changed}.items()), **settings}
    if line:
        kind, lines, _ = fault_of(BLOCKS, parts, count, out, **launch)
        assert kind == "race" and line in lines
    else:
        run(BLOCKS, parts, count, out, settings=RACES, **launch)
        assert out.tolist() == [256.0, 256.0]


@pytest.mark.parametrize("order", ["forward", "reverse", "shuffled"])
def test_blocks_that_run_one_after_the_other_are_told_apart(order: str) -> None:
    source = "__global__ void k(float* a) {\n    a[blockIdx.x * 32 + threadIdx.x] += a[blockIdx.x * 32 + threadIdx.x + 32];\n}"
    kind, lines, words = fault_of(source, torch.zeros(160), grid=4, order=order)
    assert kind == "race" and lines == {2} and " of block (" in words and "parameter 'a'" in words


SAME = """
__global__ void sums(float* out) {
    __shared__ float of_warp[4];
    of_warp[threadIdx.x / WARP] = VALUE;
    __syncthreads();
    out[threadIdx.x] = of_warp[threadIdx.x % 2];
}"""


@pytest.mark.parametrize("settings", ORDERS[:3])
@pytest.mark.parametrize(
    ("warp", "value", "racy"),
    [("32", "float(threadIdx.x / 32 + 1)", False), ("32", "float(threadIdx.x)", True), ("64", "1.0f", True)],
)
def test_lanes_of_a_warp_may_store_one_value_to_one_address(
    settings: dict[str, Any], warp: str, value: str, racy: bool
) -> None:
    launch = {"block": 64, "defines": [("WARP", warp), ("VALUE", value)], **settings}
    if racy:
        assert fault_of(SAME, torch.zeros(64), **launch)[:2] == ("race", {4})
    else:
        run(SAME, torch.zeros(64), settings=RACES, **launch)


def test_bytes_and_halves_beside_each_other_do_not_race() -> None:
    source = """
    #include <cuda_fp16.h>
    __global__ void k(float* out) {
        __shared__ __half h[64];
        __shared__ unsigned char c[64];
        h[threadIdx.x] = __float2half(threadIdx.x), c[63 - threadIdx.x] = threadIdx.x;
        __syncthreads();
        out[threadIdx.x] = __half2float(h[63 - threadIdx.x]) + c[threadIdx.x];
    }"""
    out = torch.zeros(64)
    run(source, out, block=64, settings=RACES)
    assert out.tolist() == [2 * (63 - i) for i in range(64)]


def test_the_read_only_cache_does_not_serve_what_the_launch_writes() -> None:
    source = """
    __global__ void k(float* data, float* out) {
        data[threadIdx.x] = threadIdx.x;
        __syncthreads();
        out[threadIdx.x] = __ldg(data + 63 - threadIdx.x);
    }"""
    kind, lines, words = fault_of(source, torch.ones(64), torch.zeros(64), block=64)
    assert kind == "race" and lines == {3, 5} and "read-only cache" in words


# ---- copies and products under way ------------------------------------------------------------------------------------

BUFFERS = """
#include "rung.cuh"
extern "C" __global__ void k(const float* x, float* out) {
    __shared__ __align__(16) float s[2][128];
    float sum = 0;
    cp_async_16(&s[0][4 * threadIdx.x], x + 4 * threadIdx.x);
    cp_async_commit();
    for (int i = 0; i < 4; i++) {
        if (i < 3) cp_async_16(&s[(i + 1) % 2][4 * threadIdx.x], x + (i + 1) * 128 + 4 * threadIdx.x);
        cp_async_commit();
        WAIT;
        SYNC;
        for (int j = 0; j < 128; j++) sum += s[i % 2][j];
        END;
    }
    out[threadIdx.x] = sum;
}"""


@pytest.mark.parametrize("settings", ORDERS[:3])
@pytest.mark.parametrize(
    "changed", [{}, {"WAIT": ""}, {"WAIT": "cp_async_wait<2>()"}, {"SYNC": ""}, {"END": ""}], ids=str
)
def test_a_double_buffer_of_asynchronous_copies(settings: dict[str, Any], changed: dict[str, str]) -> None:
    x, out = torch.randn(4, 128), torch.zeros(32)
    defines = list({"WAIT": "cp_async_wait<1>()", "SYNC": "__syncwarp()", "END": "__syncwarp()", **changed}.items())
    if changed:
        kind, lines, _ = fault_of(BUFFERS, x, out, defines=defines, **settings)
        assert kind == "race" and lines & {6, 9, 13}
    else:
        run(BUFFERS, x, out, defines=defines, settings=RACES, **settings)
        torch.testing.assert_close(out, x.sum().expand(32), rtol=1e-4, atol=1e-4)


RING = """
#include "rung.cuh"
constexpr int STAGES = 3, TILE = 256;
extern "C" __global__ void k(const float* x, float* out, int tiles) {
    __shared__ alignas(16) float ring[STAGES][TILE];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    if (threadIdx.x == 0)
        for (int s = 0; s < STAGES; s++) { byte_barrier_init(full + s, 1); byte_barrier_init(empty + s, 3); }
    __syncthreads();
    if (warp_id() == 3) {
        if (lane_id() > 0) return;
        for (int t = 0; t < tiles; t++) {
            const int s = t % STAGES;
            if (t >= STAGES) byte_barrier_wait(empty + s, EMPTY_PARITY);
            byte_barrier_expect(full + s, TILE * 4);
            bulk_copy(ring[s], x + t * TILE, TILE * 4, full + s);
        }
        return;
    }
    float sum = 0;
    for (int t = 0; t < tiles; t++) {
        const int s = t % STAGES;
        if (EARLY && lane_id() == 0) byte_barrier_arrive(empty + s);
        WAIT;
        for (int i = lane_id(); i < TILE; i += 32) sum += ring[s][i];
        SYNC;
        if (!EARLY && lane_id() == 0) byte_barrier_arrive(empty + s);
    }
    out[threadIdx.x] = sum;
}"""
RIGHT = {
    "EMPTY_PARITY": "(t / STAGES - 1) % 2",
    "EARLY": "0",
    "WAIT": "byte_barrier_wait(full + s, t / STAGES % 2)",
    "SYNC": "__syncwarp()",
}


@pytest.mark.parametrize("settings", ORDERS[:3])
@pytest.mark.parametrize(
    "changed", [{}, {"WAIT": ""}, {"EARLY": "1"}, {"SYNC": ""}, {"EMPTY_PARITY": "t / STAGES % 2"}], ids=str
)
def test_a_ring_of_bulk_copies(settings: dict[str, Any], changed: dict[str, str]) -> None:
    x, out = torch.randn(8, 256), torch.full((96,), float("nan"))
    launch = {"block": 128, "defines": list({**RIGHT, **changed}.items()), **settings}
    if changed:
        assert fault_of(RING, x, out, 8, **launch)[0] in ("race", "deadlock")
    else:
        run(RING, x, out, 8, settings=RACES, **launch)
        torch.testing.assert_close(out, x.view(8, 8, 32).sum((0, 1)).repeat(3), rtol=1e-4, atol=1e-4)


STORES = """
#include "rung.cuh"
extern "C" __global__ void k(float* out) {
    __shared__ alignas(16) float s[2][128];
    for (int t = 0; t < 4; t++) {
        if (t >= 2 && threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
        __syncthreads();
        s[t % 2][threadIdx.x] = t * 128 + threadIdx.x;
        FENCE;
        __syncthreads();
        if (threadIdx.x == 0) {
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                         :: "l"(out + t * 128), "r"(shared_address(s[t % 2])), "n"(512) : "memory");
            COMMIT;
        }
    }
    if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group LAST;" ::: "memory");
}"""


@pytest.mark.parametrize(
    ("changed", "kinds"),
    [({}, ()), ({"FENCE": ""}, ("race",)), ({"COMMIT": ""}, ("race", "async")), ({"LAST": "2"}, ("async",))],
    ids=str,
)
def test_a_bulk_store_reads_late(changed: dict[str, str], kinds: tuple[str, ...]) -> None:
    good = {"COMMIT": 'asm volatile("cp.async.bulk.commit_group;" ::: "memory")',
            "FENCE": 'asm volatile("fence.proxy.async;" ::: "memory")', "LAST": "0"}  # fmt: skip
    out, made = torch.zeros(512), {**good, **changed}
    launch = {"block": 128, "defines": [(name, made[name]) for name in ("COMMIT", "FENCE")]}
    source = STORES.replace("LAST", made["LAST"])
    if kinds:
        kind, _, words = fault_of(source, out, **launch)
        assert kind in kinds and ("FENCE" not in changed or "fence.proxy.async" in words)
    else:
        run(source, out, settings=RACES, **launch)
        assert torch.equal(out, torch.arange(512.0))


@pytest.mark.parametrize("order", ["forward", "reverse", "shuffled"])
@pytest.mark.parametrize("first", [True, False])
def test_a_block_of_a_cluster_may_not_have_started(order: str, first: bool) -> None:
    source = f"""
    #include <cooperative_groups.h>
    extern "C" __global__ void k(int* out) {{
        __shared__ int mine;
        auto cluster = cooperative_groups::this_cluster();
        const int rank = cluster.block_rank();
        if ({int(first)}) cluster.sync();
        if (threadIdx.x == 0) cluster.map_shared_rank(&mine, (rank + 1) % 2)[0] = rank + 1;
        cluster.sync();
        if (threadIdx.x == 0) out[rank] = mine;
    }}"""
    out, launch = torch.zeros(2, dtype=torch.int32), {"grid": 2, "cluster": (2, 1, 1), "order": order}
    if first:
        run(source, out, settings=RACES, **launch)
        assert out.tolist() == [2, 1]
    else:
        kind, lines, words = fault_of(source, out, **launch)
        assert kind == "race" and lines == {8} and "started" in words


# ---- coverage ---------------------------------------------------------------------------------------------------------


def test_both_ways_of_a_branch_are_counted_by_lanes() -> None:
    source = """
    __global__ void k(float* out, int n) {
        float v = out[threadIdx.x];
        if (threadIdx.x < n)
            for (int i = 0; i < 40; i++) v = v * v + out[i];
        out[threadIdx.x + 32] = v;
    }"""
    build = Build(source, "test.cu", ("k",), (), include=(INCLUDE,))
    out = torch.zeros(64)
    for n, expected in ((10, {(10, 22), (22, 10)}), (32, {(32, 0), (0, 32)})):
        run(source, out, n)
        program = machine.program(build, "k")
        ways = zip(program.instructions, program.ways(), strict=True)
        assert {
            way for i, way in ways if i.name == "BRA" and 4 in (n for _, n in i.lines) and i.text[0] == "@"
        } & expected
