"""Random programs for differential fuzzing of the machine, for the device and, compiled by g++, for the host.

A program has statements of all kinds (arithmetic, branches, loops, switches, early returns, calls, recursion, function
pointers, templates, local arrays, inline PTX), and between them phases in which all threads of a block take part:
shuffles, votes, shared memory, cooperative groups, CUB's block primitives, asynchronous copies, clusters. Each runs with
the race check: programs are free of races, so each fault is false. One of four is compiled for a debugger.
gpuless/tools/fuzz.py is the command.
"""

from __future__ import annotations

import ctypes
import random
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

import gpuless
from gpuless.base.errors import EmulatorFault
from gpuless.launch import Build, LaunchConfig

THREADS, BLOCKS, NUMBERS = 64, 2, 6

COMMON = r"""
typedef unsigned U;
struct S { U v[6]; };
HD float real(U x) { return (float)(int)(x % 200003u - 100001u) * 0.25f; }
HD U bits(float x) { return (U)(int)(x > 1e9f ? 1e9f : x < -1e9f ? -1e9f : x); }
template <int N> HD U mixed(U a, U b) { U made = a; for (int i = 0; i < N; i++) made = made * 1664525u + (b >> (i & 31)); return made ^ N; }
NOINLINE U f0(U a, U b) { return a % 7u > 3u ? a * b + 1u : a - b; }
NOINLINE U f1(U a, U b) { U t[8]; for (U i = 0; i < 8; i++) t[i] = a + i * b; return t[b & 7] ^ t[(a >> 3) & 7]; }
NOINLINE U f2(U a, U b) { if (a & 1u) return mixed<3>(a, b); for (U i = 0; i < (b & 7u); i++) { if ((a ^ i) % 5u == 0u) return i + a; a += b; } return a; }
NOINLINE U f3(U n, U x) { return n % 6u == 0u ? x : f3(n % 6u - 1u, x * 3u + n) + (x & 1u); }
typedef U (*Function)(U, U);
HD Function chosen(U n) { switch (n & 3u) { case 0: return f0; case 1: return f1; case 2: return f2; } return f3; }
"""
DEVICE = r"""
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#define HD __device__ __forceinline__
#define NOINLINE __device__ __noinline__
namespace cg = cooperative_groups;
"""
HOST = r"""
#include <stdint.h>
#include <string.h>
#define HD static inline
#define NOINLINE static __attribute__((noinline))
"""


class Phase(NamedTuple):
    """A step of all threads: on the device of one thread (s, t), on the host of all in a block (all[t]); i and j name
    numbers, n is drawn."""

    device: str
    host: str


