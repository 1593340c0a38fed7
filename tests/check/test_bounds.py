"""Bounds of results follow from arithmetic: correct kernels of each number format meet them, and coarser ones do not."""

import pytest
import torch

from rung.arrays import dtype_of
from rung.check.compare import Deviation, Measured
from rung.dtypes import DTYPES
from rung.rungs import catalogue


def tf32(x: torch.Tensor, cut_off: bool = False) -> torch.Tensor:
    bits = x.float().view(torch.int32)
    return ((bits if cut_off else bits + 0x1000) & -0x2000).view(torch.float32).double()


@pytest.mark.parametrize("case", ["gpt2", "gpt2-xl"])
def test_new_keys_in_tf32_are_held_to_their_own_size(case: str) -> None:
    """Kept keys are smaller by the root of C, and nearly all of the cache."""
    of, dtype = catalogue.operation("cached_projection"), DTYPES["tf32"]
    values = of.complete(next(c for c in of.cases if c.name == case).values)
    names = [o.name for o in of.operands if o.role != "out"]
    given = of.inputs(values, dtype, 11, names=names, empty=lambda n, shape, kind: torch.empty(shape, dtype=dtype_of(kind, torch)))
    exact = {n: t.double() for n, t in given.items()}
    right = of.reference(exact, values)
    rounded = of.reference(exact | {n: tf32(given[n]) for n in ("x", "weight")}, values)
    for name in ("k_cache", "v_cache", "out"):
        apart = of.operand(name).apart
        found = Measured(name, rounded[name], right[name], dtype, of.tolerance(values, dtype), apart=apart).deviation()
        assert found.ok and found.element < 0.8


@pytest.mark.slow
def test_attention_in_tf32_is_rounded_not_cut_off() -> None:
    of, dtype = catalogue.operation("attention"), DTYPES["tf32"]
    values = of.complete(next(c for c in of.cases if c.name == "more than 2^16 rows").values)
    given = of.inputs(
        values, dtype, 15, names=["qkv", "q", "k", "v"], empty=lambda n, s, kind: torch.empty(s, dtype=dtype_of(kind, torch))
    )
    right = of.reference({n: t.double() for n, t in given.items()}, values)["out"]

    def deviation(cut_off: bool) -> Deviation:
        q, k, v = (tf32(given[n].contiguous(), cut_off) for n in "qkv")
        position = torch.arange(q.shape[2])
        scores = (q @ k.transpose(2, 3) * values["scale"]).masked_fill(position > position[:, None], -torch.inf)
        out = (tf32(scores.softmax(3), cut_off) @ v).transpose(1, 2).flatten(2)
        return Measured("out", out, right, dtype, of.tolerance(values, dtype), apart=of.operand("out").apart).deviation()

    assert deviation(cut_off=False).element < 0.8
    assert not deviation(cut_off=True).ok


def summed(x: torch.Tensor, w: torch.Tensor, bits: int) -> torch.Tensor:
    """x wᵀ as Hopper adds up products of e4m3: 32 and the sum so far, truncated this many bits after the largest's
    first."""
    total = torch.zeros(len(x), len(w))
    for k in range(0, x.shape[1], 32):
        terms = torch.cat([x[:, None, k : k + 32] * w[None, :, k : k + 32], total[:, :, None]], 2)
        step = torch.exp2(torch.frexp(terms.abs().amax(2, keepdim=True)).exponent - 1.0 - bits)
        total = ((terms / step).trunc() * step).sum(2)
    return total.double()


@pytest.mark.parametrize(("bits", "right"), [(13, True), (9, False)])
def test_sums_of_fourteen_bits_are_right_and_those_of_ten_are_not(bits: int, right: bool) -> None:
    of, dtype, names = catalogue.operation("matmul_low"), DTYPES["bf16"], ["x_f8", "w_f8"]
    values = of.complete(dict(M=8, OC=32, C=6400))
    given = of.inputs(values, dtype, 3, names=names, empty=lambda n, shape, kind: torch.empty(shape, dtype=dtype_of(kind, torch)))
    x, w = (given[n].view(torch.float8_e4m3fn).float() for n in names)
    atol = of.tolerance(values, dtype, names)
    found = Measured("out", summed(x, w, bits).bfloat16(), x.double() @ w.double().T, dtype, atol).deviation()
    assert found.ok == right, found


def test_what_long_sums_of_e4m3_lose_is_in_their_bound() -> None:
    """At a size of 283 an H200 gave -25.875 instead of -20.94 for one of half a million sums of 6,400 products."""
    of, dtype = catalogue.operation("matmul_low"), DTYPES["bf16"]
    values = of.complete(dict(M=1, OC=3, C=6400))
    right = torch.tensor([[-20.9404, 283.0, 400.0]], dtype=torch.float64)
    out = torch.tensor([[-25.875, 284.0, 400.0]], dtype=torch.bfloat16)
    assert not Measured("out", out, right, dtype, of.tolerance(values, dtype)).deviation().ok
    assert Measured("out", out, right, dtype, of.tolerance(values, dtype, ["x_f8", "w_f8"])).deviation().ok


@pytest.mark.parametrize(("count", "off"), [(7, 1.41e-3), (7000, 1.1e-3)])
def test_few_results_may_be_off_by_more_than_many(count: int, off: float) -> None:
    """Seven logits of a correct step in f16 were off by 0.0014 of their size, where most steps are off by 0.0003."""
    right = torch.randn(count, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 3
    found = Measured("logits", right * (1 + off), right, DTYPES["f16"], 1e-2).deviation()
    assert found.ok == (count == 7)


def test_weights_of_e4m3_that_are_converted_are_held_to_sums_of_all_bits() -> None:
    of, dtype = catalogue.operation("matmul_low"), DTYPES["bf16"]
    values = of.complete(dict(M=1, OC=3, C=6400))
    assert of.tolerance(values, dtype, ["x", "w_f8"]) == of.tolerance(values, dtype)
    assert of.tolerance(values, dtype, ["x_f8", "w_f8"]) > of.tolerance(values, dtype)


@pytest.mark.parametrize("columns", [768, 50257])
def test_the_largest_error_of_millions_of_logits_is_chance_and_a_larger_one_is_not(columns: int) -> None:
    """A batch's logits in bf16 lie about 0.0035 of their size from the reference, spread as a normal distribution is."""
    of, dtype = catalogue.operation("decode"), DTYPES["bf16"]
    values = of.complete({"B": 64, "L": 2, "C": 768, "NH": 12, "F": 3072, "V": columns, "MAXT": 72})
    draw = torch.Generator().manual_seed(5)
    right = torch.randn(64, columns, dtype=torch.float64, generator=draw)
    right[:, ::2] *= 0.01  # small ones, of which a part of themselves is nothing
    right /= right.square().mean().sqrt()
    errors = 0.0035 * torch.randn(right.shape, dtype=torch.float64, generator=draw)
    atol = of.tolerance(values, dtype)
    assert Measured("logits", right + errors, right, dtype, atol).deviation().ok
    errors[3, 0] = 0.0035 * 6.5
    assert not Measured("logits", right + errors, right, dtype, atol).deviation().ok
