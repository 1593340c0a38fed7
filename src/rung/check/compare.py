"""How far a result is from the float64 reference, and how far it may be."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rung.dtypes import Dtype

MANTISSA = {torch.float16: 10, torch.bfloat16: 7}  # bits after the first
MANY = 400  # enough results for their mean to show how they were rounded
CUT_OFF = 0.8  # share of the expected shortfall from which results count as truncated
FEW_EXTREMES = 1e5  # number of results whose largest error is, by chance, within the absolute tolerance
DRIFT = 0.2  # mean one-sided error allowed for many rounded integers, in units


@dataclass(frozen=True)
class Deviation:
    """The worst element's error in units of its bound, and the overall error relative to the reference's norm."""

    element: float  # |out - ref| / (atol + rtol |ref|), the largest
    norm: float  # ||out - ref|| / ||ref||
    norm_cap: float  # a little more for few results, whose mean error is larger by chance
    problem: str = ""
    integers: bool = False  # where they differ; both may be right, if two choices are equal within rounding
    name: str = ""  # of the output

    @property
    def ok(self) -> bool:
        return not self.problem


@dataclass
class Measured:
    """An output with its reference (float64), and the figures of their comparison, still on the output's device: with
    many processes on a GPU even a small query is slow.

    The unit of `atol` is the size of all results or, where sizes differ along the dimension `apart`, of a larger slice.
    `exact` is for integers and for numbers that are only moved, `rounded` for integers whose reference is not rounded;
    outside the mask `changed` every number must equal the reference's.
    """

    name: str
    out: torch.Tensor
    reference: torch.Tensor
    dtype: Dtype
    atol: float
    exact: bool = False
    apart: int | None = None
    rounded: bool = False
    changed: torch.Tensor | None = None

    def __post_init__(self) -> None:
        self.facts = _moved(self.out, self.reference) if self.exact else self._computed()
        if self.changed is not None and not self.exact:
            outside = (torch.where(self.changed, 0.0, one.double()) for one in (self.out, self.reference))
            self.facts = torch.cat([_moved(*outside), self.facts])

    def _of_interest(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Both in float64, with NaN outside the mask: elements that are NaN on both sides are left out of all
        figures."""
        both = self.out.double(), self.reference
        if self.changed is None:
            return both
        out, reference = (torch.where(self.changed, one.double(), torch.nan) for one in both)
        return out, reference

    def _computed(self) -> torch.Tensor:
        out, reference = self._of_interest()
        if not out.numel():
            return out.new_empty(0)
        whole = out
        if self.rounded:
            out = _unrounded(out, reference)
        values, truth, finite = _finite(out, reference)
        same = (torch.isnan(out) & torch.isnan(reference)) | (out == reference)
        count = finite.sum()
        size = truth.norm()
        ratio = self._ratio(values, truth, count)
        norm = (values - truth).norm() / torch.where(size == 0, 1.0, size)
        special = (~torch.isfinite(out) & finite).any().double(), (~finite & ~same).any().double()
        facts = [*special, count.double(), ratio.max(), norm]
        if self.rounded:
            low = torch.where(finite, truth - whole, 0.0)  # below the truth; times its sign: nearer to zero
            facts += [off.sum() / torch.where(count == 0, 1, count) for off in (low, low * truth.sign())]
        elif self.out.dtype in MANTISSA and out.numel() >= MANY:
            facts += _shortfall(values, truth, self.out.dtype)
        return torch.stack(facts)

    def _ratio(self, values: torch.Tensor, truth: torch.Tensor, count: torch.Tensor | float) -> torch.Tensor:
        """Each element's error in units of its bound.

        Errors after several rounded operators are normally distributed: the largest of n grows as the square root of
        ln n, so that it is larger for the millions of logits of a batch than for those of one text.
        """
        atol = self.atol * math.sqrt(max(1.0, math.log(max(truth.numel(), 2)) / math.log(FEW_EXTREMES)))
        unit = (truth.square().sum() / count).sqrt()
        if self.apart is not None:
            others = [d for d in range(truth.dim()) if d != self.apart]
            unit = torch.maximum(unit, truth.square().mean(others, keepdim=True).sqrt())
        return (values - truth).abs() / (atol * torch.where(unit == 0, 1.0, unit) + self.dtype.rtol * truth.abs())

    def deviation(self, facts: Sequence[float] | None = None) -> Deviation:
        """The verdict from the figures; copies them to the host first if needed."""
        infinite, facts = float("inf"), self.facts.tolist() if facts is None else facts
        if self.exact:
            moves = self.out.is_floating_point()
            of = "numbers that are only moved" if moves else "integers"
            problem = f"{self.name}: {facts[0]:.0f} of {self.out.numel()} {of} differ" if facts[0] else ""
            return Deviation(infinite if moves and problem else facts[0], 0.0, 0.0, problem, not moves, self.name)
        cap = self.dtype.norm_cap
        if not facts:
            return Deviation(0.0, 0.0, cap)
        if self.changed is not None:
            moved, *facts = facts
            if moved:
                problem = f"{self.name}: {moved:.0f} numbers differ where nothing is to be written"
                return Deviation(infinite, infinite, cap, problem, name=self.name)
        not_finite, invalid, counted, worst, relative, *cut_off = facts
        if not_finite or invalid:
            return Deviation(infinite, infinite, cap, self._special(), name=self.name)
        if not counted:
            return Deviation(0.0, 0.0, cap)
        # The root mean square of n errors has a relative deviation of 1 / sqrt(2 n): three deviations are allowed.
        cap *= 1 + 3 / (2 * counted) ** 0.5
        problem = ""
        if worst > 1:
            problem = self._far_off(counted, worst)
        elif relative > cap:
            problem = f"{self.name}: relative error {relative:.2g} in all, over the cap of {cap:.3g}"
        elif self.rounded:
            if counted >= MANY and (off := max(map(abs, cut_off))) > DRIFT:
                problem = f"{self.name}: off by {off:.2f} units to one side on average: not rounded to the nearest"
        elif cut_off and counted >= MANY and _is_cut_off(*cut_off):
            problem = f"{self.name}: cut off, not rounded: too small on average"
        return Deviation(worst, relative, cap, problem, name=self.name)

    def details(self, infinite: bool = False) -> dict[str, Any]:
        """Where the worst value is, five pairs around it, how many values are off, and the pattern that they form; the
        key of the header that would admit them, if one would. `infinite`: whether an input is."""
        given, truth = self._of_interest()
        if self.exact:
            wrong = (given != truth) & ~(given.isnan() & truth.isnan())
            size = wrong.double()
        else:
            held = torch.where(given.isfinite(), given, torch.nan)
            values, right, finite = _finite(held, truth)
            ratio = self._ratio(values, right, finite.sum())
            size = torch.where(held.isnan() & ~truth.isnan(), torch.inf, ratio)
            wrong = size > 1
        if not wrong.numel() or not wrong.any():
            return {}
        at = int(size.flatten().argmax())
        index = [int(i) for i in torch.unravel_index(torch.tensor(at), wrong.shape)]
        last = wrong.shape[-1] if wrong.dim() else 1
        first = max(at - at % last, min(at - 2, at - at % last + last - 5))
        pairs = [
            {"index": [*index[:-1], i % last], "expected": float(truth.flatten()[i]), "got": float(given.flatten()[i])}
            for i in range(max(first, 0), min(max(first, 0) + 5, at - at % last + last))
        ]
        found = {"output": self.name, "shape": list(wrong.shape), "worst": index, "pairs": pairs}
        at_nan, is_nan = (bool((values.isnan() | ~wrong).all()) for values in (truth, given))
        would = "loses_nan" if at_nan else "only_finite" if infinite and is_nan else ""
        key = {"admitted_by": would} if would else {}
        return {**found, "wrong": int(wrong.sum()), "pattern": pattern(given, truth, wrong), **key}

    def _far_off(self, counted: float, worst: float) -> str:
        given, truth = self._of_interest()
        if self.rounded:
            given = _unrounded(given, truth)
        values, truth, _ = _finite(given, truth)
        ratio = self._ratio(values, truth, counted)
        at = int(ratio.argmax())
        return (
            f"{self.name}: {float((ratio > 1).sum()) / counted:.1%} of the values are off; the worst is "
            f"{float(values.flatten()[at]):.6g} instead of {float(truth.flatten()[at]):.6g} ({worst:.3g} x the bound)"
        )

    def _special(self) -> str:
        out, reference = self._of_interest()
        not_finite = ~torch.isfinite(out) & torch.isfinite(reference)
        count, nan = int(not_finite.sum()), int((torch.isnan(out) & not_finite).sum())
        if not count:
            return f"{self.name}: NaN or infinity of the reference is missing"
        return f"{self.name}: {count} of {self.out.numel()} values are {'NaN' if nan == count else 'NaN or infinite'}"