PHASES = (
    Phase("s.v[{i}] += __shfl_xor_sync(~0u, s.v[{j}], {n} & 31);", "EACH s.v[{i}] += old[t ^ ({n} & 31)].v[{j}];"),
    Phase("s.v[{i}] ^= __shfl_down_sync(~0u, s.v[{j}], {n} & 31);", "EACH s.v[{i}] ^= old[t % 32 + ({n} & 31) < 32 ? t + ({n} & 31) : t].v[{j}];"),
    Phase("s.v[{i}] += __ballot_sync(~0u, s.v[{j}] & 4);", "EACH for (U l = 0; l < 32; l++) s.v[{i}] += (old[t / 32 * 32 + l].v[{j}] >> 2 & 1u) << l;"),
    Phase("s.v[{i}] ^= __match_any_sync(~0u, s.v[{j}] & 3);", "EACH {{ U m = 0; for (U l = 0; l < 32; l++) m |= U((old[t / 32 * 32 + l].v[{j}] & 3) == (old[t].v[{j}] & 3)) << l; s.v[{i}] ^= m; }}"),
    Phase("s.v[{i}] = __reduce_add_sync(~0u, s.v[{j}]);", "EACH {{ U m = 0; for (U l = 0; l < 32; l++) m += old[t / 32 * 32 + l].v[{j}]; s.v[{i}] = m; }}"),
    Phase("__syncthreads(); box[t] = s.v[{j}]; __syncthreads(); s.v[{i}] += box[(t * 5 + {n}) % 64];", "EACH s.v[{i}] += old[(t * 5 + {n}) % 64].v[{j}];"),
    Phase("__syncthreads(); {{ auto g = cg::tiled_partition<8>(cg::this_thread_block()); box[t] = s.v[{j}]; g.sync(); s.v[{i}] ^= box[t ^ 7]; g.sync(); s.v[{j}] += cg::reduce(g, s.v[{i}], cg::plus<U>()); }}",
          "EACH s.v[{i}] ^= old[t ^ 7].v[{j}]; {{ S mid[64]; memcpy(mid, all, sizeof mid); for (U t = 0; t < 64; t++) for (U l = 0; l < 8; l++) all[t].v[{j}] += mid[t / 8 * 8 + l].v[{i}]; }}"),
    Phase("if (s.v[{j}] & 1) {{ auto g = cg::coalesced_threads(); s.v[{i}] += g.size() * 64 + g.thread_rank(); }}",
          "EACH if (old[t].v[{j}] & 1) {{ U size = 0, rank = 0; for (U l = 0; l < 32; l++) {{ U one = old[t / 32 * 32 + l].v[{j}] & 1; size += one, rank += l < t % 32 ? one : 0; }} s.v[{i}] += size * 64 + rank; }}"),
    Phase("{{ using R = cub::BlockReduce<U, 64>; __shared__ typename R::TempStorage temp; __shared__ U sum; U all = R(temp).Sum(s.v[{j}]); if (t == 0) sum = all; __syncthreads(); s.v[{i}] += sum; __syncthreads(); }}",
          "EACH for (U l = 0; l < 64; l++) s.v[{i}] += old[l].v[{j}];"),
    Phase("{{ using R = cub::BlockScan<U, 64>; __shared__ typename R::TempStorage temp; U before; R(temp).ExclusiveSum(s.v[{j}], before); __syncthreads(); s.v[{i}] ^= before; }}",
          "EACH {{ U m = 0; for (U l = 0; l < t; l++) m += old[l].v[{j}]; s.v[{i}] ^= m; }}"),
    Phase('__syncthreads(); asm volatile("cp.async.ca.shared.global [%0], [%1], 4; cp.async.commit_group; cp.async.wait_group 0;" :: "r"((U)__cvta_generic_to_shared(box + t)), "l"(given + t * 6 + {i}) : "memory"); __syncthreads(); s.v[{j}] += box[t ^ 1];',
          "EACH s.v[{j}] += given[(t ^ 1) * 6 + {i}];"),
    Phase("cg::this_cluster().sync(); box[t] = s.v[{j}]; cg::this_cluster().sync(); s.v[{i}] += *cg::this_cluster().map_shared_rank(box + (t ^ 3), blockIdx.x ^ 1); cg::this_cluster().sync();",
          "CLUSTER s.v[{i}] += other[t ^ 3].v[{j}];"),
    Phase("__syncthreads(); if (t < 6) box[t] = 0; __syncthreads(); atomicAdd(box + (s.v[{j}] & 3), s.v[{i}]); __syncthreads(); s.v[{j}] ^= box[t & 3];",
          "EACH for (U l = 0; l < 64; l++) s.v[{j}] ^= 0; {{ U sum[4] = {{}}; for (U l = 0; l < 64; l++) sum[old[l].v[{j}] & 3] += old[l].v[{i}]; for (U t = 0; t < 64; t++) all[t].v[{j}] ^= sum[t & 3]; }}"),
)  # fmt: skip

PTX = (  # code for the device, the same for the host
    ('asm("prmt.b32 %0, %1, %2, 0x2501;" : "=r"({r}) : "r"({a}), "r"({b}));', "{r} = ({a} >> 8 & 255u) | ({a} & 255u) << 8 | ({b} >> 8 & 255u) << 16 | ({a} >> 16 & 255u) << 24;"),
    ('asm("bfe.u32 %0, %1, 5, 9;" : "=r"({r}) : "r"({a} ^ {b}));', "{r} = ({a} ^ {b}) >> 5 & 511u;"),
    ('asm("bfi.b32 %0, %1, %2, 3, 7;" : "=r"({r}) : "r"({a}), "r"({b}));', "{r} = ({b} & ~(127u << 3)) | ({a} & 127u) << 3;"),
    # The compiler (13.0) makes wrong code where asm has a source twice, or as its result ("+r"): r = lop3(a, b, a, 0x96),
    # then r ^ b, is a; sad adds to another variable. So neither stands here.
    ('asm("lop3.b32 %0, %1, %2, %3, 0x96;" : "=r"({r}) : "r"({a}), "r"({b} * 3u + 1u), "r"(({a} + 77u) * 5u));', "{r} = {a} ^ ({b} * 3u + 1u) ^ ({a} + 77u) * 5u;"),
    ('asm("shf.l.wrap.b32 %0, %1, %2, 11;" : "=r"({r}) : "r"({a}), "r"({b}));', "{r} = {b} << 11 | {a} >> 21;"),
    ('asm("mad.hi.u32 %0, %1, %2, %3;" : "=r"({r}) : "r"({a}), "r"({b}), "r"(({a} + 77u) * 5u));', "{r} = ({a} + 77u) * 5u + (U)((uint64_t){a} * {b} >> 32);"),
    ('asm("dp4a.u32.u32 %0, %1, %2, %3;" : "=r"({r}) : "r"({a}), "r"({b}), "r"(({a} + 77u) * 5u));', "{r} = ({a} + 77u) * 5u; for (U q = 0; q < 32; q += 8) {r} += ({a} >> q & 255u) * ({b} >> q & 255u);"),
    ('asm("sad.s32 %0, %1, %2, %3;" : "=r"({r}) : "r"({a}), "r"({b}), "r"(({a} + 77u) * 5u));', "{r} = ({a} + 77u) * 5u + (U)((int){a} > (int){b} ? {a} - {b} : {b} - {a});"),
    ("{r} = __vadd4({a}, {b});", "{r} = ((({a} & 0x7f7f7f7fu) + ({b} & 0x7f7f7f7fu)) ^ (({a} ^ {b}) & 0x80808080u));"),
    ("{r} = __popc({a}) + __clz({b}) * 64 + __brev({a});", "{r} = (U)__builtin_popcount({a}) + ({b} ? (U)__builtin_clz({b}) : 32u) * 64u; for (U q = 0; q < 32; q++) {r} += ({a} >> q & 1u) << (31 - q);"),
)  # fmt: skip


