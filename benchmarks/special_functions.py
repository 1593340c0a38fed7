"""What the special functions of an H100 give, for the emulator: python3 benchmarks/special_functions.py [OUTPUT]

The unit interpolates: of an argument of 23 bits the upper six (seven for 1/x) choose a row of three numbers, and the
others, x, give c0 + c1 x + c2 square(x), cut off. The rows are found from what a GPU gives for all 2^23 arguments, each
of which they reproduce (but the one of 1, for some functions), and go to special.def in gpuless/machine, in units of
2^-40. Of the sine the argument has 25 bits behind the point, in turns, and one quarter is kept; of tanh the larger the
exponent, the more bits choose the row. The second output is a sample of arguments and results, for the tests: of every
sign and exponent for most, of normal numbers for the logarithm and the square root, every number of 16 bits.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpuless.launch import Build, LaunchConfig
from rung.cuda import driver

FUNCTIONS = {
    "rcp": "rcp.approx.ftz.f32", "rsq": "rsqrt.approx.ftz.f32", "ex2": "ex2.approx.ftz.f32",
    "lg2": "lg2.approx.ftz.f32", "sqrt": "sqrt.approx.ftz.f32",
    "sin": "sin.approx.ftz.f32", "cos": "cos.approx.ftz.f32", "tanh": "tanh.approx.f32",
    "ex2_f16": "ex2.approx.f16", "tanh_f16": "tanh.approx.f16",
    "ex2_bf16": "ex2.approx.ftz.bf16", "tanh_bf16": "tanh.approx.bf16",
    "rcp_f64": "rcp.approx.ftz.f64", "rsq_f64": "rsqrt.approx.ftz.f64",
}  # fmt: skip
# Of a format: C's type, the letter of its registers, numpy's types of numbers and of bits.
FORMATS = {
    "f32": ("float", "f", np.float32, np.uint32), "f64": ("double", "d", np.float64, np.uint64),
    "f16": ("short", "h", np.int16, np.uint16), "bf16": ("short", "h", np.int16, np.uint16),
}  # fmt: skip
KERNEL = """extern "C" __global__ void special_{0}(const {2}* x, {2}* y)
{{
    const int i = blockIdx.x * 256 + threadIdx.x;
    {2} r;
    asm volatile("{1} %0, %1;" : "={3}"(r) : "{3}"(x[i]));
    y[i] = r;
}}
"""
TURN = np.float32(0.15915494)  # by which the code of sin.approx multiplies, towards zero
TANH = {-8: 0, -7: 0, -6: 0, -5: 1, -4: 1, -3: 2, -2: 2, -1: 2, 0: 3, 1: 4, 2: 3}  # exponent -> upper bits
COUNT = 1 << 23
SAMPLE = 1 << 12
EXPONENTS = (-126, -100, -64, -33, -24, -8, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 7, 8, 23, 64, 100, 127)
ONE = 1 << 40


def square(x: np.ndarray) -> np.ndarray:
    """Of 17 bits, without the products of two bits that are less than 2^19, in units of that."""
    total = np.zeros_like(x)
    for i in range(10, 17):
        total += (x >> i & 1) * (((x & (1 << i) - 1) >> 18 - i) + (1 << 2 * i - 19))
    return total


def parabola(low: np.ndarray, high: np.ndarray, x: np.ndarray) -> tuple[int, int, int]:
    """Three integers with low <= c0 + c1 x + c2 square(x) <= high for each x."""
    s = square(x)
    _, *near = np.linalg.lstsq(np.stack([x**0, x, s], 1).astype(float), (low + high - 2 * low[0]) / 2, rcond=None)[0]
    about = sorted(itertools.product(range(-3, 4), repeat=2), key=lambda by: by[0] ** 2 + by[1] ** 2)
    for by in about:
        c1, c2 = (round(c) + more for c, more in zip(near, by, strict=True))
        rest = c1 * x + c2 * s
        if (least := (low - rest).max()) <= (high - rest).min():
            return int(least), c1, c2
    raise ValueError("no parabola")


def cut(y: np.ndarray, unit: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """The least and the greatest number of units of 2^-40, a multiple of `unit` cut off, that becomes y."""
    low = (y.astype(np.float64) * ONE).astype(np.int64)
    return low, low + np.maximum((np.spacing(y).astype(np.float64) * ONE).astype(np.int64), unit) - 1


def rows(low: np.ndarray, high: np.ndarray, upper: int = 6) -> list[tuple[int, int, int]]:
    """One for each value of the upper bits; the first argument may be an exception."""
    x = np.arange(COUNT >> upper) << upper - 6
    parts = zip(low.reshape(1 << upper, -1), high.reshape(1 << upper, -1), strict=True)
    return [parabola(*(a[not row :] for a in (*part, x))) for row, part in enumerate(parts)]


def table(given: Callable[[str, np.ndarray], np.ndarray]) -> list[tuple[int, int, int]]:
    """Rows of 1/x and 1/sqrt(x) from 1 to 2, 1/sqrt(x) from 2 to 4, 2^x from 0 to 1, sqrt(x) from 1 to 2 and from 2 to
    4, the logarithm from 1 to 2. This one has 36 bits behind the point, of which the one from 0.5 to 1 shows others: it
    is less by 1, and negative, so that the complement is cut off."""
    bits = np.arange(COUNT, dtype=np.uint32)
    half, one, two = ((bits | first).view(np.float32) for first in (0x3F000000, 0x3F800000, 0x40000000))
    steps = (bits / COUNT).astype(np.float32)
    found = rows(*cut(given("rcp", one)), 7)
    for name, x in (("rsq", one), ("rsq", two), ("ex2", steps), ("sqrt", one), ("sqrt", two)):
        found += rows(*cut(given(name, x)))
    (low, high), (least, most) = cut(given("lg2", one), 16), cut(-given("lg2", half), 16)
    found += rows(np.maximum(low, ONE - 1 - most), np.minimum(high, ONE - 1 - least))
    return found + sines(given) + [row for exponent, upper in TANH.items() for row in tanhs(given, exponent, upper)]


def sines(given: Callable[[str, np.ndarray], np.ndarray]) -> list[tuple[int, int, int]]:
    x = ((np.arange(COUNT) + 0.5) / 2**25 / np.float64(TURN)).astype(np.float32)
    turns = x.astype(np.float64) * TURN
    nearest = turns.astype(np.float32)
    at = (np.where(nearest > turns, np.nextafter(nearest, np.float32(0)), nearest) * 2.0**25).astype(np.int64)
    low, high = cut(given("sin", x))
    return [parabola(low[row], high[row], at[row] & 0x1FFFF) for row in (at >> 17 == r for r in range(64))]


def tanhs(given: Callable[[str, np.ndarray], np.ndarray], exponent: int, upper: int) -> list[tuple[int, int, int]]:
    x = np.arange(1 << 17)
    found = []
    for row in range(1 << upper):
        bits = exponent + 127 << 23 | row << 23 - upper | x << 6 - upper
        found.append(parabola(*cut(given("tanh", bits.astype(np.uint32).view(np.float32))), x))
    return found


def main() -> int:
    output = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    formats = {name: FORMATS[ptx.rpartition(".")[2]] for name, ptx in FUNCTIONS.items()}
    source = "".join(KERNEL.format(name, ptx, *formats[name][:2]) for name, ptx in FUNCTIONS.items())
    kernels = tuple(f"special_{name}" for name in FUNCTIONS)
    module = driver.load_module(Build(source, "special.cu", kernels, (), (), arch_specific=True))

    def given(name: str, x: np.ndarray) -> np.ndarray:
        a = torch.from_numpy(x).cuda()
        b = torch.empty_like(a)
        config = LaunchConfig((len(x) // 256, 1, 1), (256, 1, 1))
        module.launch(f"special_{name}", config, [("pointer", a), ("pointer", b)])
        torch.cuda.synchronize()
        return b.cpu().numpy()

    (output / "special.def").write_text("".join(f"{{{a},{b},{c}}},\n" for a, b, c in table(given)))
    every = (np.arange(SAMPLE, dtype=np.uint64) * (2**32 // SAMPLE) + 0x5A5A5 % (2**32 // SAMPLE)).astype(np.uint32)
    some = np.r_[:64, : 65521 * 128 : 65521, COUNT - 64 : COUNT].astype(np.uint32)
    sample: dict[str, Any] = {"arguments": every}
    for name, exponents in (("lg2", EXPONENTS), ("sqrt", (0, 1))):
        sample[f"{name}_arguments"] = np.concatenate([some | np.uint32(e + 127 << 23) for e in exponents])
    for name, (_, _, number, bits) in formats.items():
        usual = {np.uint16: np.arange(1 << 16, dtype=np.uint16), np.uint64: every.astype(np.uint64) << np.uint64(32)}
        x = sample.get(f"{name}_arguments", usual.get(bits, every))
        sample[name] = given(name, x.view(number)).view(bits)
    np.savez_compressed(output / "special_functions.npz", **sample)
    return 0


if __name__ == "__main__":
    sys.exit(main())
