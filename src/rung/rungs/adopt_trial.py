"""Tries proposed headers (adopt.py) on a small case on the emulator: the code is the user's, so this is a process."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from rung.dtypes import Dtype
from rung.dtypes import dtype as dtype_named
from rung.errors import CompileError, RungError
from rung.operation import Operation, Values
from rung.rungs import catalogue
from rung.rungs.base import Rung
from rung.rungs.cuda import CudaRung


def _try(asked: dict[str, Any]) -> int | None:
    """The first table with which the file computes the operation on a small case."""
    of = catalogue.operation(asked["operation"])
    torch.set_num_threads(1)
    for number, table in list(enumerate(asked["tables"]))[asked["first"] :]:
        print(number, flush=True)
        try:
            rung = CudaRung(of, Path(asked["file"]), table)
            dtype = dtype_named(rung.dtypes[0])
            if all(_right(of, rung, values, dtype) for values in _small(of, rung, dtype)):
                return number
        except CompileError:  # it is told by whoever compiles the file next
            return 0
        except RungError as error:
            print(number, str(error)[:200], file=sys.stderr)
    return None


def _small(of: Operation, rung: Rung, dtype: Dtype) -> list[Values]:
    """Two legal cases whose sizes are above one and differ, the smaller first."""
    completed = [of.complete(c.values) for c in of.cases]
    every = [v for v, c in zip(completed, of.cases, strict=True) if dtype.name in c.dtypes]
    fitted = list(filter(None, (rung.fitted(v, dtype) for v in every)))
    legal = [v for v in fitted if any(all(v[d] == one[d] for d in of.dims) for one in every)] or fitted
    legal.sort(key=lambda v: (sum(v[d] == 1 for d in of.dims), sum(v[d] for d in of.dims)))
    if not legal:
        raise RungError("no case suits it")
    varied = [v for v in legal if len({v[d] for d in of.dims}) == len(of.dims)]
    return [*varied[:1], *legal[:1]] if varied else legal[:2]


def _right(of: Operation, rung: Rung, values: Values, dtype: Dtype) -> bool:
    def empty(name: str, shape: tuple[int, ...], kind: Any) -> Any:
        made = torch.empty(shape, dtype=kind)
        return made.fill_(float("nan")) if kind.is_floating_point else made.zero_()

    wholes = {of.operand(name).view_of for name in rung.operand_names}
    names = [o.name for o in of.operands if o.name in rung.operand_names or o.name in wholes]
    tensors = of.inputs(values, dtype, 0, empty=empty, names=names)
    exact = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    for o in of.operands:
        if o.view_of is not None and o.name in exact and o.view is not None:
            exact[o.name] = o.view(exact[o.view_of], values)
    wanted = of.reference(exact, values)
    rung.prepare(tensors, values, dtype, device="emulator").run()
    for name, tensor in tensors.items():
        if of.operand(name).role == "out" and name in wanted:
            expected, got = wanted[name].double(), tensor.double()
            if not torch.allclose(got, expected.reshape(got.shape), rtol=2e-2, atol=2e-2 * float(expected.abs().max())):
                return False
    return True


if __name__ == "__main__":
    print(json.dumps(_try(json.loads(sys.stdin.read()))))
