"""Litmus tests of the memory model: small programs with and without each synchronisation. A right one is never faulted
in any order of warps and blocks; a wrong one is found in one of them."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

import gpuless
from emulation import needs_compiler
from gpuless.base.errors import EmulatorFault
from gpuless.launch import Build, LaunchConfig

pytestmark = needs_compiler

HEAD = r"""
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/semaphore>
namespace cg = cooperative_groups;
using U = unsigned;
#define T threadIdx.x
#define B blockIdx.x
#define ASM(...) asm volatile(__VA_ARGS__ : "memory")
__device__ U at(const void* p) { return (U)__cvta_generic_to_shared(p); }
__device__ U remote(const void* p, U rank) { U r; asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(at(p)), "r"(rank)); return r; }
__device__ U read_remote(U a) { U v; ASM("ld.shared::cluster.u32 %0, [%1];" : "=r"(v) : "r"(a)); return v; }
__device__ void mb_init(void* b, U n) { ASM("mbarrier.init.shared.b64 [%0], %1;" :: "r"(at(b)), "r"(n)); }
__device__ void mb_arrive(void* b) { ASM("mbarrier.arrive.shared.b64 _, [%0];" :: "r"(at(b))); }
__device__ void mb_expect(void* b, U n) { ASM("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(at(b)), "r"(n)); }
__device__ void mb_wait(void* b, U p) { U ok; do ASM("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }" : "=r"(ok) : "r"(at(b)), "r"(p)); while (!ok); }
__device__ void bulk_in(void* s, const void* g, U n, void* b) { ASM("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" :: "r"(at(s)), "l"(g), "r"(n), "r"(at(b))); }
__device__ void bulk_out(void* g, const void* s, U n) { ASM("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" :: "l"(g), "r"(at(s)), "r"(n)); }
__device__ void bulk_add(void* g, const void* s, U n) { ASM("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%0], [%1], %2;" :: "l"(g), "r"(at(s)), "r"(n)); }
__device__ void copy_lane(void* s, const void* g) { ASM("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(at(s)), "l"(g)); }
__device__ void product(float (&d)[4], U a) { ASM("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %4, %4, %4}, {%4, %4}, {%0, %1, %2, %3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a)); }
"""


class Row(NamedTuple):
    """`body` is the kernel's; `$` and what follows a letter in it is filled by the parts of `right`, and of each wrong
    one. g points to 1,024 words, all 0."""

    name: str
    body: str
    right: tuple[str, ...]
    wrong: tuple[tuple[str, ...], ...]
    grid: int = 1
    block: int = 32
    cluster: int = 1


PROXY = 'ASM("fence.proxy.async;" ::)'
SPIN = "while (atomicAdd(g, 0) == 0) ;"
ROWS = [
    # Lanes of one warp.
    Row("warp_exchange", "__shared__ U s[32]; s[T] = T; $; g[T] = s[31 - T];", ("__syncwarp()",), (("",), ("__shfl_sync(~0u, T, 0)",))),
    Row("tiles_of_8", "__shared__ U s[32]; s[T] = T; $; g[T] = s[(T & 24) + 7 - (T & 7)];",
        ("__syncwarp(0xffu << (T & 24))",), (("",), ("__syncwarp(3u << (T & 30))",))),
    Row("tiled_partition", "__shared__ U s[64]; s[T] = T; auto t = cg::tiled_partition<8>(cg::this_thread_block()); $; g[T] = s[T ^ 7];",
        ("t.sync()",), (("",),), block=64),
    Row("tile_beyond", "__shared__ U s[32]; s[T] = T; $; g[T] = s[31 - T];", ("__syncwarp()",), (("__syncwarp(0xffu << (T & 24))",),)),
    Row("branches_meet", "__shared__ U s[32]; s[T] = T; if (T < 8) { $0; g[T] = s[7 - T]; } else { $1; g[T] = s[T ^ 8 ^ 8]; }",
        ("__syncwarp(0xff)", "__syncwarp(~0xffu)"), (("", "__syncwarp(~0xffu)"),)),
    Row("match_groups", "__shared__ U s[32]; s[T] = T; U m = __match_any_sync(~0u, T / 4); $; g[T] = s[T ^ 3];", ("__syncwarp(m)",), (("",),)),
    Row("lock_of_lanes", "bool done = false; while (!done) if (atomicCAS(g, 0, 1) == 0) { $0; g[1] += 1; $1; atomicExch(g, 0); done = true; }",
        ("__threadfence()", "__threadfence()"), (("", "__threadfence()"), ("__threadfence()", ""))),
    Row("lock_of_lanes_and_blocks", "bool done = false; while (!done) if (atomicCAS(g, 0, 1) == 0) { $0; g[1] += 1; $1; atomicExch(g, 0); done = true; }",
        ("__threadfence()", "__threadfence()"), (("", "__threadfence()"), ("__threadfence()", ""), ("__threadfence_block()", "__threadfence_block()")), grid=3),
    Row("lane_acquires_for_itself", "if (B == 0) { if (T == 0) { g[1] = 7; __threadfence(); atomicExch(g, 1); } } else { if (T == 0) { " + SPIN + " __threadfence(); } $; g[32 + T] = g[1]; }",
        ("__syncwarp()",), (("",),), grid=2),
    Row("lane_releases_for_itself", "if (B == 0) { g[32 + T] = T; $; if (T == 0) { __threadfence(); atomicExch(g, 1); } } else { if (T == 0) { " + SPIN + " __threadfence(); } __syncwarp(); g[64 + T] = g[32 + T]; }",
        ("__syncwarp()",), (("",), ("__threadfence()",)), grid=2),
    # Message passing.
    Row("message_fences", "if (B == 0) { g[1] = 7; $0; atomicExch(g, 1); } else { " + SPIN + " $1; g[2] = g[1]; }",
        ("__threadfence()", "__threadfence()"),
        (("", "__threadfence()"), ("__threadfence()", ""), ("__threadfence_block()", "__threadfence()"), ("__threadfence()", "__threadfence_block()")), grid=2, block=1),
    Row("message_acquire_release", 'U v; if (B == 0) { g[1] = 7; ASM("st.$0.global.u32 [%0], 1;" :: "l"(g)); } else { do ASM("ld.$1.global.u32 %0, [%1];" : "=r"(v) : "l"(g)); while (!v); g[2] = g[1]; }',
        ("release.gpu", "acquire.gpu"), (("relaxed.gpu", "acquire.gpu"), ("release.gpu", "relaxed.gpu"), ("release.cta", "acquire.gpu"), ("release.gpu", "acquire.cta")), grid=2, block=1),
    Row("message_of_the_system", 'U v; if (B == 0) { g[1] = 7; ASM("st.release.sys.global.u32 [%0], 1;" :: "l"(g)); } else { do ASM("ld.$.global.u32 %0, [%1];" : "=r"(v) : "l"(g)); while (!v); g[2] = g[1]; }',
        ("acquire.sys",), (("relaxed.sys",),), grid=2, block=1),
    Row("message_in_a_block", 'U v; if (T == 0) { g[1] = 7; ASM("st.$0.cta.global.u32 [%0], 1;" :: "l"(g)); } if (T == 32) { do ASM("ld.$1.cta.global.u32 %0, [%1];" : "=r"(v) : "l"(g)); while (!v); g[2] = g[1]; }',
        ("release", "acquire"), (("relaxed", "acquire"), ("release", "relaxed")), block=64),
    Row("message_in_shared_memory", '__shared__ U s[2]; U v; if (T == 0) s[0] = 0; __syncthreads(); if (T == 0) { s[1] = 7; ASM("st.$0.cta.shared.u32 [%0], 1;" :: "r"(at(s))); } if (T == 32) { do ASM("ld.$1.cta.shared.u32 %0, [%1];" : "=r"(v) : "r"(at(s))); while (!v); g[2] = s[1]; }',
        ("release", "acquire"), (("relaxed", "acquire"), ("release", "relaxed")), block=64),
    Row("message_by_atomic_ref", "cuda::atomic_ref<U, cuda::thread_scope_device> f(*g); if (B == 0) { g[1] = 7; f.store(1, cuda::std::memory_order_$0); } else { while (!f.load(cuda::std::memory_order_$1)) ; g[2] = g[1]; }",
        ("release", "acquire"), (("relaxed", "acquire"), ("release", "relaxed")), grid=2, block=1),
    Row("message_by_add", "cuda::atomic_ref<U, cuda::thread_scope_$2> f(*g); if (B == 0) { g[1] = 7; f.fetch_add(1, cuda::std::memory_order_$0); } else { while (!f.fetch_add(0, cuda::std::memory_order_$1)) ; g[2] = g[1]; }",
        ("release", "acquire", "device"), (("relaxed", "acquire", "device"), ("release", "relaxed", "device"), ("release", "acquire", "block")), grid=2, block=1),
    Row("message_in_shared_by_atomic", "__shared__ U s[2]; if (T == 0) s[0] = 0; __syncthreads(); cuda::atomic_ref<U, cuda::thread_scope_block> f(s[0]); if (T == 0) { s[1] = 7; f.store(1, cuda::std::memory_order_$0); } if (T == 32) { while (!f.load(cuda::std::memory_order_$1)) ; g[2] = s[1]; }",
        ("release", "acquire"), (("relaxed", "acquire"),), block=64),
    Row("release_is_overwritten", "if (B == 0) { g[1] = 7; __threadfence(); atomicExch(g, 1); } else if (B == 1) { while (atomicAdd(g, 0) == 0) ; $ } else { while (atomicAdd(g, 0) < 2) ; __threadfence(); g[2] = g[1]; }",
        ("atomicAdd(g, 1);",), (('ASM("st.relaxed.gpu.global.u32 [%0], 2;" :: "l"(g));',),), grid=3, block=1),
    Row("causality_over_three", "if (B == 0) { g[1] = 7; __threadfence(); atomicExch(g, 1); } else if (B == 1) { " + SPIN + " $; atomicExch(g + 3, 1); } else { while (atomicAdd(g + 3, 0) == 0) ; __threadfence(); g[2] = g[1]; }",
        ("__threadfence()",), (("",),), grid=3, block=1),
    Row("double_checked", "if (atomicAdd(g + T, 0) == 0) ; if (B == 0 && T == 0) { g[40] = 5; $; atomicExch(g + 33, 1); } if (B == 1 && T == 0) { if (atomicAdd(g + 33, 0)) { __threadfence(); g[41] = g[40]; } }",
        ("__threadfence()",), (("",),), grid=2),
    Row("last_block", "__shared__ bool last; g[64 + B * 32 + T] = T; $0; __syncthreads(); if (T == 0) { last = atomicAdd(g, 1) == 2; } __syncthreads(); if (last) { $1; g[T + 1] = g[64 + T] + g[96 + T] + g[128 + T]; }",
        ("__threadfence()", "__threadfence()"), (("", "__threadfence()"), ("__threadfence_block()", "")), grid=3),
    Row("last_thread", "g[64 + T] = T; $0; U n = atomicAdd(g, 1); if (n == 63) { $1; U sum = 0; for (int i = 0; i < 64; i++) sum += g[64 + i]; g[1] = sum; }",
        ("__threadfence()", "__threadfence()"), (("", "__threadfence()"), ("__threadfence()", "")), block=64),
    Row("semaphore_in_shared", "__shared__ cuda::counting_semaphore<cuda::thread_scope_block, 1> s; __shared__ U d; if (T == 0) { new (&s) cuda::counting_semaphore<cuda::thread_scope_block, 1>(1); d = 0; } __syncthreads(); $0; if (T % 32 == 0) { s.acquire(); d += 1; $1; s.release(); } __syncthreads(); g[T] = d;",
        ("", ""), (("if (T == 0) d += 1", ""),), block=64),
    Row("semaphore_in_global", "auto& s = *(cuda::counting_semaphore<cuda::thread_scope_device, 1>*)g; if (B == 0) s.release(); s.acquire(); $; s.release();",
        ("g[8] += 1",), (("",  ), ), grid=2, block=1),
    # One lane executes an atomic for all of its warp, by its guard or in a branch; the compiler's choice, or the source's.
    Row("all_lanes_release", 'U v; if (B == 0) { g[64 + T] = T; ASM("red.$.gpu.global.add.u32 [%0], 1;" :: "l"(g)); } else { do ASM("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(g)); while (v != 64); g[128 + T] = g[127 - T]; }',
        ("release",), (("relaxed",),), grid=2, block=64),
    Row("all_lanes_add_64_bits", "cuda::atomic_ref<unsigned long long, cuda::thread_scope_device> n(*(unsigned long long*)g); if (B == 0) { g[64 + T] = T; g[256 + n.fetch_add(1, cuda::memory_order_$)] = 1; } else { while (n.load(cuda::memory_order_acquire) != 64) ; g[128 + T] = g[127 - T]; }",
        ("release",), (("relaxed",),), grid=2, block=64),
    Row("cuda_barrier_of_blocks", "auto b = (cuda::barrier<cuda::thread_scope_device>*)(g + 512); if (B + T == 0) init(b, 64); cg::this_grid().sync(); g[B * 32 + T] = T; $; g[128 + B * 32 + T] = g[63 - B * 32 - T];",
        ("b->arrive_and_wait()",), (("(void)b->arrive()",),), grid=2),
    Row("cuda_barrier_that_calls", "struct Add { U* n; __device__ void operator()() noexcept { ++*n; } }; using Bar = cuda::barrier<cuda::thread_scope_block, Add>; __shared__ U n, s[64]; __shared__ alignas(16) char room[sizeof(Bar)]; Bar& b = *(Bar*)room; if (T == 0) { n = 0; new (&b) Bar(64, Add{&n}); } __syncthreads(); s[T] = T; $; g[T] = s[63 - T] + n;",
        ("b.arrive_and_wait()",), (("(void)b.arrive()",),), block=64),
    Row("leader_of_the_source", "if (B == 0) { g[64 + T] = T; U m = __activemask(); $; if (T == __ffs(m) - 1) { __threadfence(); atomicAdd(g, 1); } } else { " + SPIN + " __threadfence(); g[128 + T] = g[64 + T]; }",
        ("__syncwarp()",), (("",),), grid=2),
    # Barriers of a block.
    Row("block_barrier", "__shared__ U s[64]; s[T] = T; $; g[T] = s[63 - T];", ("__syncthreads()",), (("",), ("__syncwarp()",), ("__threadfence_block()",)), block=64),
    Row("named_barriers", '__shared__ U s[64]; s[T] = T; ASM("bar.sync %0, $1;" :: "r"(1 + $0)); g[T] = s[T ^ $2];',
        ("T / 64", "64", "32"), (("T / 32", "32", "32"),), block=64),
    Row("arrive_and_sync", '__shared__ U s[32]; if (T < 32) { s[T] = T; $; } else { ASM("bar.sync 1, 64;" ::); g[T] = s[63 - T]; }', ('ASM("bar.arrive 1, 64;" ::)',), (('ASM("bar.arrive 1, 64;" ::); s[T] = 1',),), block=64),
    Row("cuda_barrier", "__shared__ U s[64]; __shared__ cuda::barrier<cuda::thread_scope_block> b; if (T == 0) init(&b, 64); __syncthreads(); s[T] = T; $; g[T] = s[T ^ 1] + s[T ^ 33];",
        ("b.arrive_and_wait()",), (("(void)b.arrive()",),), block=64),
    Row("cuda_barrier_in_a_loop", "__shared__ U s[64]; __shared__ cuda::barrier<cuda::thread_scope_block> b; if (T == 0) init(&b, 64); __syncthreads(); U v = 0; for (int i = 0; i < 3; i++) { s[T] = T + i; b.arrive_and_wait(); v += s[63 - T]; $; } g[T] = v;",
        ("b.arrive_and_wait()",), (("",),), block=64),
    Row("cuda_barrier_of_a_warp", "__shared__ U s[32]; __shared__ cuda::barrier<cuda::thread_scope_block> b; if (T == 0) init(&b, 32); __syncwarp(); s[T] = T; $; g[T] = s[31 - T];",
        ("b.wait(b.arrive())",), (("(void)b.arrive()",),)),
    Row("mbarrier", "__shared__ U s[64]; __shared__ unsigned long long b; if (T == 0) mb_init(&b, 64); $0; s[T] = T; mb_arrive(&b); $1; g[T] = s[63 - T];",
        ("__syncthreads()", "mb_wait(&b, 0)"), (("", "mb_wait(&b, 0)"), ("__syncthreads()", "if (T == 5) mb_wait(&b, 0)"), ("__syncthreads()", "")), block=64),
    Row("mbarrier_after_the_arrival", "__shared__ U s[64]; __shared__ unsigned long long b; if (T == 0) mb_init(&b, 64); __syncthreads(); $0; mb_arrive(&b); $1; mb_wait(&b, 0); g[T] = s[T ^ 1];",
        ("s[T] = T", ""), (("", "s[T] = T"),), block=64),
    # The copy engine.
    Row("bulk_copy", "__shared__ alignas(128) U s[32]; __shared__ unsigned long long b; if (T == 0) mb_init(&b, 1); __syncthreads(); if (T == 0) { mb_expect(&b, 128); bulk_in(s, g, 128, &b); } $; g[32 + T] = s[T];",
        ("mb_wait(&b, 0)",), (("",), ("if (T == 0) mb_wait(&b, 0)",))),
    Row("bulk_ring_of_one_warp", "__shared__ alignas(128) U s[32]; __shared__ unsigned long long b, e; if (T == 0) mb_init(&b, 1), mb_init(&e, 32); __syncthreads(); for (int i = 0; i < 2; i++) { if (T == 0) { $0; mb_expect(&b, 128); bulk_in(s, g + i * 32, 128, &b); } mb_wait(&b, i); g[128 + i * 32 + T] = s[31 - T]; $1; }",
        ("if (i) mb_wait(&e, 0)", "mb_arrive(&e)"), (("", "mb_arrive(&e)"),)),
    # Its writes, too, are ordered behind generic writes by a proxy fence, of the writers or of who begins the copy;
    # behind generic reads by what orders the reads.
    Row("bulk_copy_over_stores", "__shared__ alignas(128) U s[64]; __shared__ unsigned long long b; if (T == 0) mb_init(&b, 1); s[T] = T; $0; __syncthreads(); if (T == 0) { $1; mb_expect(&b, 256); bulk_in(s, g, 256, &b); } mb_wait(&b, 0); g[64 + T] = s[T];",
        (PROXY, ""), (("", ""), ("__threadfence()", "")), block=64),
    Row("bulk_copy_behind_a_fence_of_its_own", "__shared__ alignas(128) U s[64]; __shared__ unsigned long long b; if (T == 0) mb_init(&b, 1); s[T] = T; __syncthreads(); if (T == $) { " + PROXY + "; } if (T == 0) { mb_expect(&b, 256); bulk_in(s, g, 256, &b); } mb_wait(&b, 0); g[64 + T] = s[T];",
        ("0",), (("1",),), block=64),
    Row("bulk_copy_over_copies_of_lanes", '__shared__ alignas(128) U s[32]; __shared__ unsigned long long b; if (T == 0) mb_init(&b, 1); copy_lane(s + T, g + T); ASM("cp.async.wait_all;" ::); $; __syncthreads(); if (T == 0) { mb_expect(&b, 128); bulk_in(s, g, 128, &b); } mb_wait(&b, 0); g[64 + T] = s[T];',
        (PROXY,), (("",),)),
    Row("bulk_copy_updated_in_place", "__shared__ alignas(128) U s[64]; __shared__ unsigned long long b; if (T == 0) mb_init(&b, 1); __syncthreads(); for (int i = 0; i < 2; i++) { if (T == 0) { mb_expect(&b, 256); bulk_in(s, g + i * 64, 256, &b); } mb_wait(&b, i); s[T] += T; $; __syncthreads(); g[256 + i * 64 + T] = s[63 - T]; __syncthreads(); }",
        (PROXY,), (("",),), block=64),
    Row("bulk_copy_into_a_stored_tile", '__shared__ alignas(128) U s[64]; __shared__ unsigned long long b; if (T == 0) mb_init(&b, 1); s[T] = T; ' + PROXY + '; __syncthreads(); if (T == 0) { bulk_out(g, s, 256); ASM("cp.async.bulk.commit_group;" ::); $; mb_expect(&b, 256); bulk_in(s, g + 128, 256, &b); } mb_wait(&b, 0); g[64 + T] = s[T];',
        ('ASM("cp.async.bulk.wait_group 0;" ::)',), (("",),), block=64),
    Row("bulk_copy_behind_reads", "__shared__ alignas(128) U s[64]; __shared__ unsigned long long b; if (T == 0) mb_init(&b, 1); __syncthreads(); for (int i = 0; i < 3; i++) { if (T == 0) { mb_expect(&b, 256); bulk_in(s, g + i * 64, 256, &b); } mb_wait(&b, i & 1); g[256 + i * 64 + T] = s[63 - T]; $; }",
        ("__syncthreads()",), (("",), ("__syncwarp()",)), block=64),
    Row("bulk_ring_of_two_warps", "__shared__ alignas(128) U s[2][32]; __shared__ unsigned long long full[2], empty[2]; if (T == 0) for (int k = 0; k < 2; k++) mb_init(full + k, 1), mb_init(empty + k, 32); __syncthreads(); if (T == 32) for (int i = 0; i < 5; i++) { $0; mb_expect(full + i % 2, 128); bulk_in(s[i % 2], g + i * 32, 128, full + i % 2); } if (T < 32) for (int i = 0; i < 5; i++) { mb_wait(full + i % 2, i / 2 & 1); U v = s[i % 2][31 - T]; $1; g[256 + i * 32 + T] = v; }",
        ("if (i > 1) mb_wait(empty + i % 2, i / 2 - 1 & 1)", "mb_arrive(empty + i % 2)"), (("if (i > 1) mb_wait(empty + i % 2, i / 2 - 1 & 1)", "mb_arrive(empty + i % 2); v += s[i % 2][T]"),), block=64),
    Row("bulk_ring_that_is_updated", "__shared__ alignas(128) U s[32]; __shared__ unsigned long long full, empty; if (T == 0) mb_init(&full, 1), mb_init(&empty, 32); __syncthreads(); if (T == 32) for (int i = 0; i < 3; i++) { if (i) mb_wait(&empty, i - 1 & 1); mb_expect(&full, 128); bulk_in(s, g + i * 32, 128, &full); } if (T < 32) for (int i = 0; i < 3; i++) { mb_wait(&full, i & 1); s[T] += T; $; mb_arrive(&empty); }",
        (PROXY,), (("",),), block=64),
    Row("bulk_addition_over_stores", '__shared__ alignas(128) U s[32]; s[T] = T; g[T] = T; $; __syncwarp(); if (T == 0) { bulk_add(g, s, 128); ASM("cp.async.bulk.commit_group;" ::); ASM("cp.async.bulk.wait_group 0;" ::); }',
        (PROXY,), (('ASM("fence.proxy.async.shared::cta;" ::)',), ("",))),
    Row("stores_signal_over_stores", '__shared__ alignas(16) U s[4]; __shared__ unsigned long long b; if (T == 0) { mb_init(&b, 1); mb_expect(&b, 4); s[0] = 1; } $; if (B == 1 && T == 0) ASM("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" :: "r"(remote(s, 0)), "r"(7), "r"(remote(&b, 0))); if (B == 0) { mb_wait(&b, 0); g[T] = s[0]; } cg::this_cluster().sync();',
        ("cg::this_cluster().sync()",), (("__syncthreads()",),), grid=2, cluster=2),
    Row("copies_of_lanes", '__shared__ alignas(16) U s[64]; ASM("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(at(s + T)), "l"(g + T)); ASM("cp.async.commit_group;" ::); $0; $1; g[128 + T] = s[63 - T];',
        ('ASM("cp.async.wait_group 0;" ::)', "__syncthreads()"), (("", "__syncthreads()"), ('ASM("cp.async.wait_group 0;" ::)', "__syncwarp()"), ('ASM("cp.async.wait_group 1;" ::)', "__syncthreads()")), block=64),
    Row("copies_of_a_warp", '__shared__ alignas(16) U s[32]; copy_lane(s + T, g + T); $0 ASM("cp.async.wait_all;" ::); $1; g[128 + T] = s[31 - T];',
        ("", "__syncwarp()"), (("", ""), ("if (T < 16)", "__syncwarp()"))),
    Row("copies_of_a_lane", '__shared__ alignas(16) U s[32]; copy_lane(s + T, g + T); ASM("cp.async.wait_all;" ::); g[128 + T] = s[$];', ("T",), (("T ^ 1",),)),
    Row("copies_arrive", '__shared__ alignas(16) U s[32]; __shared__ unsigned long long b; if (T == 0) mb_init(&b, $0); __syncwarp(); copy_lane(s + T, g + T); if (T < $0) ASM("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" :: "r"(at(&b))); mb_wait(&b, 0); g[128 + T] = s[31 - T];',
        ("32",), (("1",),)),
    Row("reductions_of_blocks", '__shared__ alignas(128) U s[32]; s[T] = T + B; ASM("fence.proxy.async;" ::); __syncthreads(); if (T == 0) { $(g, s, 128); ASM("cp.async.bulk.commit_group;" ::); ASM("cp.async.bulk.wait_group 0;" ::); }',
        ("bulk_add",), (("bulk_out",),), grid=3),
    # A product waits for its operands and an acquire for its load: neither is a __syncwarp, though ptxas leaves a NOP.
    Row("tile_of_a_product", "__shared__ U s[32]; float d[4] = {}, e[4] = {}; _Pragma(\"unroll 1\") for (U i = 0; i < 9; i++) { s[T] = i; $0; U a = s[31 - T]; product(d, a); product(e, a); $1; } g[T] = d[0] + d[1] + d[2] + d[3] + e[0] + e[1];",
        ("__syncwarp()", "__syncwarp()"), (("__syncwarp()", ""), ("", "__syncwarp()"))),
    Row("acquire_of_a_warp", "__shared__ U s[32], f; s[T] = T; if (T == 0) f = 0; __syncwarp(); s[T] = 1; cuda::atomic_ref<U, cuda::thread_scope_block>(f).load(cuda::memory_order_acquire); $; g[T] = s[31 - T];",
        ("__syncwarp()",), (("",),)),
    Row("barrier_of_bytes_of_a_warp", "__shared__ alignas(128) U s[32]; __shared__ unsigned long long b; if (T == 0) { mb_init(&b, 1); mb_expect(&b, 128); bulk_in(s, g, 128, &b); } $; mb_wait(&b, 0); g[32 + T] = s[T];",
        ("__syncwarp()",), (("",),)),
    # Clusters.
    Row("cluster_barrier", '__shared__ U s[32]; s[T] = T; ASM("barrier.cluster.arrive$0;" ::); ASM("barrier.cluster.wait;" ::); g[B * 32 + T] = read_remote(remote(s + 31 - T, B ^ 1)); $1;',
        ("", 'ASM("barrier.cluster.arrive;" ::); ASM("barrier.cluster.wait;" ::)'),
        ((".relaxed", 'ASM("barrier.cluster.arrive;" ::); ASM("barrier.cluster.wait;" ::)'), ("", "")), grid=2, cluster=2),
    Row("cluster_ends_by_a_relaxed_barrier", '__shared__ U s[32]; s[T] = T; cg::this_cluster().sync(); g[B * 32 + T] = read_remote(remote(s + 31 - T, B ^ 1)); ASM("barrier.cluster.arrive.relaxed;" ::); $;',
        ('ASM("barrier.cluster.wait;" ::)',), (("",),), grid=2, cluster=2),
    Row("cluster_start", '__shared__ U s[32]; if (T == 0) { s[0] = 1; } $; if (T == 0) g[B] = read_remote(remote(s, B ^ 1)); cg::this_cluster().sync();', ("cg::this_cluster().sync()",), (("__syncthreads()",),), grid=2, cluster=2),
    Row("remote_arrival", '__shared__ U s[32]; __shared__ unsigned long long b; if (T == 0) mb_init(&b, 32); cg::this_cluster().sync(); if (B) { ASM("st.shared::cluster.u32 [%0], %1;" :: "r"(remote(s + T, 0)), "r"(T)); ASM("mbarrier.arrive.$.cluster.shared::cluster.b64 _, [%0];" :: "r"(remote(&b, 0))); } else { U ok; do ASM("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }" : "=r"(ok) : "r"(at(&b))); while (!ok); g[T] = s[31 - T]; } cg::this_cluster().sync();',
        ("release",), (("relaxed",),), grid=2, cluster=2),
    Row("remote_arrival_of_readers", '__shared__ U s[32]; __shared__ unsigned long long b; s[T] = T; if (T == 0) mb_init(&b, 32); cg::this_cluster().sync(); if (B) { g[T] = read_remote(remote(s + T, 0)); $; } else { mb_wait(&b, 0); s[T] = 9; } cg::this_cluster().sync();',
        ('ASM("mbarrier.arrive.shared::cluster.b64 _, [%0];" :: "r"(remote(&b, 0)))',), (('ASM("mbarrier.arrive.shared::cluster.b64 _, [%0];" :: "r"(remote(&b, 0))); g[64 + T] = read_remote(remote(s + T, 0))',),), grid=2, cluster=2),
    Row("copy_to_another_block", '__shared__ alignas(128) U s[32], r[32]; __shared__ unsigned long long b; if (T == 0) { mb_init(&b, 1); mb_expect(&b, 128); } s[T] = T; ASM("fence.proxy.async;" ::); $0; if (T == 0) ASM("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 128, [%2];" :: "r"(remote(r, B ^ 1)), "r"(at(s)), "r"(remote(&b, B ^ 1))); mb_wait(&b, 0); g[B * 32 + T] = r[31 - T]; $1;',
        ("cg::this_cluster().sync()", "cg::this_cluster().sync()"), (("cg::this_cluster().sync()", ""), ("__syncwarp()", "cg::this_cluster().sync()")), grid=2, cluster=2),
    Row("copy_to_all_blocks", '__shared__ alignas(128) U s[32]; __shared__ unsigned long long b; if (T == 0) { mb_init(&b, 1); mb_expect(&b, 128); } cg::this_cluster().sync(); if (B + T == 0) ASM("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], 128, [%2], %3;" :: "r"(at(s)), "l"(g), "r"(at(&b)), "h"((unsigned short)3)); if ($) { mb_wait(&b, 0); g[128 + B * 32 + T] = s[T]; }',
        ("true",), (("B == 0",),), grid=2, cluster=2),
    Row("cluster_ends_before_an_arrival", '__shared__ unsigned long long b; if (T == 0) mb_init(&b, 32); cg::this_cluster().sync(); if (B) ASM("mbarrier.arrive.shared::cluster.b64 _, [%0];" :: "r"(remote(&b, 0))); else { $; }',
        ("mb_wait(&b, 0)",), (("",),), grid=2, cluster=2),
    Row("tile_of_two_warps", "__shared__ cg::block_tile_memory<64> m; __shared__ U s[64]; auto t = cg::tiled_partition<64>(cg::this_thread_block(m)); s[T] = T; $; U sum = s[63 - T]; for (int i = 0; i < 3; i++) sum += cg::reduce(t, T + i, cg::plus<U>()); g[T] = sum;",
        ("t.sync()",), (("__syncwarp()",),), block=64),
    # Scopes and kinds of access.
    Row("atomics_of_blocks", "$(g, 1);", ("atomicAdd",), (("atomicAdd_block",),), grid=2),
    Row("atomic_beside_plain", "if (B == 0) atomicAdd(g, 1); else if (T == 0) $;", ("g[1] = atomicAdd(g, 0)",), (("g[1] = g[0]",), ("g[0] = 5",)), grid=2),
    Row("atomic_beside_plain_in_shared", "__shared__ U s; if (T == 0) s = 0; __syncthreads(); atomicAdd(&s, 1); $; if (T == 0) g[0] = s;", ("__syncthreads()",), (("",), ("__syncwarp()",)), block=64),
    Row("grid_barrier", "g[64 + B * 32 + T] = T; $; g[T] = g[64 + (B ^ 1) * 32 + T];", ("cg::this_grid().sync()",), (("__syncthreads()", ),), grid=2),
    Row("grid_barrier_in_a_loop", "for (U i = 0; i < 3; i++) { g[64 + B * 64 + T] = i; cg::this_grid().sync(); g[512 + B * 64 + T] += g[64 + (B ^ 1) * 64 + T]; $; }",
        ("cg::this_grid().sync()",), (("",),), grid=4, block=64),
]  # fmt: skip


def kernel(row: Row, name: str, parts: tuple[str, ...]) -> str:
    body = row.body
    for k, part in enumerate(parts):
        body = body.replace(f"${k}", part)
    body = body.replace("$", parts[0])
    return f'extern "C" __global__ void {name}(U* g) {{ {body} }}\n'


KERNELS = {
    f"{row.name}_{'right' if not n else f'wrong{n}'}": (row, parts)
    for row in ROWS
    for n, parts in enumerate((row.right, *row.wrong))
    if n == 0 or row.name != "semaphore_in_global"
}


@pytest.fixture(scope="module")
def build() -> Build:
    source = HEAD + "".join(kernel(row, name, parts) for name, (row, parts) in KERNELS.items())
    return Build(source, "litmus.cu", tuple(KERNELS), ())


def faults(build: Build, name: str) -> list[str]:
    """Of a program in each order."""
    row, _ = KERNELS[name]
    found = []
    for order in ("forward", "reverse", "shuffled"):
        settings = gpuless.Settings(check_races=True, order=order, seconds=2.0)  # type: ignore[arg-type]
        module = gpuless.load(build, settings=settings)
        config = LaunchConfig((row.grid, 1, 1), (row.block, 1, 1), cluster=(row.cluster, 1, 1) if row.cluster > 1 else None,
                              cooperative=row.grid > 1 and row.cluster == 1)  # fmt: skip
        try:
            module.launch(name, config, [("pointer", torch.zeros(1024, dtype=torch.int32))])
        except EmulatorFault as fault:
            found.append(f"{order}: {fault.kind}: {fault}")
    return found


@pytest.mark.parametrize("name", [name for name in KERNELS if name.endswith("right")])
def test_a_right_program_has_no_fault(build: Build, name: str) -> None:
    assert not faults(build, name)


@pytest.mark.parametrize("name", [name for name in KERNELS if not name.endswith("right")])
def test_a_wrong_program_is_found(build: Build, name: str) -> None:
    found = faults(build, name)
    assert found and any(": race: " in fault for fault in found)
