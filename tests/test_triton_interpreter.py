"""Triton's interpreter, with bfloat16 mended: products and rounding as on a GPU."""

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
