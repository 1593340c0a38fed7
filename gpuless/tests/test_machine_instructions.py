"""Expressions over special and random values, as machine code against NumPy and Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch

import gpuless
from emulation import ON_GPU, load, needs_compiler, of_the_machine
from gpuless import machine
from gpuless.base.errors import EmulatorFault
from gpuless.launch import LaunchConfig

pytestmark = [needs_compiler, pytest.mark.skipif(not ON_GPU and bool(machine.unavailable()), reason=machine.unavailable())]
N = 256
HALF = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"
TENSORS = {"int": torch.int32, "long long": torch.int64, "float": torch.float32, "double": torch.float64, "__half": torch.float16,
           "__nv_bfloat16": torch.bfloat16, "__half2": torch.int32}  # fmt: skip
WORD, LONG = (1 << 32) - 1, (1 << 64) - 1
Row = Mapping[str, Callable[[Any, Any, Any], Any]]


def ran(source: str, *tensors: torch.Tensor, block: int = 128, grid: int = 1) -> None:
    module = load(source, settings=gpuless.Settings(counters=True, seconds=20.0))
    module.launch("f", LaunchConfig((grid, 1, 1), (block, 1, 1)), [("pointer", t) for t in tensors])


def results(of: str, to: str, expressions: Row, given: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Each expression of a, b and c for all elements; statements stand before a semicolon."""
    lines = []
    for k, e in enumerate(expressions):
        before, _, value = e.rpartition(";")
        lines.append(f"    {{ {before + ';' if before else ''} out[{k * N} + i] = {value}; }}")
    source = f"""{HALF}
__global__ void f(const {of}* A, const {of}* B, const {of}* C, {to}* out) {{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const {of} a = A[i], b = B[i], c = C[i];
{chr(10).join(lines)}
}}"""
    out = torch.zeros(N * len(expressions), dtype=TENSORS[to])
    ran(source, *given, out, grid=N // 128)
    return dict(zip(expressions, out.view(-1, N), strict=True))


def integers(bits: int) -> list[torch.Tensor]:
    random = np.random.default_rng(0)
    special = np.array(
        [0, 1, 2, -1, -2, 31, 32, 33, 63, 64, -(1 << (bits - 1)), (1 << (bits - 1)) - 1, 255, 65535], dtype=np.int64
    )
    made = []
    for _ in range(3):
        values = random.integers(-(1 << 62), 1 << 62, N) >> random.integers(62 - bits + 1, 61, N)
        values = np.where(random.random(N) < 0.4, special[random.integers(0, len(special), N)], values)
        made.append(torch.from_numpy(values.astype(f"i{bits // 8}")))
    return made


def reals(kind: type) -> list[torch.Tensor]:
    random, limits = np.random.default_rng(0), np.finfo(kind)
    special = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, limits.tiny, limits.smallest_subnormal, -limits.smallest_subnormal,
                        limits.max, -limits.max, 0.5, 1.5, -2.5, 127.5, 255.5, -128.5, 3e4], dtype=kind)  # fmt: skip
    made = []
    for _ in range(3):
        values = (random.standard_normal(N) * np.exp(random.standard_normal(N) * 2)).astype(kind)
        made.append(
            torch.from_numpy(np.where(random.random(N) < 0.4, special[random.integers(0, len(special), N)], values))
        )
    return made


def signed(value: int, bits: int = 32) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def parts(value: int, size: int, natural: bool = False) -> list[int]:
    found = [value >> at & (1 << size) - 1 for at in range(0, 32, size)]
    return found if natural else [signed(p, size) for p in found]


def joined(values: Any, size: int) -> int:
    return sum((v & (1 << size) - 1) << (size * i) for i, v in enumerate(values))


def permuted(a: int, b: int, picks: list[int]) -> int:
    data = (a & WORD) | (b & WORD) << 32
    return joined((data >> 8 * p & 255 for p in picks), 8)


