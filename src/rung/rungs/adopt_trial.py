"""Tries proposed headers (adopt.py) on a small case on the emulator: the code is the user's, so this is a process."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

import gpuless
from gpuless.base.expressions import names_in
from rung.dtypes import Dtype
from rung.dtypes import dtype as dtype_named
from rung.errors import EmulatorFault, RungError
from rung.operation import Operation, Values
from rung.rungs.base import Rung
from rung.rungs.cuda import CudaRung
from rung.rungs.operations import operation as operation_named
from rung.rungs.python import PythonRung

WARP, SMALL, LARGE = 32, 1 << 14, 1 << 17
HEADERLESS = ("barrier", "race", "shared", "trap")  # faults that seldom come from a wrong header
LIKELIEST = 3  # headers that are run again with races, where none is right
TILED = 16  # of the likeliest, which are tried at whole tiles
PASSES = 4  # small cases, then sizes that are whole tiles of 32, 64 and 128
CONFIRMING = 4.0  # CPU seconds for further cases
MOST_SECONDS, ENDLESS = 1.0, 2  # until a launch is stopped; launches that were, until no other header is tried


def tried(answer: Connection, operation: str, file: str, tables: list[dict[str, Any]], first: int) -> None:
    """In a process of its own: sends the number of each proposal before it is tried, and what `_try` finds."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    for standard in (1, 2):
        os.dup2(quiet, standard)
    torch.set_num_threads(1)

    def tell(what: object) -> None:  # as JSON: a Python file's own code may write there as well
        answer.send_bytes(json.dumps(what).encode())

    tell(_try(operation_named(operation), Path(file), tables, first, tell))


def _try(
    of: Operation, path: Path, tables: list[dict[str, Any]], first: int, tell: Callable[[object], object]
) -> dict[str, Any] | None:
    """The first table with which the file computes the operation in all cases tried, with the outputs that must be zero
    before; `tell` gets the number of each that is tried, a table that is right in the smallest cases only, and what
    ends the likeliest one if none is right. If there is none, sizes are tried that are whole tiles, and `needs` says
    which. `right` are the shapes that were right, None if no header changes what is told next."""
    endless = 0
    python = path.suffix == ".py"
    if python:
        try:
            PythonRung(of, path, tables[0]).load("emulator")
        except RungError:  # whatever the call; it is told by whoever imports the file next
            return {"table": tables[0], "needs": [], "right": None, "wrong": None}
    for number in range(first, PASSES * len(tables)):
        tile, at = divmod(number, len(tables))
        if tile and at >= TILED:
            continue
        tell(number)
        if number == len(tables):  # none is right at plain sizes
            tell({"fault": _fault(of, path, tables[:LIKELIEST])})
        table, zeroed = tables[at], list[str]()
        try:
            rung = (PythonRung if python else CudaRung)(of, path, table)
            rung.guessed = True
            dtype = dtype_named(rung.dtypes[0])
            found = cases_right(of, rung, dtype, zeroed) if not tile else None
            needs = _multiples(of, rung, _small(of, rung, dtype)[0], dtype, zeroed, 16 << tile) if tile else []
            if found or needs:
                right, wrong = found or ([], None)
                made = table | ({"zeroed": zeroed} if zeroed else {})
                answer = {"table": made, "needs": needs, "right": right, "wrong": wrong}
                if wrong is None:
                    return answer
                tell(answer)
        except EmulatorFault as fault:
            endless += fault.kind == "deadlock"
            if fault.kind == "unsupported":  # whatever the header
                return {"table": tables[0], "needs": [], "right": [], "wrong": None}
            if endless == ENDLESS:
                tell({"fault": str(fault)})
                return None
        except Exception:  # a RungError, or one of the file's own Python; a compiler's, of another kernel
            continue
    return None


def _fault(of: Operation, path: Path, tables: list[dict[str, Any]]) -> str:
    """What ends the likeliest headers' runs, if it is hardly the header's fault; races are looked for."""
    for table in tables:
        try:
            rung = (PythonRung if path.suffix == ".py" else CudaRung)(of, path, table)
            dtype = dtype_named(rung.dtypes[0])
            with gpuless.under(check_races=True):
                _right(of, rung, _small(of, rung, dtype)[0], dtype, [])
        except EmulatorFault as fault:
            if fault.kind in HEADERLESS and (fault.kind != "race" or fault.record.get("memory") == "shared"):
                return str(fault).rstrip(".")
        except Exception:  # of a file's own Python as well
            continue
    return ""


def cases_right(
    of: Operation, rung: Rung, dtype: Dtype, zeroed: list[str]
) -> tuple[list[dict[str, Any]], dict[str, Any] | None] | None:
    """The shapes of the operation's cases at which a run is right, up to the first at which it is not; None if one of
    the two smallest is. Afterwards the smallest of rows longer than a warp and the longest rows go first: there a block
    with too many threads and a grid with a block for each row differ from others."""
    small, inner = _small(of, rung, dtype), list(of.dims)[-1]
    if not all(_right(of, rung, values, dtype, zeroed) for values in small):
        return None
    fitted = filter(None, (rung.fitted(of.complete(c.values), dtype) for c in of.cases if dtype.name in c.dtypes))
    others = sorted((v for v in fitted if _elements(of, v) <= LARGE), key=lambda v: _elements(of, v))
    longer = [v for v in others if v[inner] > WARP]
    right = [{dim: values[dim] for dim in of.dims} for values in small]
    began = time.process_time()
    for values in [*longer[:1], *sorted(longer, key=lambda v: -v[inner])[:1], *others]:
        shape = {dim: values[dim] for dim in of.dims}
        if shape in right:
            continue
        if time.process_time() - began > CONFIRMING:
            break
        try:
            if not _right(of, rung, values, dtype, list(zeroed)):
                return right, shape
        except EmulatorFault as fault:
            if fault.kind != "unfinished":
                return right, shape
        except RungError:
            return right, shape
        else:
            right.append(shape)
    return right, None


