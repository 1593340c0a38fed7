"""out = x · weightᵀ in low precision: formats of 32, 16 and 8 bits, and weights with 2:4 sparsity.

A rung binds the operands of its format, and the reference multiplies their values in float64: codes times scales, for x
and weights or for the weights alone, or the nonzero weights at their positions. The README has each format's error
against the unquantised numbers.
"""

from __future__ import annotations

from rung.arrays import (
    Array,
    Generator,
    arange,
    bits_of,
    from_numbers,
    integers,
    namespace,
    normal,
    to_float64,
    to_kind,
    uniform,
)
from rung.inputs import rows_alike, times
from rung.lazy import F, torch
from rung.operation import Case, Cost, Library, Operand, Operation, Race, Tensors, Values, sizes
from rung.precision import float32_products

CODES = 127  # the largest int8; -128 is not used, so that the range is symmetric
E4M3, E4M3_TOP = "float8_e4m3fn", 448.0


def quantised(x: Array) -> tuple[Array, Array]:
    """Rows as int8, and their scales."""
    scale = to_kind(namespace(x).amax(abs(x), axis=-1), "float32").clip(1e-30) / CODES
    return (x / scale[:, None]).round().clip(-CODES, CODES), scale


def in_eight_bits(x: Array) -> Array:
    """Rows in e4m3, scaled."""
    scale = namespace(x).amax(abs(x), axis=-1).clip(1e-30) / E4M3_TOP
    return to_kind(x / scale[:, None], E4M3)


def from_e4m3(codes: Array) -> Array:
    return to_float64(bits_of(to_kind(codes, "uint8"), E4M3))