def pattern(given: torch.Tensor, truth: torch.Tensor, wrong: torch.Tensor) -> str:
    """What the wrong values have in common, in words; empty if nothing simple."""
    if wrong.dim() == 0 or wrong.all() or int(wrong.sum()) < 2:
        return _relation(given, truth) if wrong.all() else ""
    for axis in range(wrong.dim()):
        size = wrong.shape[axis]
        others = [d for d in range(wrong.dim()) if d != axis]
        some = wrong.sum(others).bool() if others else wrong
        at = some.nonzero().flatten().tolist()
        if size < 2 or len(at) == size:
            continue
        name = "column" if axis == wrong.dim() - 1 else f"index of axis {axis}"
        if len(at) == 1:
            return f"only {name} {at[0]} of {size}"
        if at[-1] - at[0] == len(at) - 1:
            if at[-1] == size - 1:
                return f"every {name} from {at[0]} on, of {size}"
            return f"{name} {at[0]} to {at[-1]} of {size}"
        steps = {b - a for a, b in itertools.pairwise(at)}
        if len(steps) == 1:
            return f"every {steps.pop()}th {name}, from {at[0]} on"
    return _relation(given, truth)


def _relation(given: torch.Tensor, truth: torch.Tensor) -> str:
    """How wrong values follow from right ones: a constant factor, a transposition, a shift by one."""
    if not (bool(given.isfinite().all()) and bool(truth.isfinite().all())) or truth.numel() < 3:
        return ""

    def alike(one: torch.Tensor, other: torch.Tensor) -> bool:
        return float((one - other).double().norm()) <= 1e-2 * float(other.double().norm())

    factor = float((given * truth).sum() / (truth * truth).sum()) if bool(truth.any()) else 0.0
    if abs(factor) > 1e-3 and abs(factor - 1) > 1e-2 and alike(given, truth * factor):
        return f"every value is {factor:.4g} times what it should be"
    if truth.dim() > 1 and truth.shape[-1] > 1 and truth.shape[-2] > 1:
        turned = truth.transpose(-1, -2).reshape(truth.shape)
        if alike(given, turned):
            return "the last two axes are transposed"
    for axis in range(truth.dim()):
        size = truth.shape[axis]
        for by in (1, -1) if size > 2 else ():
            here, there = (0, 1) if by == 1 else (1, 0)
            if alike(given.narrow(axis, here, size - 1), truth.narrow(axis, there, size - 1)):
                return f"shifted by one along axis {axis}"
    return ""