def divided(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def halves(f: Callable[..., int], *values: int, natural: bool = False) -> int:
    return joined(map(f, *(parts(v, 16, natural) for v in values)), 16)


def asm(code: str, operands: str = "a b c") -> str:
    inputs = ", ".join(f'"r"({o})' for o in operands.split())
    code += "" if code.endswith("}") else ";"
    return f'int d; asm("{code}" : "=r"(d) : {inputs}); d'


INTEGERS: Row = {
    "a / (b | 1)": lambda a, b, c: divided(a, b | 1),
    "a % (b | 1)": lambda a, b, c: a - divided(a, b | 1) * (b | 1),
    "(unsigned)a / ((unsigned)b | 1)": lambda a, b, c: (a & WORD) // ((b & WORD) | 1),
    "a / 7 + (int)((unsigned)b % 10)": lambda a, b, c: divided(a, 7) + (b & WORD) % 10,
    "__mulhi(a, b)": lambda a, b, c: a * b >> 32,
    "__umulhi(a, b)": lambda a, b, c: (a & WORD) * (b & WORD) >> 32,
    "__brev(a)": lambda a, b, c: int(f"{a & WORD:032b}"[::-1], 2),
    "__clz(a) * 64 + __popc(b)": lambda a, b, c: (32 - (a & WORD).bit_length()) * 64 + (b & WORD).bit_count(),
    "__ffs(a)": lambda a, b, c: (a & -a & WORD).bit_length(),
    "__funnelshift_l(a, b, c)": lambda a, b, c: ((b & WORD) << 32 | (a & WORD)) << (c & 31) >> 32,
    "__funnelshift_rc(a, b, c)": lambda a, b, c: ((b & WORD) << 32 | (a & WORD)) >> min(c & WORD, 32),
    "__byte_perm(a, b, c & 0x7777)": lambda a, b, c: permuted(a, b, [c >> s & 7 for s in (0, 4, 8, 12)]),
    "__dp4a(a, b, c)": lambda a, b, c: sum(x * y for x, y in zip(parts(a, 8), parts(b, 8), strict=True)) + c,
    "__dp2a_hi(a, b, c)": lambda a, b, c: sum(x * y for x, y in zip(parts(a, 16), parts(b, 8)[2:], strict=True)) + c,
    "__sad(a, b, c)": lambda a, b, c: abs(a - b) + c,
    "__usad(a, b, c)": lambda a, b, c: abs((a & WORD) - (b & WORD)) + c,
    "__vadd2(a, b)": lambda a, b, c: halves(lambda x, y: x + y, a, b),
    "__vsub2(a, b)": lambda a, b, c: halves(lambda x, y: x - y, a, b),
    "__vmaxs2(a, b)": lambda a, b, c: halves(max, a, b),
    "__vminu2(a, b)": lambda a, b, c: halves(min, a, b, natural=True),
    "__vabsdiffu4(a, b)": lambda a, b, c: joined(
        (abs(x - y) for x, y in zip(parts(a, 8, True), parts(b, 8, True), strict=True)), 8
    ),
    "__vsadu4(a, b)": lambda a, b, c: sum(
        abs(x - y) for x, y in zip(parts(a, 8, True), parts(b, 8, True), strict=True)
    ),
    "__viaddmax_s16x2(a, b, c)": lambda a, b, c: halves(lambda x, y, z: max(signed(x + y, 16), z), a, b, c),
    "__vimax3_s32_relu(a, b, c)": lambda a, b, c: max(a, b, c, 0),
    "__vimin3_u16x2(a, b, c)": lambda a, b, c: halves(min, a, b, c, natural=True),
    "__vimax_s16x2_relu(a, b)": lambda a, b, c: halves(lambda x, y: max(x, y, 0), a, b),
    "bool h, l; int r = __vibmax_s16x2(a, b, &h, &l); r ^ (h * 2 + l)": lambda a, b, c: (
        halves(max, a, b) ^ ((parts(a, 16)[1] >= parts(b, 16)[1]) * 2 + (parts(a, 16)[0] >= parts(b, 16)[0]))
    ),
    asm("prmt.b32.f4e %0, %1, %2, %3"): lambda a, b, c: permuted(a, b, [(c & 3) + i for i in range(4)]),
    asm("prmt.b32.b4e %0, %1, %2, %3"): lambda a, b, c: permuted(a, b, [(c & 3) - i & 7 for i in range(4)]),
    asm("prmt.b32.ecl %0, %1, %2, %3"): lambda a, b, c: permuted(a, b, [max(c & 3, i) for i in range(4)]),
    asm("prmt.b32.rc16 %0, %1, %2, %3"): lambda a, b, c: permuted(a, b, [(c & 1) * 2 + i % 2 for i in range(4)]),
    asm("bfind.shiftamt.u32 %0, %1", "a"): lambda a, b, c: 32 - (a & WORD).bit_length() if a else -1,
    asm("{ .reg .u32 x; mad.lo.cc.u32 x, %1, %2, %3; madc.hi.u32 %0, %1, %2, 0; }"): lambda a, b, c: (
        (a & WORD) * (b & WORD) + (c & WORD) >> 32
    ),
}
LONGS: Row = {
    "a / (b | 1)": lambda a, b, c: divided(a, b | 1),
    "(long long)((unsigned long long)a % ((unsigned long long)b | 1))": lambda a, b, c: (a & LONG) % ((b & LONG) | 1),
    "__umul64hi(a, b)": lambda a, b, c: (a & LONG) * (b & LONG) >> 64,
    "a * b + c": lambda a, b, c: a * b + c,
    "a >> (b & 63)": lambda a, b, c: a >> (b & 63),
    "a << (b & 63)": lambda a, b, c: a << (b & 63),
    "a < b ? min(b, c) : max(a, c)": lambda a, b, c: min(b, c) if a < b else max(a, c),
    "__clzll(a) * 128 + __ffsll(b)": lambda a, b, c: (
        (64 - (a & LONG).bit_length()) * 128 + (b & -b & LONG).bit_length()
    ),
}


@pytest.mark.parametrize(("of", "bits", "rows"), [("int", 32, INTEGERS), ("long long", 64, LONGS)])
def test_integers(of: str, bits: int, rows: Row) -> None:
    given = integers(bits)
    for expression, got in results(of, of, rows, given).items():
        want = [signed(rows[expression](*values), bits) for values in zip(*(t.tolist() for t in given), strict=True)]
        assert got.tolist() == want, expression


def whole(lowest: int, highest: int, of_nan: int, way: Callable[[float], Any]) -> Callable[..., int]:
    """A conversion to an integer that saturates."""

    def made(a: float, b: float, c: float) -> int:
        if math.isnan(a):
            return of_nan
        return min(max(int(way(a)), lowest), highest) if math.isfinite(a) else (highest if a > 0 else lowest)

    return made


INT, UNSIGNED, LONGEST = (-(1 << 31), (1 << 31) - 1), (0, WORD), (-(1 << 63), (1 << 63) - 1)
WHOLE: dict[str, Row] = {
    "float": {
        "(int)a": whole(*INT, 0, int), "(unsigned)a": whole(*UNSIGNED, 0, int), "__float2uint_rn(a)": whole(*UNSIGNED, 0, round), "__float2int_ru(a)": whole(*INT, 0, math.ceil),
        "__float2ll_rd(a)": whole(*LONGEST, -(1 << 63), math.floor), "__float2uint_rd(a)": whole(*UNSIGNED, 0, math.floor),
    },
    "double": {
        "(int)a": whole(*INT, -(1 << 31), int), "__double2uint_rn(a)": whole(*UNSIGNED, 1 << 31, round),
        "__double2ll_ru(a)": whole(*LONGEST, -(1 << 63), math.ceil),
    },
    "__half": {
        "__half2int_rz(__hneg(a))": whole(*INT, 0, lambda x: int(-x)), "__half2int_rd(a)": whole(*INT, 0, math.floor),
        "(long long)__half2short_rn(a)": whole(-32768, 32767, 0, round), "(long long)__half2uchar_rz(a)": whole(0, 255, 0, int),
    },
    "__nv_bfloat16": {
        "__bfloat162int_rn(a)": whole(*INT, 0, round), "__bfloat162uint_ru(a)": whole(*UNSIGNED, 0, math.ceil),
        "__bfloat162ll_rz(a)": whole(*LONGEST, -(1 << 63), int),
    },
}  # fmt: skip
KINDS: dict[str, type] = {"float": np.float32, "double": np.float64, "__half": np.float16, "__nv_bfloat16": np.float32}


@pytest.mark.parametrize("of", WHOLE)
def test_conversions_to_integers_saturate(of: str) -> None:
    given = [t.to(TENSORS[of]) for t in reals(KINDS[of])]
    for expression, got in results(of, "long long", WHOLE[of], given).items():
        negated = "hneg" in expression
        want = [WHOLE[of][expression](a, 0, 0) if math.isfinite(a) or math.isnan(a) or not negated else
                WHOLE[of][expression](-a, 0, 0) for a in given[0].double().tolist()]  # fmt: skip
        assert got.tolist() == want, expression


def test_integers_are_rounded_to_floats() -> None:
    given = integers(32)
    ways = ("rn", "rz", "rd", "ru")
    rows: Row = {f"__{of}2float_{way}(a)": lambda a, b, c: a for of in ("int", "uint") for way in ways}
    for expression, got in results("int", "float", rows, given).items():
        exact = given[0].double() + (1 << 32) * (given[0] < 0) * ("uint" in expression)
        near = exact.float()
        beyond = {"rn": near != near, "rz": near.double().abs() > exact.abs(), "rd": near > exact, "ru": near < exact}
        way = expression[-5:-3]
        towards = torch.tensor({"rd": -math.inf, "ru": math.inf}.get(way, 0.0))
        want = torch.where(beyond[way], torch.nextafter(near, towards), near)
        assert torch.equal(got, want), expression


def of_16_bits(kind: torch.dtype, down: bool | None) -> Callable[[float], float]:
    """A number's neighbour among those of 16 bits: below it, above it, or (None) that nearer to 0."""
    spaced = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(kind).double()
    known = np.unique(spaced[~spaced.isnan()].numpy())

    def made(x: float) -> float:
        if math.isnan(x):
            return x
        below = down or (down is None and x >= 0)
        return float(known[np.searchsorted(known, x, "right") - 1] if below else known[np.searchsorted(known, x)])

    return made


@pytest.mark.parametrize(("to", "name"), [("__half", "half"), ("__nv_bfloat16", "bfloat16")])
def test_roundings_to_16_bits(to: str, name: str) -> None:
    kind = TENSORS[to]
    for of, word, given in (("float", "float", reals(np.float32)), ("int", "int", integers(32))):
        rows: Row = {f"__{word}2{name}_{way}(a)": lambda a, b, c: a for way in ("rn", "rz", "rd", "ru")}
        for (expression, got), down in zip(
            results(of, to, rows, given).items(), (None, None, True, False), strict=True
        ):
            exact = given[0].double()
            want = given[0].to(kind)
            if "_rn" not in expression:
                want = torch.tensor([*map(of_16_bits(kind, down), exact.tolist())], dtype=torch.float64).to(kind)
            assert torch.equal(got.nan_to_num(nan=7.0), want.nan_to_num(nan=7.0)), expression


def test_halves() -> None:
    given = list(reals(np.float16))
    a, b, _c = (t.double() for t in given)
    product = a * b
    rows: dict[str, Any] = {
        "__hadd(a, b)": a + b, "__hmul(a, b)": product, "__hmin(a, b)": torch.fmin(a, b), "__hmax(a, b)": torch.fmax(a, b),
        "__hmin_nan(a, b)": torch.minimum(a, b), "__hmax_nan(a, b)": torch.maximum(a, b),
        "__half h = __ushort_as_half(__hne(a, b)); h": ((a != b) & ~a.isnan() & ~b.isnan()) * 2.0**-24,
        "hfloor(a)": a.floor(), "hrint(a)": a.round(), "htanh_approx(a)": a.tanh(), "hrcp(a)": 1 / a,
        "__half2 d = __hcmadd(__halves2half2(a, b), __halves2half2(b, a), __float2half2_rn(1.0f)); __high2half(d)": None,
    }  # fmt: skip
    got = results("__half", "__half", rows, given)
    for expression, want in rows.items():
        if want is None:
            continue
        near = torch.isclose(
            got[expression].double(), want.to(torch.float16).double(), rtol=2e-3, atol=1e-6, equal_nan=True
        )
        assert bool(near.all()), (expression, a[~near], b[~near], got[expression][~near])
    last = got[next(e for e in rows if "hcmadd" in e)].double()  # imaginary part of (a + b i)(b + a i) + 1 + i
    calm = (a.abs() < 100) & (b.abs() < 100)
    assert torch.allclose(last[calm], (a * a + b * b + 1)[calm], rtol=3e-3)


def test_doubles() -> None:
    given = reals(np.float64)
    a, b, _c = given
    rows: dict[str, Any] = {
        "fmin(a, b)": torch.fmin(a, b), "fmax(a, b)": torch.fmax(a, b), "log2(a)": a.log2(), "exp2(a)": a.exp2(), "tanh(a)": a.tanh(),
        "a / b": a / b, "sqrt(a)": a.sqrt(), "sin(a)": a.sin(), "pow(fabs(a), b)": a.abs().pow(b), "log1p(a)": a.log1p(),
        "exp(a)": a.exp(), "rsqrt(a)": a.rsqrt(),
    }  # fmt: skip
    for expression, got in results("double", "double", rows, given).items():
        near = torch.isclose(got, rows[expression], rtol=1e-13, atol=1e-320, equal_nan=True)
        near |= a.abs() > 1e300 if "sin" in expression else torch.zeros(N, dtype=torch.bool)
        assert bool(near.all()), (expression, a[~near], b[~near], got[~near], rows[expression][~near])


def test_floats() -> None:
    given = reals(np.float32)
    a, b, _c = (t.double() for t in given)
    rows: dict[str, Any] = {
        "a / b": a / b, "1.0f / a": 1 / a, "sqrtf(a)": a.sqrt(), "rsqrtf(a)": a.rsqrt(), "fminf(a, b)": torch.fmin(a, b),
        "expf(a)": a.exp(), "logf(a)": a.log(), "sinf(a * 1e5f)": (given[0] * 1e5).double().sin(), "tanhf(a)": a.tanh(),
        'float d; asm("max.NaN.xorsign.abs.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b)); d':
            torch.copysign(torch.maximum(a.abs(), b.abs()), a.sign().copysign(a) * b.sign().copysign(b) * 0 + torch.where(a.signbit() ^ b.signbit(), -1.0, 1.0)),
    }  # fmt: skip
    for expression, got in results("float", "float", rows, given).items():
        want = rows[expression].float().double()
        near = torch.isclose(got.double(), want, rtol=1e-6, atol=0, equal_nan=True) | (want.abs() < 2e-38) & (
            got.abs() < 2e-38
        )
        if "sinf" in expression:
            near |= (got.double() - want).abs() < 1e-6
        if "1e5" in expression:
            near |= given[0].abs() > 1e30
        assert bool(near.all()), (expression, a[~near], b[~near], got[~near], want[~near])


def test_uniform_registers_of_lanes_that_are_interrupted() -> None:
    """Both sides of a branch are longer than a warp's turn and use uniform registers."""
    side = "\n".join(f"        x = fma(x, y, {k}.12345 + 1e-9 * {{}});" for k in range(700))
    source = f"""__global__ void f(double* out) {{
    double x = threadIdx.x, y = 0.5;
    if (threadIdx.x & 1) {{
{side.format(*[1] * 700)}
    }} else {{
{side.format(*[2] * 700)}
    }}
    out[threadIdx.x] = x;
}}"""
    out = torch.zeros(32, dtype=torch.float64)
    ran(source, out, block=32)
    for lane in range(32):
        x = float(lane)
        for k in range(700):
            x = x * 0.5 + (k + 0.12345 + 1e-9 * (1 if lane & 1 else 2))
        assert out[lane].item() == pytest.approx(x, rel=1e-14)


def test_atomics() -> None:
    source = f"""{HALF}
__global__ void f(int* g, float* v, int* h) {{
    __shared__ unsigned long long wide;
    __shared__ int swapped;
    __shared__ __half2 pair;
    const int i = threadIdx.x;
    if (i == 0) wide = 5, swapped = 1, pair = __float2half2_rn(0.0f);
    __syncthreads();
    atomicAdd(&wide, (unsigned long long)i << 30);
    int old = swapped, seen;
    do {{ seen = old; old = atomicCAS(&swapped, seen, seen * 3 + 1); }} while (old != seen);
    atomicAdd(&pair, __floats2half2_rn(1.0f, 2.0f));
    atomicAdd((__half2*)&h[0], __floats2half2_rn(1.0f, 2.0f));
    atomicAdd((__half*)&h[1], __float2half(1.0f));
    atomicAdd((float4*)v, make_float4(1, 2, 3, 4));
    atomicAdd((float2*)(v + 4), make_float2(1, 2));
    atomicMin(&g[0], i - 7), atomicMax((unsigned*)&g[1], (unsigned)i), atomicInc((unsigned*)&g[2], 50), atomicDec((unsigned*)&g[3], 50);
    atomicXor(&g[4], i * 77), atomicAdd((double*)&g[6], 0.5);
    __syncthreads();
    if (i == 0) g[8] = (int)wide, g[9] = (int)(wide >> 32), g[10] = swapped, h[2] = *(int*)&pair;
}}"""
    g, v, h = torch.zeros(12, dtype=torch.int32), torch.zeros(8), torch.zeros(3, dtype=torch.int32)
    ran(source, g, v, h, block=96)
    total, mixed, swapped = 5 + (sum(range(96)) << 30), 0, 1
    for i in range(96):
        mixed, swapped = mixed ^ i * 77, signed(swapped * 3 + 1)
    assert g[:5].tolist() == [-7, 95, 96 % 51, (51 - 96) % 51, mixed]
    assert g[6:8].view(torch.float64).item() == 48 and g[8:11].tolist() == [signed(total), total >> 32, swapped]
    assert v.tolist() == [96, 192, 288, 384, 96, 192, 0, 0]
    assert h.view(torch.float16).tolist() == [96, 192, 96, 0, 96, 192]


def test_lanes_and_groups() -> None:
    source = """
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;
__global__ void f(const int* x, int* out) {
    const auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    const auto tile = cg::tiled_partition<8>(cg::this_thread_block());
    const int i = threadIdx.x, v = x[i];
    int k = 0;
    const auto put = [&](int value) { out[k++ * 64 + i] = value; };
    put(cg::reduce(tile, v, cg::plus<int>())), put(cg::inclusive_scan(warp, v)), put(__match_any_sync(~0u, v & 3));
    put(__reduce_min_sync(~0u, v)), put(__shfl_up_sync(~0u, v, 3, 16)), put((int)__shfl_xor_sync(~0u, (double)v, 5));
    const auto labeled = cg::labeled_partition(warp, v & 3);
    put(cg::reduce(labeled, v, cg::plus<int>()));
    if (v > 0) {
        const auto some = cg::coalesced_threads();
        put(some.size()), put(some.shfl(v, 0)), put(__reduce_add_sync(some.ballot(1) | 0 * i, 1) * 0 + some.thread_rank());
    }
}"""
    x = torch.randint(-99, 99, (64,), dtype=torch.int32, generator=torch.Generator().manual_seed(1))
    out = torch.zeros(10 * 64, dtype=torch.int32)
    ran(source, x, out, block=64)
    got, values = out.view(10, 64).tolist(), x.tolist()
    for i, v in enumerate(values):
        warp, lane = values[i // 32 * 32 :][:32], i % 32
        positive = [w for w in warp if w > 0]
        want = [
            sum(values[i // 8 * 8 :][:8]), sum(warp[: lane + 1]), signed(sum(1 << k for k, w in enumerate(warp) if w & 3 == v & 3)),
            min(warp), warp[lane - 3] if lane % 16 >= 3 else v, warp[lane ^ 5], sum(w for w in warp if w & 3 == v & 3),
            *([len(positive), positive[0], sum(w > 0 for w in warp[:lane])] if v > 0 else [0, 0, 0]),
        ]  # fmt: skip
        assert [row[i] for row in got] == want, i


FAULTS = {
    "printed": ('if (n[0] == 0) printf("none\\n"); n[1] = 5;', ""),
    "assertion": ("assert(n[0] > 3);", "trap"),
    "malloc": ("int* p = (int*)malloc(n[0] + 9); p[n[1]] = 1; n[2] = p[0];", "unsupported"),
    "stack": ("n[1] = deep(n[0] + 1000);", "bounds"),
    "shared": ("__shared__ int s[8]; s[n[0] + 100] = 1; __syncthreads(); n[1] = s[n[0]];", "bounds"),
    "wild": ("*(int*)(n[0] + 0x34567800000000ll) = 1;", "bounds"),
    "endless": ("while (true) { __syncthreads(); n[0]++; }", "deadlock"),
    "barrier": ("if (threadIdx.x < 32) asm volatile(\"bar.sync 1, 64;\"); else __syncthreads();", "barrier"),
    "trap": ("__trap();", "trap"),
}  # fmt: skip


@of_the_machine
@pytest.mark.parametrize("name", FAULTS)
def test_faults_say_what_happened_and_where(name: str) -> None:
    code, expected = FAULTS[name]
    source = f"""#include <assert.h>
__device__ __noinline__ int deep(int n) {{ volatile int a[8]; a[n & 7] = n; return n ? deep(n - 1) + a[n & 7] : 0; }}
__global__ void f(int* n) {{
    {code}
}}"""
    module, n = load(source, settings=gpuless.Settings(counters=True, seconds=0.5)), torch.zeros(8, dtype=torch.int32)
    launch = ("f", LaunchConfig((1, 1, 1), (64, 1, 1)), [("pointer", n)])
    if expected:
        with pytest.raises(EmulatorFault) as fault:
            module.launch(*launch)
        assert fault.value.kind == expected and fault.value.place["line"] in (2, 4, 5)
    else:
        module.launch(*launch)
        assert n[1] == 5
