"""How far a result is from the float64 reference, and how far it may be."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rung.dtypes import Dtype

MANTISSA = {torch.float16: 10, torch.bfloat16: 7}  # bits behind the first
MANY = 400  # results whose mean says how they were rounded
CUT_OFF = 0.8  # of what results are too small on average that were cut off


@dataclass(frozen=True)
class Deviation:
    """The worst element's error in units of its bound, and the error of the whole in units of its size."""

    element: float  # |out - ref| / (atol + rtol |ref|), the largest
    norm: float  # ||out - ref|| / ||ref||
    norm_cap: float
    problem: str = ""

    @property
    def ok(self) -> bool:
        return not self.problem


def compare(
    name: str, out: torch.Tensor, reference: torch.Tensor, dtype: Dtype, atol: float, *, exact: bool = False
) -> Deviation:
    """Measure `out` against `reference` (float64); `exact` is for integers and for what is only moved."""
    if exact:
        right = reference.to(out.dtype)
        wrong = int(((out != right) & ~(torch.isnan(out) & torch.isnan(right))).sum())
        of = "numbers that are only moved" if out.is_floating_point() else "integers"
        problem = f"{name}: {wrong} of {out.numel()} {of} differ" if wrong else ""
        return Deviation(float(wrong), 0.0, 0.0, problem)
    if not out.numel():
        return Deviation(0.0, 0.0, dtype.norm_cap)
    kind, out = out.dtype, out.to(torch.float64)
    finite = torch.isfinite(reference)
    strange = ~torch.isfinite(out) & finite
    same = (torch.isnan(out) & torch.isnan(reference)) | (out == reference)
    truth = torch.where(finite, reference, 0.0)
    values = torch.where(finite & ~strange, out, 0.0)
    count = finite.sum()
    unit = (truth.square().sum() / count).sqrt()
    size = truth.norm()
    error = (values - truth).abs()
    ratio = error / (atol * torch.where(unit == 0, 1.0, unit) + dtype.rtol * truth.abs())
    norm = error.norm() / torch.where(size == 0, 1.0, size)
    # One query of the GPU, not one per number.
    facts = torch.stack([strange.any().double(), (~finite & ~same).any().double(), count.double(), ratio.max(), norm])
    strange_any, lost, counted, worst, relative = facts.tolist()
    if strange_any or lost:
        return Deviation(float("inf"), float("inf"), dtype.norm_cap, _special(name, out, strange))
    if not counted:
        return Deviation(0.0, 0.0, dtype.norm_cap)
    problem = ""
    if worst > 1:
        at = int(ratio.argmax())
        share = float((ratio > 1).sum()) / counted
        problem = (
            f"{name}: {share:.1%} of the values are off; the worst is {float(values.flatten()[at]):.6g} "
            f"instead of {float(truth.flatten()[at]):.6g} ({worst:.3g} x the bound)"
        )
    elif relative > dtype.norm_cap:
        problem = f"{name}: relative error {relative:.2g} in all, over the cap of {dtype.norm_cap:g}"
    elif kind in MANTISSA and counted >= MANY and _cut_off(values, truth, kind):
        problem = f"{name}: cut off, not rounded: too small on average"
    return Deviation(worst, relative, dtype.norm_cap, problem)


def _cut_off(out: torch.Tensor, truth: torch.Tensor, kind: torch.dtype) -> bool:
    """Whether results are nearer to zero on average as if their last bits had been cut off."""
    size = truth.abs()
    info = torch.finfo(kind)
    place = torch.exp2(torch.frexp(size).exponent - 1.0 - MANTISSA[kind])  # what the last bit counts
    rounded = truth.to(kind).double().abs()
    short, cut = (rounded - out.abs()) / place, (rounded - (size / place).floor() * place) / place
    near = (size > info.tiny) & (size < info.max) & (short.abs() <= 2)  # others are off for another reason
    if int(near.sum()) < MANY:
        return False
    return bool(cut[near].mean() > 0.1 and short[near].mean() > CUT_OFF * cut[near].mean())


def _special(name: str, out: torch.Tensor, strange: torch.Tensor) -> str:
    count, nan = int(strange.sum()), int((torch.isnan(out) & strange).sum())
    if not count:
        return f"{name}: NaN or infinity of the reference is missing"
    return f"{name}: {count} of {out.numel()} values are {'NaN' if nan == count else 'NaN or infinite'}"
