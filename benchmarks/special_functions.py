"""What the special functions of an H100 give, for the emulator: python3 benchmarks/special_functions.py [OUTPUT]

The unit interpolates: of an argument of 23 bits the upper six (seven for 1/x) choose a row of three numbers, and the
others, x, give c0 + c1 x + c2 square(x), cut off. The rows are found from what a GPU gives for all 2^23 arguments, each
of which they reproduce (but the one of 1, for some functions), and go to special.def in gpuless/machine, in units of
2^-40. The second output is a sample of arguments and results, for the tests: of every sign and exponent for 1/x,
1/sqrt(x) and 2^x, of normal numbers for the others.
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
}  # fmt: skip
KERNEL = """extern "C" __global__ void {0}(const float* x, float* y)
{{
    const int i = blockIdx.x * 256 + threadIdx.x;
    float r;
    asm volatile("{1} %0, %1;" : "=f"(r) : "f"(x[i]));
    y[i] = r;
}}
"""
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
    return found + rows(np.maximum(low, ONE - 1 - most), np.minimum(high, ONE - 1 - least))


def main() -> int:
    output = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    source = "".join(KERNEL.format(name, ptx) for name, ptx in FUNCTIONS.items())
    module = driver.load_module(Build(source, "special.cu", tuple(FUNCTIONS), (), (), arch_specific=True))

    def given(name: str, x: np.ndarray) -> np.ndarray:
        a = torch.from_numpy(x.astype(np.float32)).cuda()
        b = torch.empty_like(a)
        module.launch(name, LaunchConfig((len(x) // 256, 1, 1), (256, 1, 1)), [("pointer", a), ("pointer", b)])
        torch.cuda.synchronize()
        return b.cpu().numpy()

    (output / "special.def").write_text("".join(f"{{{a},{b},{c}}},\n" for a, b, c in table(given)))
    every = (np.arange(SAMPLE, dtype=np.uint64) * (2**32 // SAMPLE) + 0x5A5A5 % (2**32 // SAMPLE)).astype(np.uint32)
    some = np.r_[:64, : 65521 * 128 : 65521, COUNT - 64 : COUNT].astype(np.uint32)
    sample: dict[str, Any] = {"arguments": every}
    for name, exponents in (("lg2", EXPONENTS), ("sqrt", (0, 1))):
        sample[f"{name}_arguments"] = np.concatenate([some | np.uint32(e + 127 << 23) for e in exponents])
    for name in FUNCTIONS:
        x = sample.get(f"{name}_arguments", every)
        sample[name] = given(name, x.view(np.float32)).view(np.uint32)
    np.savez_compressed(output / "special_functions.npz", **sample)
    return 0


if __name__ == "__main__":
    sys.exit(main())