def _elements(of: Operation, values: Values) -> int:
    return math.prod(int(values[dim]) for dim in of.dims)


def _multiples(of: Operation, rung: Rung, given: Values, dtype: Dtype, zeroed: list[str], tile: int) -> list[str]:
    """Conditions on sizes with which a kernel of whole tiles is right; empty if it is not."""
    batch, *dims = of.dims
    whole = {batch: 1, **{dim: tile * factor for dim, factor in zip(dims, (2, 1, 3, 4), strict=False)}}

    def completed(dims: dict[str, int]) -> Values | None:
        with suppress(RungError):
            return of.complete({**{s: given[s] for s in of.scalars}, **dims})
        return None

    def right(dims: dict[str, int]) -> bool:
        values = completed(dims)
        if values is None:
            return True  # sizes that the operation does not have tell nothing
        try:
            return rung.refusal(values, dtype) is None and _right(of, rung, values, dtype, zeroed)
        except RungError:
            return False

    for dim in reversed(dims):  # such as heads that do not divide the channels
        if completed(whole) is None:
            whole[dim] = int(given[dim])
    if not dims or completed(whole) is None or not right(whole):
        return []
    rows = of.sizes[0]
    needs = {}
    powers = list[str]()
    for dim in dims:
        steps = [n for n in (1, 2, 4, 8, 16, 32, 64, 128) if n <= tile]
        product = dim in names_in(rows) and rows in map(str, rung.header.bind.values())
        step = next((n for n in steps if right({**whole, dim: tile * 2 + n})), 0)
        if not step:  # wrong at every other size, so also at three tiles
            if not all(right({**whole, dim: tile * n}) for n in (1, 2, 4)) or right({**whole, dim: tile * 6}):
                return []
            powers.append(f"next_pow2({dim}) == {dim}")
            continue
        needs[rows if product else dim] = step
        off = [whole | {dim: more * tile + step // 2} for more in (1, 3)]  # wrong there, right in another tile
        if step > 1 and any(completed(dims) is not None and right(dims) for dims in off):
            return []
        if not right({**whole, dim: tile + step}):
            return []
    return [*(f"{size} % {step} == 0" for size, step in needs.items() if step > 1), *powers]


def _small(of: Operation, rung: Rung, dtype: Dtype) -> list[Values]:
    """Two legal cases whose sizes are above one and differ, the smaller first; one has odd rows, if that may be."""
    completed = [of.complete(c.values) for c in of.cases]
    every = [v for v, c in zip(completed, of.cases, strict=True) if dtype.name in c.dtypes]
    fitted = list(filter(None, (rung.fitted(v, dtype) for v in every)))
    small = [v for v in fitted if _elements(of, v) <= SMALL]
    legal = [v for v in small if any(all(v[d] == one[d] for d in of.dims) for one in every)]
    if len([v for v in legal if max(v[d] for d in of.dims) > 1]) < 2:  # one number is right by any launch
        legal = fitted
    legal.sort(key=lambda v: (sum(v[d] == 1 for d in of.dims), sum(v[d] for d in of.dims)))
    if not legal:
        raise RungError("no case suits it")
    varied = [v for v in legal if len({v[d] for d in of.dims}) == len(of.dims)]
    first, odd = (varied or legal)[0], [v for v in legal if v[list(of.dims)[-1]] % 2 and v is not legal[0]]
    return [first, next(iter([*odd, *legal[:1], *legal[1:2]]))]


def _right(of: Operation, rung: Rung, values: Values, dtype: Dtype, zeroed: list[str]) -> bool:
    """Whether a run is right. An output that keeps NaN gets another run that begins with zeros: it may be read."""

    def empty(name: str, shape: tuple[int, ...], kind: torch.dtype) -> torch.Tensor:
        made = torch.from_numpy(gpuless.guarded_empty(math.prod(shape) * kind.itemsize)).view(kind).view(shape)
        return made.fill_(float("nan")) if kind.is_floating_point else made.zero_()

    wholes = {of.operand(name).view_of for name in rung.operand_names}
    names = [o.name for o in of.operands if o.name in rung.operand_names or o.name in wholes]
    tensors = rung.operation.inputs(values, dtype, 0, empty=empty, names=names)
    exact = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    for o in of.operands:
        if o.view_of is not None and o.name in exact and o.view is not None:
            exact[o.name] = o.view(exact[o.view_of], values)
    wanted = of.reference(exact, values)
    outputs = {n: tensors[n] for n in wanted if n in tensors and of.operand(n).role == "out"}
    for name in zeroed:
        outputs[name].zero_()
    prepared = rung.prepare(tensors, values, dtype, device="emulator")
    with gpuless.under(seconds=MOST_SECONDS):
        prepared.run()
    if nan := [name for name, tensor in outputs.items() if name not in zeroed and tensor.isnan().any()]:
        zeroed += nan
        for name in zeroed:
            outputs[name].zero_()
        prepared.run()

    def near(got: torch.Tensor, expected: torch.Tensor) -> bool:
        return torch.allclose(got, expected.reshape(got.shape), rtol=2e-2, atol=2e-2 * float(expected.abs().max()))

    return bool(outputs) and all(near(t.double(), wanted[name].double()) for name, t in outputs.items())