def spread_out(kept: Array, places: Array) -> Array:
    """(OC, C / 2) nonzero weights and their two-bit positions, as an (OC, C) matrix."""
    OC, half = kept.shape
    where = (places[:, :, None] >> arange(16, kept) * 2 & 3).reshape(OC, half)
    whole = namespace(kept).zeros((OC, 2 * half), dtype=kept.dtype, device=kept.device)
    whole[arange(OC, kept)[:, None], arange(half, kept) // 2 * 4 + where] = kept
    return whole


def reference(t: Tensors, v: Values) -> Tensors:
    if "w_kept" in t:
        return {"out": t["x"] @ spread_out(t["w_kept"], t["w_places"]).T}
    if "w_i8" in t or ("w_f8" in t and "x" in t):
        codes = to_float64(t["w_i8"]) if "w_i8" in t else from_e4m3(t["w_f8"])
        return {"out": t["x"] @ codes.T * t["w_scale"]}
    if "w_f8" in t:
        x, w = (from_e4m3(t[f"{n}_f8"]) * t[f"{n}_scale"][:, None] for n in "xw")
        return {"out": x @ w.T}
    if "w_q" not in t:
        return {"out": t["x"] @ t["weight"].T}
    x_codes, scale = (t["x_q"], t["x_scale"]) if "x_q" in t else quantised(t["x"])
    return {"out": to_float64(x_codes) @ to_float64(t["w_q"]).T * to_float64(scale)[:, None] * t["w_scale"]}


def cost(v: Values, size: int) -> Cost:
    # The bytes of the operands that a rung binds are added.
    return Cost(flops=2.0 * v["M"] * v["OC"] * v["C"], bytes=float(size * v["M"] * v["OC"]))


def codes(name: str, rows: str) -> Operand:
    def make(v: Values, generator: Generator) -> Array:
        return to_kind(quantised(normal(generator, int(v[rows]), int(v["C"])))[0], "int8")

    return Operand(name, (rows, "C"), dtype="i8", optional=True, make=make, constant=rows == "OC")


def eights(rows: str) -> Operand:
    """Hopper's tensor cores keep 13 bits after the first in a sum of products of these, and truncate the rest. A
    weight that is multiplied by an x of more bits is converted first."""

    def make(v: Values, generator: Generator) -> Array:
        return bits_of(in_eight_bits(normal(generator, int(v[rows]), int(v["C"]))), "uint8")

    name = "x_f8" if rows == "M" else "w_f8"
    bits = 13 if rows == "M" else None
    return Operand(name, (rows, "C"), dtype="u8", optional=True, make=make, sum_bits=bits, constant=rows == "OC")


def scales(rows: str) -> Operand:
    def make(v: Values, generator: Generator) -> Array:
        return (0.5 + uniform(generator, int(v[rows]))) / 64

    name = "x_scale" if rows == "M" else "w_scale"
    return Operand(name, (rows,), dtype="f32", optional=True, make=make, constant=rows == "OC")


def places(v: Values, generator: Generator) -> Array:
    """Two positions for every four columns, the lower first: four bits, and 32 columns per word."""
    chosen = integers(generator, 0, 6, int(v["OC"]), max(1, int(v["C"]) // 32), 8)
    pairs = from_numbers([a | b << 2 for a in range(4) for b in range(a + 1, 4)], chosen)
    return to_kind((pairs[chosen] << 4 * arange(8, chosen)).sum(2), "int32")


def in_small_steps(x: Array, _: object) -> Array:
    """Codes of e4m3 below an eighth, of both signs, so that their sums are fractions."""
    return x & 0x9F


def every_second_zero(scale: Array, _: object) -> Array:
    return scale * (arange(len(scale), scale) % 2)


def torch_linear(x: torch.Tensor, weight: torch.Tensor, dtype: str) -> torch.Tensor:
    with float32_products(dtype):
        return F.linear(x, weight)


def int_mm(
    x_q: torch.Tensor, w_q: torch.Tensor, x_scale: torch.Tensor, w_scale: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    return (torch._int_mm(x_q, w_q.T) * x_scale[:, None] * w_scale).to(out.dtype)


def scaled_mm(
    x_f8: torch.Tensor, w_f8: torch.Tensor, x_scale: torch.Tensor, w_scale: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    x, w = x_f8.view(torch.float8_e4m3fn), w_f8.view(torch.float8_e4m3fn)
    return torch._scaled_mm(x, w.T, scale_a=x_scale[:, None], scale_b=w_scale[None], out_dtype=out.dtype)


OPERATION = Operation(
    name="matmul_low",
    summary="out = x · weightᵀ, from floats, from eight bits with scales (both or only weights), or from 2:4 weights",
    story="Fewer bits per number: more products per instruction, fewer bytes, and an error that scales must limit.",
    dims=("M", "OC", "C"),
    operands=(
        Operand("x", ("M", "C"), optional=True),
        Operand("weight", ("OC", "C"), optional=True, constant=True),
        codes("x_q", "M"),
        codes("w_q", "OC"),
        eights("M"),
        eights("OC"),
        scales("M"),
        scales("OC"),
        Operand("w_kept", ("OC", "C // 2"), optional=True, constant=True),
        Operand("w_places", ("OC", "max(1, C // 32)"), dtype="i32", optional=True, make=places, constant=True),
        codes("w_i8", "OC"),  # for unrounded x; with w_q x is rounded to eight bits as well
        Operand("out", ("M", "OC"), role="out"),
    ),
    reference=reference,
    cost=cost,
    reduction="C",
    cases=(
        Case("one row", dict(M=1, OC=8, C=32)),
        Case("odd", dict(M=7, OC=13, C=64)),
        Case("2^6 + 1", dict(M=65, OC=66, C=96)),
        Case("prime", dict(M=67, OC=71, C=160)),
        Case("narrow", dict(M=3, OC=2, C=128)),
        Case("many columns", dict(M=2, OC=129, C=32)),
        Case("several tiles of whole boxes", dict(M=5, OC=520, C=64)),
        Case("deep", dict(M=5, OC=9, C=1056)),
        Case("beyond 16 bits", dict(M=2, OC=130, C=1056)),
        Case("large values", dict(M=9, OC=10, C=64), magnitude=8.0),
        Case("up to the format's end", dict(M=6, OC=7, C=64),
             change={"x": times(1200.0), "w_scale": times(0.125)}),
        Case("large scales", dict(M=6, OC=7, C=64), dtypes=("f32", "bf16"), change={"x_scale": times(1e4)}),
        Case("small numbers of eight bits", dict(M=6, OC=7, C=64), dtypes=("f32", "bf16"),
             change={"x_f8": in_small_steps, "w_f8": in_small_steps}),
        Case("300 rows", dict(M=300, OC=16, C=32), where="alone"),
        Case("gpt2", dict(M=256, OC=2304, C=768), where="cuda"),
        Case("gpt2-xl, odd rows", dict(M=333, OC=1601, C=6400), where="cuda"),
        *sizes(
            dict(M=1031, OC=16, C=64),
            dict(M=3, OC=3072, C=32),
        ),
    ),
    edges={
        "rows of zeros": {
            **dict.fromkeys(("x", "x_q", "x_f8", "weight", "w_q", "w_f8", "w_i8"), rows_alike(0)),
            **dict.fromkeys(("x_scale", "w_scale"), every_second_zero),
        }
    },
    shapes={
        "gpt2 fc, 256 rows": dict(M=256, OC=3072, C=768),
        "gpt2 fc, 8192 rows": dict(M=8192, OC=3072, C=768),
        "n4096": dict(M=4096, OC=4096, C=4096),
        "gpt2-xl fc, 32 rows": dict(M=32, OC=6400, C=1600),
    },
    libraries=(
        Library("torch", torch_linear, ("f32", "f16", "bf16"), note="torch's own product."),
        Library("int_mm", int_mm, ("f32", "f16", "bf16"), "cuda", "torch._int_mm, scaled afterwards.",
                ("M > 16", "C % 16 == 0", "OC % 16 == 0"), "i8"),
        Library("scaled_mm", scaled_mm, ("bf16",), "cuda", "torch._scaled_mm on e4m3, one scale per row.",
                ("C % 16 == 0", "OC % 16 == 0"), "e4m3"),
    ),
    races=(Race("gpt2 fc, 8192 rows", ("f32", "f16", "bf16")), Race("n4096", ("f32", "f16", "bf16"))),
)  # fmt: skip
