"""Results that are all rounded to one side are told, towards zero or away from it, also of a part of the columns."""

import numpy as np
import pytest
import torch

from rung.check.compare import Deviation, Measured
from rung.dtypes import dtype

ROWS, COLUMNS = 64, 512


def rounded(to: str, every: int) -> Deviation:
    rng = np.random.default_rng(3)
    exact = torch.from_numpy(rng.standard_normal((ROWS, COLUMNS)))
    nearest = exact.to(torch.bfloat16)
    bits = exact.float().view(torch.int32)
    cut = (bits & ~0xFFFF).view(torch.float32)
    up = ((bits & ~0xFFFF) + 0x10000).view(torch.float32)
    other = {"zero": cut, "away": up, "down": torch.where(exact > 0, cut, up), "up": torch.where(exact > 0, up, cut)}
    out = nearest.clone()
    if to in other:
        out[:, ::every] = other[to].to(torch.bfloat16)[:, ::every]
    return Measured("out", out, exact, dtype("bf16"), dtype("bf16").atol).deviation()


@pytest.mark.parametrize("every", [1, 8])
@pytest.mark.parametrize("to", ["zero", "away", "down", "up"])
def test_rounding_to_one_side_is_told(to: str, every: int) -> None:
    assert rounded(to, every).kind in ("one-sided", "truncated")


def test_rounding_to_the_nearest_is_right() -> None:
    assert rounded("nearest", 1).ok


def test_one_cancelling_sum_is_judged_by_its_own_bound() -> None:
    near = Measured("out", np.array([1e-3 + 7e-8], np.float32), np.array([1e-3]), dtype("f32"), 2e-3).deviation()
    many = np.full(64, 1e-3)
    far = Measured("out", (many * (1 + 7e-5)).astype(np.float32), many, dtype("f32"), 2e-3).deviation()
    assert near.ok and far.kind == "inexact"
