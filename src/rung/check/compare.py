"""How far a result is from the float64 reference, and how far it may be; arrays are numpy's or torch's.

The figures are computed where the result is: with many processes on a GPU even a small query is slow, so that all
figures of a case are fetched at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from rung.arrays import Array, namespace, quiet, to_float64, to_host
from rung.dtypes import Dtype
from rung.explain.diagnosis import Diagnosis, diagnose

FORMATS = {  # bits of the mantissa after the first, the least normal number and the largest, of formats with few bits
    "float16": (10, 2.0**-14, 65504.0),
    "bfloat16": (7, 2.0**-126, (2 - 2.0**-7) * 2.0**127),
}
MANY = 400  # enough results for their mean to show how they were rounded
CUT_OFF, GROUPS = 0.8, 8  # share of a directed rounding's bias that is told; columns are looked at in so many groups
FEW, FEW_ERROR = 8, 0.25  # of so few results one cancelling sum decides the error in all: its own bound decides then
FEW_EXTREMES = 1e5  # number of results whose largest error is, by chance, within the absolute tolerance
DRIFT = 0.2  # mean one-sided error allowed for many rounded integers, in units

Problem = Literal["", "exact", "outside", "special", "far", "inexact", "one-sided", "truncated", "custom"]


@dataclass(frozen=True)
class Deviation:
    """The worst element's error in units of its bound, and the overall error relative to the reference's norm."""

    element: float  # |out - ref| / (atol + rtol |ref|), the largest
    norm: float  # ||out - ref|| / ||ref||
    norm_cap: float  # a little more for few results, whose mean error is larger by chance
    problem: str = ""
    integers: bool = False  # where they differ; both may be right, if two choices are equal within rounding
    name: str = ""  # of the output
    kind: Problem = ""

    @property
    def ok(self) -> bool:
        return not self.problem


@dataclass
class Measured:
    """An output with its reference (float64), and the figures of their comparison, still on the output's device.

    The unit of `atol` is the size of all results or, where sizes differ along the dimension `apart`, of a larger slice.
    `exact` is for integers and for numbers that are only moved, `rounded` for integers whose reference is not rounded;
    outside the mask `changed` every number must equal the reference's.
    """

    name: str
    out: Array
    reference: Array
    dtype: Dtype
    atol: float
    exact: bool = False
    apart: int | None = None
    rounded: bool = False
    changed: Array | None = None

    def __post_init__(self) -> None:
        self.xp = namespace(self.out)
        self.format = FORMATS.get(str(self.out.dtype).removeprefix("torch."))
        with quiet():
            self.facts = self._moved(self.out, self.reference) if self.exact else self._computed()
            if self.changed is not None and not self.exact:
                outside = (self.xp.where(self.changed, 0.0, to_float64(one)) for one in (self.out, self.reference))
                self.facts = self.xp.concatenate([self._moved(*outside), self.facts])

    def _of_interest(self) -> tuple[Array, Array]:
        """Both in float64, with NaN outside the mask: elements that are NaN on both sides are left out of all
        figures."""
        both = to_float64(self.out), to_float64(self.reference)
        if self.changed is None:
            return both
        out, reference = (self.xp.where(self.changed, one, math.nan) for one in both)
        return out, reference

    def _computed(self) -> Array:
        xp = self.xp
        out, reference = self._of_interest()
        if not math.prod(out.shape):
            return out.reshape(-1)
        whole = out
        if self.rounded:
            out = self._unrounded(out, reference)
        values, truth, finite = self._finite(out, reference)
        same = (xp.isnan(out) & xp.isnan(reference)) | (out == reference)
        count = to_float64(xp.sum(finite))
        size = xp.sqrt(xp.sum(xp.square(truth)))
        ratio = self._ratio(values, truth, count)
        norm = xp.sqrt(xp.sum(xp.square(values - truth))) / xp.where(size == 0, 1.0, size)
        special = [xp.any(~xp.isfinite(out) & finite), xp.any(~finite & ~same)]
        facts = [*map(to_float64, special), count, xp.amax(ratio), norm]
        if self.rounded:
            low = xp.where(finite, truth - whole, 0.0)  # below the truth; times its sign: nearer to zero
            facts += [xp.sum(off) / xp.where(count == 0, 1.0, count) for off in (low, low * xp.sign(truth))]
        elif self.format and math.prod(out.shape) >= MANY:
            facts += self._one_sided(values, truth)
        return xp.stack(facts)

    def _ratio(self, values: Array, truth: Array, count: Array | float) -> Array:
        """Each element's error in units of its bound.

        Errors after several rounded operators are normally distributed: the largest of n grows as the square root of
        ln n, so that it is larger for the millions of logits of a batch than for those of one text.
        """
        xp, number = self.xp, math.prod(truth.shape)
        atol = self.atol * math.sqrt(max(1.0, math.log(max(number, 2)) / math.log(FEW_EXTREMES)))
        unit = xp.sqrt(xp.sum(xp.square(truth)) / count)
        if self.apart is not None:
            others = tuple(d for d in range(truth.ndim) if d != self.apart)
            unit = xp.maximum(unit, xp.sqrt(xp.mean(xp.square(truth), axis=others, keepdims=True)))
        return xp.abs(values - truth) / (atol * xp.where(unit == 0, 1.0, unit) + self.dtype.rtol * xp.abs(truth))

    def deviation(self, facts: Sequence[float] | None = None) -> Deviation:
        """The verdict from the figures; copies them to the host first if needed."""
        infinite, facts = math.inf, self.facts.tolist() if facts is None else facts
        if self.exact:
            moves = "float" in str(self.out.dtype)
            of = "numbers that are only moved" if moves else "integers"
            total = math.prod(self.out.shape)
            problem = f"{self.name}: {facts[0]:.0f} of {total} {of} differ" if facts[0] else ""
            element = infinite if moves and problem else facts[0]
            return Deviation(element, 0.0, 0.0, problem, not moves, self.name, "exact" if problem else "")
        cap = self.dtype.norm_cap
        if not facts:
            return Deviation(0.0, 0.0, cap)
        if self.changed is not None:
            moved, *facts = facts
            if moved:
                problem = f"{self.name}: {moved:.0f} numbers differ where nothing is to be written"
                return Deviation(infinite, infinite, cap, problem, name=self.name, kind="outside")
        not_finite, invalid, counted, worst, relative, *cut_off = facts
        if not_finite or invalid:
            return Deviation(infinite, infinite, cap, self._special(), name=self.name, kind="special")
        if not counted:
            return Deviation(0.0, 0.0, cap)
        # The root mean square of n errors has a relative deviation of 1 / sqrt(2 n): three deviations are allowed.
        cap *= 1 + 3 / (2 * counted) ** 0.5
        kind, problem = self._judge(counted, worst, relative, cap, cut_off)
        return Deviation(worst, relative, cap, problem, name=self.name, kind=kind)

    def _judge(
        self, counted: float, worst: float, relative: float, cap: float, cut_off: Sequence[float]
    ) -> tuple[Problem, str]:
        """What is wrong with finite results, and how it is said."""
        if worst > 1:
            return "far", self._far_off(counted, worst)
        if relative > cap and (counted >= FEW or worst > FEW_ERROR):
            return "inexact", f"{self.name}: relative error {relative:.2g} in all, over the cap of {cap:.3g}"
        if self.rounded:
            if counted >= MANY and (off := max(map(abs, cut_off))) > DRIFT:
                return "one-sided", (
                    f"{self.name}: off by {off:.2f} units to one side on average: not rounded to the nearest"
                )
        elif cut_off and cut_off[0] > CUT_OFF:
            return "truncated", f"{self.name}: cut off, not rounded: too small on average"
        elif cut_off and cut_off[1] > CUT_OFF:
            return "one-sided", f"{self.name}: rounded to one side, not to the nearest, at least in every eighth column"
        return "", ""

    def differences(self) -> tuple[Any, Any, Any]:
        """On the host, in float64: the output, the reference, and each element's error in units of its bound."""
        xp = self.xp
        with quiet():
            given, truth = self._of_interest()
            if self.exact:
                right = to_float64(xp.asarray(self.reference, dtype=self.out.dtype))
                size = to_float64((given != right) & ~(xp.isnan(given) & xp.isnan(right))) * 2
            else:
                values, right, finite = self._finite(given, truth)
                ratio = self._ratio(values, right, to_float64(xp.sum(finite)))
                same = (xp.isnan(given) & xp.isnan(truth)) | (given == truth)
                size = xp.where(~(finite & xp.isfinite(given)) & ~same, math.inf, ratio)
        return to_host(given), to_host(truth), to_host(size)

    def diagnosis(self, *, infinite: bool = False, **about: Any) -> Diagnosis | None:
        """What is wrong, and what the wrong elements have in common; None if every element is within its bound.

        `infinite`: whether an input is. The facts name the key of the header that would admit the result, if one would.
        """
        given, truth, error = self.differences()
        found = diagnose(self.name, given, truth, error, **about)
        if found is None:
            return None
        wrong = error > 1
        at_nan, is_nan = (bool((np.isnan(one) | ~wrong).all()) for one in (truth, given))
        key = "loses_nan" if at_nan else "only_finite" if infinite and is_nan else ""
        return replace(found, facts={"admitted_by": key}) if key else found

    def _far_off(self, counted: float, worst: float) -> str:
        given, truth = self._of_interest()
        if self.rounded:
            given = self._unrounded(given, truth)
        values, truth, _ = self._finite(given, truth)
        ratio = self._ratio(values, truth, counted)
        at = int(self.xp.argmax(ratio))
        return (
            f"{self.name}: {float(self.xp.sum(ratio > 1)) / counted:.1%} of the values are off; the worst is "
            f"{float(values.reshape(-1)[at]):.6g} instead of {float(truth.reshape(-1)[at]):.6g} "
            f"({worst:.3g} x the bound)"
        )

    def _special(self) -> str:
        xp = self.xp
        out, reference = self._of_interest()
        not_finite = ~xp.isfinite(out) & xp.isfinite(reference)
        count, nan = int(xp.sum(not_finite)), int(xp.sum(xp.isnan(out) & not_finite))
        if not count:
            return f"{self.name}: NaN or infinity of the reference is missing"
        of = math.prod(self.out.shape)
        return f"{self.name}: {count} of {of} values are {'NaN' if nan == count else 'NaN or infinite'}"

    def _unrounded(self, out: Array, reference: Array) -> Array:
        """The number nearest to the reference among all that round to these integers."""
        return self.xp.minimum(self.xp.maximum(reference, out - 0.5), out + 0.5)

    def _moved(self, out: Array, reference: Array) -> Array:
        xp = self.xp
        right = xp.asarray(reference, dtype=out.dtype)
        return to_float64(xp.sum((out != right) & ~((out != out) & (right != right)))).reshape(1)

    def _finite(self, out: Array, reference: Array) -> tuple[Array, Array, Array]:
        """Both, with zeros in place of non-finite numbers, and a mask of the reference's finite ones."""
        xp, finite = self.xp, self.xp.isfinite(reference)
        return xp.where(finite & xp.isfinite(out), out, 0.0), xp.where(finite, reference, 0.0), finite

    def _one_sided(self, out: Array, truth: Array) -> list[Array]:
        """How much of truncation's bias the results have, and the largest share of any directed rounding's (towards or
        away from zero, down, up), among all results and among every eighth column."""
        assert self.format
        xp, (mantissa, tiny, largest) = self.xp, self.format
        size = xp.abs(truth)
        place = xp.exp2(to_float64(xp.frexp(size)[1]) - 1.0 - mantissa)  # the value of the last bit
        units = size / place
        short = xp.round(units) - xp.abs(out) / place  # nearer to zero
        near = (size > tiny) & (size < largest) & (xp.abs(short) <= 2)  # larger errors have another cause
        less, more = xp.round(units) - xp.floor(units), xp.ceil(units) - xp.round(units)
        shares = [self._directed(short, less, more, truth > 0, near)]
        if out.ndim and out.shape[-1] >= GROUPS and math.prod(out.shape) >= MANY * GROUPS:
            parts = [[one[..., k::GROUPS] for one in (short, less, more, truth > 0, near)] for k in range(GROUPS)]
            shares += [self._directed(*part) for part in parts]
        return [shares[0][0], xp.amax(xp.stack([xp.amax(one) for one in shares]))]

    def _directed(self, short: Array, less: Array, more: Array, positive: Array, near: Array) -> Array:
        """The mean error as a share of what each directed rounding gives; 0 where there are too few results, or where
        rounding changes too few of them."""
        xp, count = self.xp, to_float64(self.xp.sum(near))

        def mean(numbers: Array) -> Array:
            return xp.sum(xp.where(near, numbers, 0.0)) / xp.where(count == 0, 1.0, count)

        to_zero, down = mean(short), mean(xp.where(positive, short, -short))
        expected = [mean(less), mean(more), mean(xp.where(positive, less, more)), mean(xp.where(positive, more, less))]
        found = xp.stack([to_zero, -to_zero, down, -down])
        enough = xp.stack([(count >= MANY) & (one > 0.1) for one in expected])
        return xp.where(enough, found / xp.where(enough, xp.stack(expected), 1.0), 0.0)