def _unrounded(out: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """The number nearest to the reference among all that round to these integers."""
    return torch.minimum(torch.maximum(reference, out - 0.5), out + 0.5)


def _moved(out: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    right = reference.to(out.dtype)
    return ((out != right) & ~(torch.isnan(out) & torch.isnan(right))).sum().double().view(1)


def _finite(out: torch.Tensor, reference: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Both, with zeros in place of non-finite numbers, and a mask of the reference's finite ones."""
    finite = torch.isfinite(reference)
    return torch.where(finite & torch.isfinite(out), out, 0.0), torch.where(finite, reference, 0.0), finite


def _shortfall(out: torch.Tensor, truth: torch.Tensor, kind: torch.dtype) -> list[torch.Tensor]:
    """Count, mean shortfall (towards zero) and expected shortfall under truncation of the results that can show it, in
    units in the last place (ulps)."""
    size = truth.abs()
    info = torch.finfo(kind)
    place = torch.exp2(torch.frexp(size).exponent - 1.0 - MANTISSA[kind])  # the value of the last bit
    rounded = truth.to(kind).double().abs()
    short, cut = (rounded - out.abs()) / place, (rounded - (size / place).floor() * place) / place
    near = (size > info.tiny) & (size < info.max) & (short.abs() <= 2)  # larger errors have another cause
    count = near.sum().double()
    return [count, torch.where(near, short, 0.0).sum() / count, torch.where(near, cut, 0.0).sum() / count]


def _is_cut_off(count: float, short: float, cut: float) -> bool:
    """Whether the mean shortfall of the results shows that their last bits were truncated."""
    return count >= MANY and cut > 0.1 and short > CUT_OFF * cut
