"""What wrong numbers may be instead: the operation with one thing changed, as a typical mistake changes it.

Each change is made to the operands or the scalars, and the operation's reference is computed again. A result that
equals one of these has its cause in words: "the result for causal = 0", "the result without its last 5 terms".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpuless.base.errors import UserError
from gpuless.base.expressions import Number, evaluate
from rung.arrays import Array, namespace, to_host
from rung.explain.diagnosis import Alternative
from rung.operation import Operand, Operation, Values

MOST_WORK = 3e6  # FLOPs and bytes of a case for which the reference is computed again, some dozens of times
TILES = (128, 64, 32, 16, 8, 4, 1)
Arrays = Mapping[str, Array]


def alternatives(of: Operation, values: Values, inputs: Arrays, output: str, dtype_size: int) -> Iterator[Alternative]:
    """Of an output: the results of the likely mistakes, the likeliest first. `inputs` are in float64."""
    cost = of.cost(values, dtype_size)
    if cost.flops + cost.bytes > MOST_WORK:
        return
    for text, changed, scalars in _changes(of, values, inputs):
        try:
            result = of.reference(changed, scalars).get(output)
        except (ArithmeticError, ValueError, IndexError, KeyError, RuntimeError, UserError):
            continue  # the change does not fit this operation
        if result is not None:
            yield Alternative(text, to_host(result))


def _changes(of: Operation, values: Values, inputs: Arrays) -> Iterator[tuple[str, dict[str, Array], Values]]:
    for name, number in _other_scalars(of, values):
        yield f"the result for {name} = {number:g}", dict(inputs), {**values, name: number}
    wholes = {o.name: o for o in of.operands if o.name in inputs}
    real = {n: o for n, o in wholes.items() if o.dtype == "real" and inputs[n].ndim}
    for name, operand in real.items():
        for text, array in _other_arrays(operand, inputs[name]):
            yield text, {**inputs, name: array}, values
    yield from _parts_of_the_sum(of, values, inputs, real)


def _other_scalars(of: Operation, values: Values) -> Iterator[tuple[str, Number]]:
    for name, default in of.scalars.items():
        now = values[name]
        usual = evaluate(default, values) if isinstance(default, str) else default
        for other in (usual, 1 - now if now in (0, 1) else 1, 0):
            if other != now:
                yield name, other


def _other_arrays(operand: Operand, array: Array) -> Iterator[tuple[str, Array]]:
    xp, name = namespace(array), operand.name
    if array.ndim > 1 and min(array.shape[-2:]) > 1:
        rows, columns = array.shape[-2:]
        turned = xp.swapaxes(array.reshape(*array.shape[:-2], columns, rows), -1, -2)
        shape = f" (as if it were {columns} x {rows})" if rows != columns else ""
        yield f"the result with rows and columns of {name} exchanged{shape}", turned
    if array.ndim > 1:
        for size in (32, 16):
            yield f"the result with every {size} x {size} tile of {name} transposed", _tiles_turned(array, size)
    yield f"the result without {name} (as if it were 0)", xp.zeros_like(array)
    yield f"the result with {name} as if it were 1", xp.ones_like(array)
    if operand.constant:  # as some models store it, about 0
        yield f"the result with 1 + {name} in the place of {name}", array + 1
    for axis, (dim, size) in enumerate(zip(operand.shape, array.shape, strict=False)):
        if size < 2:
            continue
        if axis < array.ndim - 1 or array.ndim == 1:
            at = tuple(slice(0, 1) if a == axis else slice(None) for a in range(array.ndim))
            yield f"the result if every index of {dim} read {name} at index 0", xp.zeros_like(array) + array[at]
        for by, where in ((-1, "after"), (1, "before")):
            yield f"the result if {name} were read one place {where} along {dim}", xp.roll(array, by, axis)


def _tiles_turned(array: Array, size: int) -> Array:
    """Rows and columns exchanged within each tile; tiles at the edges are filled up with zeros."""
    xp, rows = namespace(array), array.reshape(-1, array.shape[-1])
    down, across = (-(-n // size) for n in rows.shape)
    whole = xp.zeros((down * size, across * size), dtype=array.dtype, device=array.device)
    whole[: rows.shape[0], : rows.shape[1]] = rows
    turned = xp.swapaxes(whole.reshape(down, size, across, size), 1, 3).reshape(whole.shape)
    return turned[: rows.shape[0], : rows.shape[1]].reshape(array.shape)


def _parts_of_the_sum(
    of: Operation, values: Values, inputs: Arrays, real: Mapping[str, Operand]
) -> Iterator[tuple[str, dict[str, Array], Values]]:
    """Sums that end too early, or begin too late."""
    for dim in _summed(of):
        along = {n: [str(d) for d in o.shape].index(dim) for n, o in real.items() if dim in map(str, o.shape)}
        size = int(values.get(dim, 0))
        for tile in TILES if along and size > 1 else ():
            kept = (size - 1) // tile * tile
            if kept <= 0:
                continue
            lost = size - kept
            last_ones = f"last of the {size}" if lost == 1 else f"last {lost} of the {size}"
            for text, first, last in (
                (f"the result without the {last_ones} terms along {dim}", 0, kept),
                (f"the result of only the first {tile} of the {size} terms along {dim}", 0, tile),
                (f"the result without the first {tile} of the {size} terms along {dim}", tile, size),
            ):
                for empty in (0.0, float("-inf")):
                    cut = {n: _outside(inputs[n], axis, first, last, empty) for n, axis in along.items()}
                    yield text, {**inputs, **cut}, values


def _summed(of: Operation) -> list[str]:
    """The dimensions that the reduction names."""
    words = str(of.reduction).replace("*", " ").split()
    return [d for d in (*of.dims, *of.derived) if d in words]


def _outside(array: Array, axis: int, first: int, last: int, empty: float) -> Any:
    """The array with one number everywhere but between two indices."""
    xp = namespace(array)
    found = xp.zeros_like(array) + empty
    where = tuple(slice(first, last) if a == axis else slice(None) for a in range(array.ndim))
    found[where] = array[where]
    return found
