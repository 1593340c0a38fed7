"""What the special functions of an H100 give, for the emulator: python3 benchmarks/special_functions.py [OUTPUT]

Each of four tables has, for 2^23 arguments in the order of their bits, by how many units in the last place the result
differs from the rounded one, plus 2, in two bits: 1/x and 1/sqrt(x) from 1 to 2, 1/sqrt(x) from 2 to 4, 2^x from 0 to 1
in steps of 2^-23. Everything else follows from them (emulator/machine/special.cpp). The second output is a sample of
all arguments, for the tests.
"""

from __future__ import annotations

import lzma
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpuless.launch import Build, LaunchConfig
from rung.cuda import driver

FUNCTIONS = {"rcp": "rcp.approx.ftz.f32", "rsq": "rsqrt.approx.ftz.f32", "ex2": "ex2.approx.ftz.f32"}
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

    bits = np.arange(COUNT, dtype=np.uint32)
    one, two = ((bits | first).view(np.float32) for first in (0x3F800000, 0x40000000))
    steps = (bits / COUNT).astype(np.float32)
    tables = b""
    for name, x, exact in (
        ("rcp", one, 1 / one.astype(np.float64)),
        ("rsq", one, 1 / np.sqrt(one.astype(np.float64))),
        ("rsq", two, 1 / np.sqrt(two.astype(np.float64))),
        ("ex2", steps, np.exp2(steps.astype(np.float64))),
    ):
        apart = given(name, x).view(np.int32) - exact.astype(np.float32).view(np.int32) + 2
        assert apart.min() >= 0 and apart.max() <= 3, name
        four = apart.astype(np.uint8).reshape(-1, 4)
        tables += (four[:, 0] | four[:, 1] << 2 | four[:, 2] << 4 | four[:, 3] << 6).tobytes()
    (output / "special.xz").write_bytes(lzma.compress(tables, preset=9 | lzma.PRESET_EXTREME))
    sample = (np.arange(SAMPLE, dtype=np.uint64) * (2**32 // SAMPLE) + 0x5A5A5 % (2**32 // SAMPLE)).astype(np.uint32)
    answers: dict[str, Any] = {name: given(name, sample.view(np.float32)).view(np.uint32) for name in FUNCTIONS}
    np.savez_compressed(output / "special_functions.npz", arguments=sample, **answers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