class Writer:
    """Random code, for the device and the host side by side."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.statements = 0

    def number(self) -> str:
        kind = self.draw.randrange(4)
        if kind == 0:
            return f"{self.draw.choice((0, 1, 3, 31, 255, 65537, 0x80000000, 0xFFFFFFFF, self.draw.getrandbits(32)))}u"
        return "lane" if kind == 1 and self.draw.random() < 0.3 else f"s.v[{self.draw.randrange(NUMBERS)}]"

    def value(self, depth: int = 2) -> str:
        if not depth or self.draw.random() < 0.2:
            return self.number()
        a, b = self.value(depth - 1), self.value(depth - 1)
        return self.draw.choice((
            f"({a} + {b})", f"({a} - {b})", f"({a} * {b})", f"({a} ^ {b})", f"({a} & {b})", f"({a} | {b})", f"({a} >> ({b} & 31u))",
            f"({a} << ({b} & 31u))", f"({a} / ({b} | 1u))", f"({a} % ({b} | 1u))", f"(U)((int){a} / (int)({b} % 1000u + 1u))", f"(U)((int){a} >> ({b} & 31u))",
            f"({a} < {b} ? {a} : {b})", f"((int){a} < (int){b} ? {b} + 1u : {a})", f"f{self.draw.randrange(4)}({a}, {b})",
            f"mixed<{self.draw.randrange(1, 6)}>({a}, {b})", f"chosen({a})({b}, {a})", f"bits(real({a}) * real({b}) + 1.5f)", f"bits(real({a}) / (real({b}) + 0.125f))",
            f"(U)((uint64_t){a} * {b} >> 17)", f"(U)(signed char)({a} + {b})", f"(U)(short)({a} - {b})",
        ))  # fmt: skip

    def place(self) -> str:
        return f"s.v[{self.draw.randrange(NUMBERS)}]"

    def code(self, depth: int) -> tuple[str, str]:
        """A few statements: for the device, for the host."""
        device, host = "", ""
        for _ in range(self.draw.randrange(2, 5)):
            one = self.statement(depth)
            device, host = device + one[0], host + one[1]
        return device, host

    def statement(self, depth: int) -> tuple[str, str]:
        self.statements += 1
        kind = self.draw.randrange(9 if depth else 4)
        if kind == 0:
            to, head = self.place(), f"{{ U a = {self.number()}, b = {self.number()}, r = a;"
            device, host = (code.format(r="r", a="a", b="b") for code in self.draw.choice(PTX))
            return f"{head} {device} {to} = r; }}\n", f"{head} {host} {to} = r; }}\n"
        if kind < 4:
            text = f"{self.place()} = {self.value(3)};\n"
            return text, text
        device, host = self.code(depth - 1)
        head = {
            4: f"if ({self.value(1)} % 3u == 1u) ",
            5: f"for (U i{depth} = 0, n = {self.value(1)} % 6u; i{depth} < n; i{depth}++) ",
            6: f"for (U i{depth} = 0; i{depth} < 5u && {self.place()} % 7u != 2u; i{depth}++) ",
        }.get(kind)
        if head:
            stop = f"if ({self.place()} % 11u == 3u) {self.draw.choice(('break', 'continue', 'return'))};" if kind > 4 else ""
            return f"{head}{{ {device} {stop} }}\n", f"{head}{{ {host} {stop} }}\n"
        if kind == 7:
            stop = f"if ({self.value(1)} & 32u) return;\n"
            return f"{{ {stop} {device} }}\n", f"{{ {stop} {host} }}\n"
        other = self.code(depth - 1)
        head, last = f"switch ({self.value(1)} & 3u)", self.place()
        return (f"{head} {{ case 0: {device} break; case 1: {other[0]} default: {last} += 3u; }}\n",
                f"{head} {{ case 0: {host} break; case 1: {other[1]} default: {last} += 3u; }}\n")  # fmt: skip


def program(seed: int) -> tuple[str, str, int]:
    """The source for the device, that for the host, and how many statements there are."""
    writer = Writer(seed)
    device, host, calls, steps = "", "", "", ""
    for k in range(4):
        code = writer.code(3)
        device += f"{writer.draw.choice(('HD', 'NOINLINE'))} void part{k}(S& s, U lane) {{ {code[0]} }}\n"
        host += f"HD void part{k}(S& s, U lane) {{ {code[1]} }}\n"
        i, j = writer.draw.sample(range(NUMBERS), 2)
        phase, n = writer.draw.choice(PHASES), writer.draw.randrange(64)
        writer.statements += 1
        calls += f"    part{k}(s, t + blockIdx.x * 64); __syncwarp(); {phase.device.format(i=i, j=j, n=n)}\n"
        steps += f"    for (U b = 0; b < 2; b++) for (U t = 0; t < 64; t++) part{k}(blocks[b][t], t + b * 64);\n"
        loop = "for (U t = 0; t < 64; t++) if (S& s = all[t]; true)"
        body = phase.host.format(i=i, j=j, n=n).replace("EACH", loop).replace("CLUSTER", loop)
        steps += f"    memcpy(before, blocks, sizeof before); for (U b = 0; b < 2; b++) {{ S *all = blocks[b], *old = before[b], *other = before[b ^ 1]; const U* given = in; (void)old, (void)other, (void)given; {body} }}\n"
    kernel = f"""extern "C" __global__ void __cluster_dims__(2, 1, 1) k(const U* given, U* out) {{
    __shared__ U box[64]; const U t = threadIdx.x; S s;
    for (int i = 0; i < 6; i++) s.v[i] = given[t * 6 + i] + blockIdx.x;
{calls}
    for (int i = 0; i < 6; i++) out[(blockIdx.x * 64 + t) * 6 + i] = s.v[i];
}}"""
    runs = f"""extern "C" void k(const U* in, U* out) {{
    static S blocks[2][64], before[2][64];
    for (U b = 0; b < 2; b++) for (U t = 0; t < 64; t++) for (U i = 0; i < 6; i++) blocks[b][t].v[i] = in[t * 6 + i] + b;
{steps}
    memcpy(out, blocks, sizeof blocks);
}}"""
    return DEVICE + COMMON + device + kernel, HOST + COMMON + host + runs, writer.statements


def expected(source: str, given: np.ndarray) -> np.ndarray:
    with tempfile.TemporaryDirectory() as folder:
        path, library = Path(folder, "host.cpp"), Path(folder, "host.so")
        path.write_text(source)
        command = ["g++", "-std=c++17", "-O1", "-w", "-fwrapv", "-ffp-contract=off", "-shared", "-fPIC", str(path), "-o", str(library)]
        subprocess.run(command, check=True)
        out = np.zeros(BLOCKS * THREADS * NUMBERS, np.uint32)
        ctypes.CDLL(str(library)).k(given.ctypes.data_as(ctypes.c_void_p), out.ctypes.data_as(ctypes.c_void_p))
        return out


def compare(seed: int, arch: str = "sm_90a") -> tuple[str, int]:
    """What is wrong with a program, or nothing; and its statements."""
    device, host, statements = program(seed)
    given = np.random.default_rng(seed).integers(0, 1 << 32, THREADS * NUMBERS, dtype=np.uint32)
    wanted, out = expected(host, given), np.zeros(BLOCKS * THREADS * NUMBERS, np.uint32)
    settings = gpuless.Settings(order=("forward", "reverse", "shuffled")[seed % 3], seed=seed, check_races=True, seconds=30.0, arch=arch)  # type: ignore[arg-type]  # fmt: skip
    try:
        options = ("--fmad=false", "--device-debug")[: 1 + (seed % 4 == 3)]
        module = gpuless.load(Build(device, "fuzz.cu", ("k",), (), options), settings=settings)
        config = LaunchConfig((BLOCKS, 1, 1), (THREADS, 1, 1), cluster=(BLOCKS, 1, 1))
        module.launch("k", config, [("pointer", given), ("pointer", out)])
    except EmulatorFault as fault:
        return f"{fault.kind}: {fault}", statements
    different = np.flatnonzero(out != wanted)
    if not len(different):
        return "", statements
    at = int(different[0])
    return f"{len(different)} numbers differ; thread {at // NUMBERS}, number {at % NUMBERS}: {out[at]:#x}, expected {wanted[at]:#x}", statements  # fmt: skip
