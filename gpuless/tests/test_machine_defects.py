"""Small programs that the executor once got wrong: each by the machine code that showed it."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

from emulation import ON_GPU, load, needs_compiler, of_the_machine, run
from gpuless import EmulatorFault, machine
from gpuless.launch import LaunchConfig

pytestmark = needs_compiler


def run_code(lines: str, threads: int = 32) -> None:
    """Runs machine code as it is written, without a compiler: each line is 16 bytes behind the one before it."""
    text = "\n".join(f"{16 * n:04x} {line.strip()}" for n, line in enumerate(lines.strip().splitlines()))
    library = machine.library()
    handle = library.rung_machine_load(text.encode())
    try:
        assert library.rung_machine_problem(handle) is None, library.rung_machine_problem(handle)
        launch = machine._Launch(grid=(1, 1, 1), block=(threads, 1, 1), cluster=(1, 1, 1), seconds=2.0, multiprocessors=1)
        constants, fault = machine.aligned(bytes(1024)), machine.Fault()
        launch.bank[0], launch.bank_bytes[0], launch.parameters = ctypes.addressof(constants), 1024, 0x210
        assert not library.rung_machine_run(handle, ctypes.byref(launch), ctypes.byref(fault)), fault.text
    finally:
        library.rung_machine_free(handle)


@of_the_machine
def test_lanes_leave_a_region_whose_barrier_a_called_function_has_saved() -> None:
    run_code("""
        S2R R0, SR_TID.X
        ISETP.GE.AND P0, PT, R0, 0x10, PT
        ISETP.GE.AND P1, PT, R0, 0x8, PT
        BSSY B7, 0xa0
        @P0 BRA 0x80
        MOV R20, 0x70
        CALL.REL.NOINC 0xd0
        BRA 0xa0
        BREAK B7
        BRA 0xb0
        BSYNC B7
        WARPSYNC.ALL
        EXIT
        BMOV.32.CLEAR R18, B7
        BSSY B7, 0x120
        @P1 BRA 0x110
        MOV R3, R0
        MOV R2, R0
        BSYNC B7
        BMOV.32 B7, R18
        RET.REL.NODEC R20 0x0
    """)


@of_the_machine
def test_lanes_return_while_others_wait_for_the_whole_warp() -> None:
    run_code("""
        S2R R0, SR_TID.X
        ISETP.GE.AND P0, PT, R0, 0x8, PT
        ISETP.GE.AND P1, PT, R0, 0x10, PT
        @P1 BRA 0x80
        @P0 BRA 0x60
        BRA 0x90
        EXIT
        IADD3 R0, R0, 0x1, RZ
        IADD3 R0, R0, 0x1, RZ
        WARPSYNC.ALL
        EXIT
    """)


def test_lanes_of_different_calls_in_a_recursion_do_not_come_together() -> None:
    """Code for debuggers has a barrier of convergence in each call, whose lanes wait at one place."""
    source = """
    __device__ __noinline__ unsigned f(unsigned n, unsigned x) { return n % 6u == 0u ? x : f(n % 6u - 1u, x * 3u + n) + (x & 1u); }
    extern "C" __global__ void k(int* out, const int* in) {
        unsigned (*g)(unsigned, unsigned) = f, made = g(in[threadIdx.x], 31);
        for (int i = 0; i < 2; i++) out[threadIdx.x + 64 * i] = made;
    }"""
    given = torch.arange(64, dtype=torch.int32) ** 3 * 77 // 16
    plain, debugged = torch.zeros(128, dtype=torch.int32), torch.zeros(128, dtype=torch.int32)
    run(source, plain, given, block=64)
    run(source, debugged, given, block=64, options=("--device-debug",))
    assert torch.equal(plain, debugged) and plain.any()


@of_the_machine
def test_a_stack_that_recursion_makes_unknown_has_room_for_the_kernels_own_arrays() -> None:
    source = """
    __device__ __noinline__ int f(int n, int* box) { if (n < 1) return box[n & 255]; box[n]++; return f(n - 1, box) + f(n - 3, box); }
    extern "C" __global__ void k(int* v) { int box[500]; for (int i = 0; i < 500; i++) box[i] = i * i; v[threadIdx.x] = f(threadIdx.x % 7, box) + box[threadIdx.x]; }
    """
    plain, debugged = torch.arange(64, dtype=torch.int32), torch.arange(64, dtype=torch.int32)
    run(source, plain, block=64)
    run(source, debugged, block=64, options=("--device-debug",))
    assert torch.equal(plain, debugged)


@pytest.mark.skipif(ON_GPU, reason="there each launch has a process, and variables, of its own")
def test_code_for_debuggers_names_variables_of_each_module() -> None:
    source = """
    __device__ int table[4] = {7, 8, 9, 10};
    extern "C" __global__ void k(int* out) {
        __shared__ int box[32];
        box[threadIdx.x] = threadIdx.x + table[2];
        __syncthreads();
        out[threadIdx.x] = box[31 - threadIdx.x];
        if (threadIdx.x == 0) table[2]++;
    }"""
    modules = [load(source, options=("--device-debug",)) for _ in range(2)]
    for module, first in [(modules[0], 40), (modules[0], 41), (modules[1], 40)]:
        out = torch.zeros(32, dtype=torch.int32)
        module.launch("k", LaunchConfig((1, 1, 1), (32, 1, 1)), [("pointer", out)])
        assert out.tolist() == [first - i for i in range(32)]


@of_the_machine
def test_only_lanes_with_the_predicate_return() -> None:
    run_code("""
        S2R R0, SR_TID.X
        MOV R20, 0x30
        CALL.REL.NOINC 0x60
        ISETP.GE.AND P2, PT, R0, 0x20, PT
        @P2 BPT.TRAP 0x1
        EXIT
        ISETP.GE.AND P0, PT, R0, 0x10, PT
        ISETP.GE.AND P1, PT, R0, 0x8, PT
        @!P0 RET.REL.NODEC P1, R20 0x0
        IADD3 R0, R0, -0x1, RZ
        RET.REL.NODEC R20 0x0
    """)


@of_the_machine
def test_a_barrier_of_arrivals_prints_and_doubles_before_sm_90(capfd: pytest.CaptureFixture[str]) -> None:
    source = """
    #include <cuda/barrier>
    #include <stdio.h>
    __global__ void k(double* o) {
        __shared__ cuda::barrier<cuda::thread_scope_block> b; __shared__ double d[64];
        if (threadIdx.x == 0) init(&b, 64);
        __syncthreads();
        for (int i = 0; i < 3; i++) { d[threadIdx.x] = threadIdx.x + i; b.arrive_and_wait(); o[threadIdx.x] = d[63 - threadIdx.x]; b.arrive_and_wait(); }
        if (threadIdx.x == 5) printf("five %d\\n", 55);
        double d0 = 0, d1 = 0;
        asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1},{%2},{%3},{%0,%1};" : "+d"(d0), "+d"(d1) : "d"(1.0 + threadIdx.x / 4 % 8), "d"(2.0));
        o[64 + threadIdx.x] = d0 + d1;
    }"""
    o = torch.zeros(128, dtype=torch.float64)
    run(source, o, block=64, settings={"arch": "sm_80", "check_races": True})
    assert o[:64].tolist() == [65.0 - i for i in range(64)]
    assert o[64:].tolist() == [16.0 * (1 + i // 4 % 8) for i in range(64)]
    assert "five 55" in capfd.readouterr().err


def test_halves_in_the_code_are_halves() -> None:
    source = """
    #include <cuda_fp16.h>
    __global__ void k(unsigned* o) {
        o[0] = __half2int_rd(__ushort_as_half(0x5c00));
        unsigned short s; asm("cvt.rz.bf16.f16 %0, %1;" : "=h"(s) : "h"((unsigned short)0x47db)); o[1] = s;
        unsigned r; asm("fma.rn.sat.f16x2 %0, %1, %2, %1;" : "=r"(r) : "r"(o[4]), "r"(0xfe014100u)); o[2] = r;
        asm("set.gtu.u32.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(0x39b77fc0u), "r"(o[5])); o[3] = r;
    }"""
    o = torch.tensor([0, 0, 0, 0, 0x1FE, 0x3A094F00], dtype=torch.int32)
    run(source, o, block=1)
    assert o[:4].tolist() == [256, 0x40FB, 0x6F9, 0xFFFF]


SUMS = """
__global__ void k(float* o) {
    __shared__ float sums[N];
    if (threadIdx.x < N) sums[threadIdx.x] = threadIdx.x;
    __syncthreads();
    if (threadIdx.x == 0) { float sum = 0; for (int i = 0; i < USED; i++) sum += sums[i]; o[0] = sum; }
}"""


@pytest.mark.parametrize("n", [3, 7, 11])
def test_a_load_that_ptxas_has_merged_ends_beyond_the_array(n: int) -> None:
    o = torch.zeros(1)
    run(SUMS, o, block=96, defines=[("N", str(n)), ("USED", str(n))])
    assert o[0] == n * (n - 1) / 2


def test_a_pair_of_registers_replaces_the_number_beyond_the_array() -> None:
    source = """
    #include <cuda_bf16.h>
    __global__ void k(const __nv_bfloat16* x, const __nv_bfloat16* weight, __nv_bfloat16* out, int C, float eps) {
        __shared__ float s[3];
        const __nv_bfloat16* r = x + (size_t)blockIdx.x * C;
        float q = 0;
        for (int c = threadIdx.x; c < C; c += 96) { float v = __bfloat162float(r[c]); q += v * v; }
        for (int o = 16; o; o >>= 1) q += __shfl_down_sync(~0u, q, o);
        if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = q;
        __syncthreads();
        float scale = rsqrtf((s[0] + s[1] + s[2]) / C + eps);
        for (int c = threadIdx.x; c < C; c += 96)
            out[(size_t)blockIdx.x * C + c] =
                __float2bfloat16(__bfloat162float(r[c]) * scale * __bfloat162float(weight[c]));
    }"""
    out, x = torch.zeros(200, dtype=torch.bfloat16), torch.ones(200, dtype=torch.bfloat16)
    run(source, x, x, out, 200, 3.0, block=96)
    assert (out == 0.5).all()


def test_numbers_of_a_merged_load_are_stored_one_by_one() -> None:
    source = """
    __global__ void k(int* o) {
        __shared__ int s[7];
        s[threadIdx.x] = 90 + threadIdx.x;
        __syncthreads();
        if (threadIdx.x == 0)
        #pragma unroll
            for (int i = 0; i < 7; i++) o[i] = s[i];
    }"""
    o = torch.zeros(7, dtype=torch.int32)
    run(source, o, block=7)
    assert o.tolist() == list(range(90, 97))


@of_the_machine
def test_a_load_beyond_shared_memory_whose_number_is_used() -> None:
    with pytest.raises(EmulatorFault) as caught:
        run(SUMS, torch.zeros(1), block=96, defines=[("N", "3"), ("USED", "4")])
    assert caught.value.kind == "bounds" and "byte 12 is beyond the block's 12 bytes" in str(caught.value)


def test_a_uniform_address_in_another_block_of_the_cluster() -> None:
    source = """
    __global__ void k(unsigned* o) {
        __shared__ unsigned s; s = 5 + blockIdx.x;
        asm volatile("barrier.cluster.arrive;" ::: "memory"); asm volatile("barrier.cluster.wait;" ::: "memory");
        if (threadIdx.x == 0) {
            unsigned a = (unsigned)__cvta_generic_to_shared(&s), v;
            asm volatile("mapa.shared::cluster.u32 %0, %0, 1;" : "+r"(a));
            asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v) : "r"(a) : "memory"); o[blockIdx.x] = v;
        }
        asm volatile("barrier.cluster.arrive;" ::: "memory"); asm volatile("barrier.cluster.wait;" ::: "memory");
    }"""
    o = torch.zeros(2, dtype=torch.int32)
    run(source, o, grid=2, block=32, cluster=(2, 1, 1), settings={"check_races": True})
    assert o.tolist() == [6, 6]


SHUFFLES = "__global__ void k(int* o) { int v = o[threadIdx.x]; if (threadIdx.x < ACTIVE) v = CALL; o[threadIdx.x] = v; }"


@of_the_machine
@pytest.mark.parametrize(
    ("active", "call", "fine"),
    [(32, "__shfl_down_sync(~0u, v, 8)", True), (16, "__shfl_xor_sync(0xffff, v, 8)", True),
     (16, "__shfl_down_sync(0xffff, v, 8, 16)", True), (16, "__shfl_down_sync(0xffff, v, 8)", False),
     (16, "__shfl_sync(0xffff, v, 20)", False), (32, "__shfl_xor_sync(0xffff, v, 1)", False),
     (32, "__any_sync(0xffff, v)", False), (16, "__ballot_sync(0xffff, v)", True)],
)  # fmt: skip
def test_lanes_outside_of_the_mask_of_a_shuffle_or_vote(active: int, call: str, fine: bool) -> None:
    o, defines = torch.arange(32, dtype=torch.int32), [("ACTIVE", str(active)), ("CALL", call)]
    if fine:
        return run(SHUFFLES, o, defines=defines)
    with pytest.raises(EmulatorFault) as caught:
        run(SHUFFLES, o, defines=defines)
    assert caught.value.kind == "barrier"


@of_the_machine
@pytest.mark.parametrize(
    ("call", "says"),
    [("__shfl_xor_sync(0xffff, v, 16)", "reads a lane"), ("__shfl_down_sync(1u << threadIdx.x, v, 1)", "reads a lane"),
     ("__ballot_sync(0x7fffffff, v)", "leaves it out"),
     ("__shfl_xor_sync(threadIdx.x < 16 ? 0xffff : 0xffff0000, v, 8)", ""),
     ("__shfl_up_sync(0xff << (threadIdx.x / 8 * 8), v, 3, 8)", ""), ("__shfl_sync(0xffffffff, v, 33)", "")],
)  # fmt: skip
def test_masks_of_lanes_that_stay_together_which_machine_code_does_not_have(call: str, says: str) -> None:
    source = f"__global__ void k(int* o) {{ int v = o[threadIdx.x]; o[threadIdx.x] = ({call}); }}"
    o, settings = torch.arange(32, dtype=torch.int32), {"check_races": True}
    if not says:
        return run(source, o, settings=settings)
    with pytest.raises(EmulatorFault, match=says) as caught:
        run(source, o, settings=settings)
    assert caught.value.kind == "trap" and caught.value.place["line"] == 1


def texture(data: torch.Tensor, **fields: Any) -> int:
    """The number of an object over the data of a matrix, of a layer of matrices, or of a box."""

    class Texture(ctypes.Structure):  # machine/texture.h
        _fields_ = (
            *((name, ctypes.c_uint64) for name in ("address", "pitch", "slice")),
            *((name, ctypes.c_uint32) for name in ("width", "height", "depth")),
            *((name, ctypes.c_uint8) for name in ("channels", "channel_bits", "kind")),
            ("address_mode", ctypes.c_uint8 * 3),
            *((name, ctypes.c_uint8) for name in ("filter", "reads_normalized", "normalized")),
            ("border", ctypes.c_float * 4),
        )

    depth, height, width, channels = data.shape
    size = data.element_size()
    kind = 2 if data.is_floating_point() else int(data.dtype == torch.uint8)
    given: dict[str, Any] = {"address_mode": (1, 1, 1), "kind": kind} | fields
    made = Texture(data.data_ptr(), width * channels * size, height * width * channels * size, width, height, depth,
                   channels, 8 * size, **given)  # fmt: skip
    function = machine.library().rung_machine_add_texture
    function.restype = ctypes.c_uint32
    return int(function(ctypes.byref(made)))


def sampled(expression: str, to: str, number: int, count: int = 32) -> torch.Tensor:
    source = f"""
    extern "C" __global__ void f(long long object, float* out) {{
        const int i = threadIdx.x; cudaTextureObject_t t = object; cudaSurfaceObject_t s = object;
        {expression}
    }}"""
    out = torch.zeros(count)
    module = load(source, kernels=("f",))
    module.launch("f", LaunchConfig((1, 1, 1), (count, 1, 1)), [("i64", number), ("pointer", out)])
    return out


@of_the_machine
def test_textures_of_every_shape_are_read_at_points() -> None:
    data = torch.arange(2 * 4 * 8, dtype=torch.float32).view(2, 4, 8, 1)
    object_ = texture(data)
    assert sampled("out[i] = tex2D<float>(t, i % 8, i / 8);", "float", object_).tolist() == list(range(32))
    assert sampled("out[i] = tex2DLayered<float>(t, i % 8, i / 8, 1);", "float", object_)[5] == 37
    assert sampled("out[i] = tex3D<float>(t, i % 8, i / 8, 1);", "float", object_)[9] == 41
    assert sampled("out[i] = tex1Dfetch<float>(t, i);", "float", texture(data.view(1, 1, 64, 1)))[31] == 31
    assert sampled("out[i] = tex2D<float>(t, 100, -7);", "float", object_)[0] == 7  # clamped


@of_the_machine
@pytest.mark.parametrize(("mode", "expected"), [(0, [6, 7, 0, 1]), (1, [0, 0, 0, 1]), (2, [1, 0, 0, 1]), (3, [-1, -1, 0, 1])])
def test_address_modes(mode: int, expected: list[int]) -> None:
    data = torch.arange(8, dtype=torch.float32).view(1, 1, 8, 1)
    object_ = texture(data, address_mode=(mode, mode, mode), normalized=1, border=(-1, -1, -1, -1))
    assert sampled("out[i] = tex1D<float>(t, (i - 1.5f) / 8);", "float", object_, 4).tolist() == expected


@of_the_machine
def test_linear_filtering_follows_the_programming_guide() -> None:
    data = torch.rand(1, 4, 8, 1)
    object_ = texture(data, filter=1)
    found = sampled("out[i] = tex2D<float>(t, i * 0.25f, i * 0.125f);", "float", object_)
    x, y = torch.arange(32) * 0.25 - 0.5, torch.arange(32) * 0.125 - 0.5
    left, above = x.floor().long(), y.floor().long()
    a, b = x - left, y - above
    at = lambda i, j: data[0, j.clamp(0, 3), i.clamp(0, 7), 0]  # noqa: E731
    expected = (1 - a) * (1 - b) * at(left, above) + a * (1 - b) * at(left + 1, above) + (1 - a) * b * at(left, above + 1) + a * b * at(left + 1, above + 1)
    torch.testing.assert_close(found, expected)


@of_the_machine
def test_pixels_are_read_as_numbers_and_gathered() -> None:
    data = torch.randint(0, 255, (1, 4, 8, 4), dtype=torch.uint8)
    object_ = texture(data, reads_normalized=1)
    found = sampled("out[i] = tex2D<float4>(t, i % 8, i / 8).z;", "float", object_)
    torch.testing.assert_close(found, data[0, :, :, 2].flatten() / 255)
    found = sampled("out[i] = tex2D<uchar4>(t, i % 8, i / 8).w;", "float", texture(data))
    assert torch.equal(found, data[0, :, :, 3].flatten().float())
    found = sampled("float4 v = tex2Dgather<float4>(t, 2.f, 1.f, 1); out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;", "float", object_)
    torch.testing.assert_close(found[:4] * 255, data[0, [1, 1, 0, 0], [1, 2, 2, 1], 1].float())


@of_the_machine
def test_surfaces_are_read_and_written() -> None:
    data = torch.arange(2 * 4 * 8, dtype=torch.float32).view(2, 4, 8, 1)
    object_ = texture(data)
    sampled("float v; surf2Dread(&v, s, i % 8 * 4, i / 8); surf3Dwrite(v + 100, s, i % 8 * 4, i / 8, 1);", "float", object_)
    assert torch.equal(data[1], data[0] + 100)
    out = sampled("float v = 1; surf2Dread(&v, s, i * 4, 0, cudaBoundaryModeZero); out[i] = v; surf2Dread(&v, s, i * 4, 0, cudaBoundaryModeClamp); out[i] += v;", "float", object_)
    assert out[:9].tolist() == [0, 2, 4, 6, 8, 10, 12, 14, 7]
    with pytest.raises(EmulatorFault) as caught:
        sampled("float v; surf2Dread(&v, s, i * 4, 0); out[i] = v;", "float", object_)
    assert caught.value.kind == "trap"


@pytest.mark.parametrize("number", ["float", "double"])
def test_an_atomic_sum_through_a_pointer_to_either_memory(number: str) -> None:
    """The instruction works on global memory alone; the code behind it asks in which memory the number is."""
    out = torch.zeros(64, dtype=getattr(torch, number))
    run(f"""extern "C" __global__ void k({number}* out) {{
        __shared__ {number} shared[32];
        {number}* const p = threadIdx.x & 1 ? out : shared;
        p[threadIdx.x] = 1;
        atomicAdd(p + threadIdx.x, ({number})2);
        out[32 + threadIdx.x] = p[threadIdx.x];
    }}""", out)
    assert out[32:].tolist() == [3] * 32


def test_a_pointer_is_in_its_blocks_shared_memory_or_in_anothers_of_the_cluster() -> None:
    out = torch.zeros(4, dtype=torch.int32)
    run("""#include <cooperative_groups.h>
    extern "C" __global__ void k(int* out) {
        __shared__ int mine;
        auto cluster = cooperative_groups::this_cluster();
        const int* const p = cluster.map_shared_rank(&mine, 1);
        int own, any;
        asm("{.reg .pred q; isspacep.shared::cta q, %1; selp.b32 %0, 1, 0, q;}" : "=r"(own) : "l"(p));
        asm("{.reg .pred q; isspacep.shared::cluster q, %1; selp.b32 %0, 1, 0, q;}" : "=r"(any) : "l"(p));
        out[2 * blockIdx.x] = own, out[2 * blockIdx.x + 1] = any;
        cluster.sync();
    }""", out, grid=2, block=1, cluster=(2, 1, 1))
    assert out.tolist() == [0, 1, 1, 1]


@of_the_machine
def test_code_for_debuggers_asks_whether_its_stack_has_room() -> None:
    run_code("""
        LDC R1, c[0x0][0x28]
        S2R R0, SR_LMEMHIOFF
        ISETP.GE.U32.AND P0, PT, R1, R0, PT
        @P0 BRA 0x50
        BPT.TRAP 0x1
        EXIT
    """)


@of_the_machine
def test_an_instruction_that_is_refused_is_named() -> None:
    library = machine.library()
    for text in (b"0000 NOSUCH.F32 R0, R1\n", b"0000 @P0 FADD.NOSUCH R0, R1, R2\n"):
        library.rung_machine_free(library.rung_machine_load(text))
    assert {"NOSUCH.F32", "FADD.NOSUCH"} <= {*machine.fidelity()["refused"]}
    machine.forget_fidelity()
    assert machine.fidelity() == {"exact": 0, "table": {}, "approximate": {}, "refused": []}
