"""matmul_low: what each format loses against the numbers that it was made from is what the README says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rung.arrays import dtype_of
from rung.dtypes import DTYPES
from rung.rungs import catalogue

README = Path(catalogue.__file__).parents[1] / "ladders/matmul_low/README.md"
Format = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def rounded(dtype: torch.dtype) -> Format:
    return lambda x, w: (x.to(dtype).double(), w.to(dtype).double())


def whole(x: torch.Tensor) -> torch.Tensor:
    """Codes of eight bits with one scale for the whole matrix."""
    unit = x.abs().max() / 127
    return (x / unit).round() * unit


def integers(x: torch.Tensor) -> torch.Tensor:
    unit = x.abs().amax(1, keepdim=True) / 127
    return (x / unit).round() * unit


def eights(x: torch.Tensor) -> torch.Tensor:
    unit = x.abs().amax(1, keepdim=True) / 448
    return (x / unit).to(torch.float8_e4m3fn).double() * unit


def halved(w: torch.Tensor) -> torch.Tensor:
    four = w.view(len(w), -1, 4)
    third = four.abs().sort(2).values[..., 2:3]
    return torch.where(four.abs() >= third, four, 0).view_as(w)


FORMATS: dict[str, Format] = {
    "f16": rounded(torch.float16),
    "bf16": rounded(torch.bfloat16),
    "int8, a scale per row": lambda x, w: (integers(x), integers(w)),
    "int8, a scale per matrix": lambda x, w: (whole(x), whole(w)),
    "e4m3, a scale per row": lambda x, w: (eights(x), eights(w)),
    "two of four weights": lambda x, w: (x, halved(w)),
    "bf16, weights in int8": lambda x, w: (x.bfloat16().double(), integers(w)),
    "bf16, weights in e4m3": lambda x, w: (x.bfloat16().double(), eights(w)),
}


def losses() -> dict[str, tuple[float, float]]:
    """‖error‖ / ‖product‖ in per cent, for even rows and for rows of which one column in a hundred is thirty times larger."""
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(512, 768, generator=generator, dtype=torch.float64)
    even = torch.randn(512, 768, generator=generator, dtype=torch.float64)
    uneven = even.clone()
    uneven[:, ::100] *= 30
    found = {}
    for name, made in FORMATS.items():
        both = []
        for x in (even, uneven):
            a, b = made(x, w)
            right = x @ w.T
            both.append(100 * float((a @ b.T - right).norm() / right.norm()))
        found[name] = (both[0], both[1])
    return found


def test_the_readme_tells_what_each_format_loses() -> None:
    stated = {
        line.split("|")[1].strip(): tuple(float(n) for n in re.findall(r"([\d.]+) %", line))
        for line in README.read_text(encoding="utf-8").splitlines()
        if line.count(" % |") == 2
    }
    made = losses()
    assert stated.keys() == made.keys()
    for name, pair in made.items():
        assert stated[name] == pytest.approx(pair, rel=0.03), name


@pytest.mark.parametrize(("rung", "operand"), [("2", "x_q"), ("4", "w_scale"), ("5", "x"), ("6", "w_f8"), ("7", "w_places"), ("9", "x"), ("9", "w_i8"), ("10", "w_f8"), ("10", "w_scale")])
def test_a_rung_is_held_to_the_operands_of_its_format(rung: str, operand: str) -> None:
    """The reference hangs on what the rung binds, and on nothing else."""
    op, found = catalogue.operation("matmul_low"), catalogue.find(f"matmul_low/{rung}")
    values = op.complete({"M": 3, "OC": 5, "C": 64})
    names = sorted(found.binds)
    tensors = op.inputs(
        values, DTYPES["f32"], 1, empty=lambda _, shape, kind: torch.zeros(shape, dtype=dtype_of(kind, torch)), names=names
    )
    as_read = {n: t.double() if t.is_floating_point() else t for n, t in tensors.items()}
    right = op.reference(as_read, values)["out"]
    other = as_read[operand]
    as_read[operand] = other ^ 0b1100 if operand == "w_places" else other.flip(0)
    assert operand in names and (op.reference(as_read, values)["out"] - right).norm() > 0.1 * right.norm()
