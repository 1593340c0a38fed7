"""An operation's inputs and reference are computed with numpy's arrays, and are those of torch's."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from rung.arrays import dtype_of, is_real, to_float64, to_host, to_kind, to_torch
from rung.dtypes import DTYPES
from rung.operation import Case, Operation, Tensors, folders
from rung.rungs import catalogue, operations

NUMBERS = 60_000  # of a case that is compared here


def inputs(of: Operation, case: Case, dtype: str, names: list[str]) -> Tensors:
    values = of.complete(case.values)
    return of.inputs(
        values, DTYPES[dtype], 3, magnitude=case.magnitude, change=case.change, names=names,
        empty=lambda _, shape, kind: np.zeros(shape, dtype_of(kind, np)),
    )  # fmt: skip


def forms(name: str) -> list[list[str]]:
    """The operands that the ladder's rungs take."""
    return [[*names] for names in {tuple(rung.operand_names): None for rung in catalogue.rungs(name)}]


@pytest.mark.parametrize("name", sorted(folders()))
def test_a_reference_is_the_same_of_numpys_arrays_and_torchs(name: str) -> None:
    of, compared = operations.operation(name), 0
    cases = [*of.cases, *(Case(edge, of.cases[1].values, change=change) for edge, change in of.edges.items())]
    for case in cases:
        values = of.complete(case.values)
        if sum(np.prod(o.size(values)) for o in of.operands) > NUMBERS:
            continue
        for names in forms(name):
            given = inputs(of, case, "f32", names)
            read = {n: a for n, a in given.items() if of.operand(n).role != "out"}
            wide = {n: to_float64(a) if is_real(a) else to_kind(a, "int64") for n, a in read.items()}
            with np.errstate(all="ignore"):
                ours = of.reference(wide, values)
                theirs = of.reference({n: to_torch(a.copy()) for n, a in wide.items()}, values)
            for output, theirs_of in theirs.items():
                near = 1e-9 * np.nanmax(np.abs(np.nan_to_num(to_host(theirs_of), posinf=0, neginf=0)), initial=0)
                np.testing.assert_allclose(ours[output], to_host(theirs_of), rtol=1e-9, atol=near)
                compared += 1
    assert compared


def test_inputs_are_drawn_without_torch() -> None:
    program = """
import sys
sys.modules["torch"] = None
import numpy as np
from rung.arrays import dtype_of
from rung.dtypes import DTYPES
from rung.rungs import catalogue, operations
for name in operations.operations():
    of = operations.operation(name)
    for dtype in DTYPES.values():
        for case in of.cases[:3]:
            values = of.complete(case.values)
            empty = lambda _, shape, kind: np.zeros(shape, dtype_of(kind, np))
            of.inputs(values, dtype, 1, magnitude=case.magnitude, change=case.change, empty=empty)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert not done.returncode and not done.stderr, done.stderr


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float8_e4m3fn", "int8"])
def test_an_array_and_its_tensor_are_the_same_memory(kind: str) -> None:
    array = np.zeros((2, 3), dtype_of(kind, np))
    tensor = to_torch(array)
    tensor.fill_(2.0)
    assert tensor.dtype == getattr(torch, kind) and (to_float64(array) == 2).all()
