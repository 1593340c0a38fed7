"""How far a result is from the float64 reference, and how far it may be."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rung.dtypes import Dtype


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
    """Measure `out` against `reference` (float64); `exact` is for integers."""
    if exact:
        wrong = int((out.to(torch.int64) != reference.to(torch.int64)).sum())
        problem = f"{name}: {wrong} of {out.numel()} integers differ" if wrong else ""
        return Deviation(float(wrong), 0.0, 0.0, problem)
    out = out.to(torch.float64)
    finite = torch.isfinite(reference)
    special = _special_mismatch(name, out, reference, finite)
    if special:
        return Deviation(float("inf"), float("inf"), dtype.norm_cap, special)
    values, truth = out[finite], reference[finite]
    if not truth.numel():
        return Deviation(0.0, 0.0, dtype.norm_cap)
    unit = float(truth.square().mean().sqrt()) or 1.0
    bound = atol * unit + dtype.rtol * truth.abs()
    error = (values - truth).abs()
    ratio = error / bound
    worst = float(ratio.max())
    norm = float((values - truth).norm() / (truth.norm() or torch.tensor(1.0)))
    problem = ""
    if worst > 1:
        at = int(ratio.argmax())
        share = float((ratio > 1).double().mean())
        problem = (
            f"{name}: {share:.1%} of the values are off; the worst is {float(values[at]):.6g} "
            f"instead of {float(truth[at]):.6g} ({worst:.3g} x the bound)"
        )
    elif norm > dtype.norm_cap:
        problem = f"{name}: relative error {norm:.2g} in all, over the cap of {dtype.norm_cap:g}"
    return Deviation(worst, norm, dtype.norm_cap, problem)


def _special_mismatch(name: str, out: torch.Tensor, reference: torch.Tensor, finite: torch.Tensor) -> str:
    strange = ~torch.isfinite(out) & finite
    if bool(strange.any()):
        count, nan = int(strange.sum()), int((torch.isnan(out) & finite).sum())
        what = "NaN" if nan == count else "NaN or infinite"
        return f"{name}: {count} of {out.numel()} values are {what}"
    rest = ~finite
    same = (torch.isnan(out) & torch.isnan(reference)) | (out == reference)
    if bool((rest & ~same).any()):
        return f"{name}: NaN or infinity of the reference is missing"
    return ""
