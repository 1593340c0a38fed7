"""Triton's interpreter, with bfloat16 mended: products and rounding as on a GPU."""

import subprocess
import sys
from pathlib import Path

import torch

from rung import python_module

SOURCE = """
import triton
import triton.language as tl


@triton.jit
def product(a, b, out, N: tl.constexpr):
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    tl.store(out + at, tl.dot(tl.load(a + at), tl.load(b + at)))


@triton.jit
def narrow(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i).to(tl.bfloat16))
"""


def kernels(folder: Path):  # type: ignore[no-untyped-def]
    path = folder / "kernels.py"
    path.write_text(SOURCE)
    return python_module.load(path, interpret=True)


def test_a_dot_of_bfloat16_multiplies_values_not_bits(tmp_path: Path) -> None:
    a, b = (torch.randn(16, 16, generator=torch.Generator().manual_seed(s)).bfloat16() for s in (1, 2))
    out = torch.empty(16, 16)
    kernels(tmp_path).product[(1,)](a, b, out, 16)
    torch.testing.assert_close(out.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-5)


def test_a_cast_to_bfloat16_rounds_to_nearest_even(tmp_path: Path) -> None:
    random = torch.randn(1016, generator=torch.Generator().manual_seed(3)) * 1e3
    bits = (0x3F808000, 0x3F818000, 0x3F807FFF, 0x3FFFFFFF, 0x7F7FFFFF)
    ties = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    x = torch.cat([random, ties, torch.tensor([float("inf"), float("-inf"), 0.0])])
    out = torch.empty(1024, dtype=torch.bfloat16)
    kernels(tmp_path).narrow[(1,)](x, out, 1024)
    assert torch.equal(out, x.bfloat16())


def test_triton_that_was_imported_to_be_compiled_is_interpreted_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "largest.py"
    path.write_text(
        "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef largest(x, out, N: tl.constexpr):\n"
        "    tl.store(out, tl.max(tl.load(x + tl.arange(0, N)), 0) + tl.cdiv(N, 3))\n"
    )
    code = (
        "import triton.language, torch; from pathlib import Path; from rung import python_module\n"
        f"kernel = python_module.load(Path({str(path)!r}), interpret=True).largest\n"
        "x, out = torch.arange(8.0), torch.zeros(1); kernel[(1,)](x, out, 8); assert float(out) == 10.0"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=_source_path())
    assert done.returncode == 0, done.stderr


def _source_path() -> dict[str, str]:
    import os

    return {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"PYTHONPATH": "src"}
