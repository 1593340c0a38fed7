"""Every ladder's operation on your own tensors: `rung.ops.layernorm(x, weight, bias)`. An operation takes its inputs by
name or in the order of its operands, derives its dims from their shapes, allocates its outputs, and launches on the
current stream. It is also a `torch.library` operator (`torch.ops.rung.layernorm`), so that fake tensors,
`torch.compile` and `opcheck` support it. `rung` selects the implementation: "best", a number, a name, a path to a file,
or a library's name. On the CPU "best" is torch's own call, and a rung's kernel runs on the emulator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from gpuless.base.expressions import Number, evaluate
from rung.dtypes import Dtype, element
from rung.dtypes import dtype as dtype_named
from rung.errors import RungError
from rung.operation import Operand, Operation, Tensors, Values
from rung.rungs import catalogue, tunings
from rung.rungs.base import Device, Rung
from rung.rungs.library import LibraryRung

NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
NO_OPERATOR = "decode"  # a whole model's step with its cache belongs to the engine and is not an operator


@dataclass(frozen=True)
class Call:
    """One call, its tensors in the operation's own shapes."""

    operation: Operation
    tensors: Tensors  # inputs, folded to the operands' ranks
    values: Values
    dtype: Dtype
    leading: dict[str, tuple[int, ...]]  # a folded leading dimension -> the sizes that the caller sees in its place

    def seen(self, operand: Operand) -> tuple[int, ...]:
        """An output's shape as the caller expects it, given the leading dimensions of the inputs."""
        shape = operand.size(self.values)
        place = 0
        front: tuple[int, ...] = ()
        while place < len(operand.shape) and (dim := operand.shape[place]) in self.leading:
            front += self.leading[str(dim)]
            place += 1
        return front + shape[place:]


class Operator:
    """An operation of a ladder, callable on tensors."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        inputs = [o for o in operation.operands if o.role != "out" and o.view_of is o.copy_of is None]
        self.inputs = tuple(sorted(inputs, key=lambda o: o.optional))  # required ones come first
        self.views = tuple(o for o in operation.operands if o.view_of is not None)
        self.outputs = tuple(o for o in operation.operands if o.role == "out" and o.copy_of is None)
        self.free = tuple(d for d in operation.dims if not _inferable(operation, d))
        self.__name__ = operation.name
        self.__doc__ = self._documentation()

    def __repr__(self) -> str:
        return f"<rung.ops.{self.operation.name}: {self.operation.summary}>"

    def __call__(
        self,
        *tensors: torch.Tensor,
        rung: str | int | Path = "best",
        out: torch.Tensor | None = None,
        also: Sequence[str] = (),
        tf32: bool = False,
        **named: Any,
    ) -> Any:
        """Compute. `out` receives the result; `also` names optional outputs, which are then returned as well.

        With `also` the result is a tuple: the required outputs in the operation's order, then those named.
        """
        given = self._by_name(tensors, named)
        outputs = self._outputs(also)
        scalars = {k: v for k, v in named.items() if k not in given}
        self._refuse_unknown(scalars)
        scalars = {**self.operation.alone, **scalars}
        if out is not None:
            return self._into(out, given, scalars, str(rung), outputs, tf32)
        operator = getattr(torch.ops.rung, self.operation.name)
        results = operator(*self._flat(given), list(scalars), [float(v) for v in scalars.values()], str(rung),
                           [o.name for o in outputs], tf32)  # fmt: skip
        return results[0] if len(results) == 1 else tuple(results)

    # ---- arguments ----

    def _by_name(self, tensors: Sequence[torch.Tensor], named: Mapping[str, Any]) -> Tensors:
        places = [o.name for o in (*self.inputs, *self.views)]
        if len(tensors) > len(places):
            given_tensors = f"{len(places)} tensors ({', '.join(places)})"
            raise RungError(f"{self.operation.name} takes {given_tensors}, not {len(tensors)}.")
        given = dict(zip(places, tensors, strict=False))
        for name in places:
            if named.get(name) is not None:
                if name in given:
                    raise RungError(f"{self.operation.name} got {name} twice.")
                given[name] = named[name]
        for name, tensor in given.items():
            if not isinstance(tensor, torch.Tensor):
                raise RungError(f"{self.operation.name} takes a tensor as {name}, not {type(tensor).__name__}.")
        return given

    def _outputs(self, also: Sequence[str]) -> list[Operand]:
        known = {o.name: o for o in self.outputs if o.optional}
        for name in also:
            if name not in known:
                available = ", ".join(known) or "none"
                raise RungError(f"{self.operation.name} has no optional output {name!r}; it has {available}.")
        return [*(o for o in self.outputs if not o.optional), *(known[n] for n in also)]

    def _refuse_unknown(self, scalars: Mapping[str, Any]) -> None:
        known = [*self.operation.scalars, *self.operation.dims]
        for name, value in scalars.items():
            if name in [o.name for o in (*self.inputs, *self.views)]:
                raise RungError(f"{self.operation.name} takes a tensor as {name}, not None twice.")
            if name not in known:
                raise RungError(f"{self.operation.name} has no argument {name!r}; it has {', '.join(known)}.")
            if not isinstance(value, (int, float)):
                raise RungError(f"{self.operation.name} takes a number as {name}, not {type(value).__name__}.")

    def _flat(self, given: Tensors) -> list[torch.Tensor | None]:
        return [given.get(o.name) for o in (*self.inputs, *self.views)]

    # ---- one call ----

    def _call(self, given: Tensors, scalars: Mapping[str, float], tf32: bool) -> Call:
        name = self.operation.name
        missing = [o.name for o in self.inputs if o.name not in given and not o.optional and not self._view(o, given)]
        if missing:
            raise RungError(f"{name} needs the tensor {missing[0]}.")
        places = {t.device for t in given.values()}
        if len(places) > 1:
            raise RungError(f"{name} takes tensors of one device, not of {', '.join(sorted(map(str, places)))}.")
        dtype = self._dtype(given, tf32)
        leading: dict[str, tuple[int, ...]] = {}
        folded = {o.name: _fold(self.operation, o, given[o.name], leading) for o in self.inputs if o.name in given}
        sizes = {o.name: tuple(folded[o.name].shape) for o in self.inputs if o.name in folded}
        sizes |= {o.name: tuple(given[o.name].shape) for o in self.views if o.name in given}
        values = self.operation.complete(_dims(self.operation, sizes, scalars))
        for operand in (*self.inputs, *self.views):
            if operand.name in sizes and operand.size(values) != sizes[operand.name]:
                raise RungError(
                    f"{name}: {operand.name} has the shape {list(given[operand.name].shape)}, and "
                    f"{list(operand.size(values))} = ({', '.join(map(str, operand.shape))}) is meant."
                )
        self._pack_views(given, folded, values, dtype)
        return Call(self.operation, folded, values, dtype, leading)

    def _view(self, operand: Operand, given: Tensors) -> bool:
        parts = [v.name for v in self.views if v.view_of == operand.name]
        return bool(parts) and all(part in given for part in parts)

    def _pack_views(self, given: Tensors, folded: Tensors, values: Values, dtype: Dtype) -> None:
        """Parts that were passed separately (q, k, v) are copied into the packed operand (qkv)."""
        for whole in {v.view_of for v in self.views if v.name in given}:
            assert whole is not None
            operand = self.operation.operand(whole)
            example = given[next(v.name for v in self.views if v.view_of == whole)]
            folded[whole] = example.new_empty(operand.size(values), dtype=element(operand.dtype, dtype))
            for view in self.views:
                if view.view_of == whole:
                    assert view.view is not None
                    view.view(folded[whole], values).copy_(given[view.name])
        for view in self.views:
            if view.view_of in folded:
                assert view.view is not None
                folded[view.name] = view.view(folded[view.view_of], values)

    def _dtype(self, given: Tensors, tf32: bool) -> Dtype:
        name = self.operation.name
        operands = [o for o in (*self.inputs, *self.views) if o.name in given]
        real = {o.name: given[o.name].dtype for o in operands if o.dtype == "real"}
        kinds = set(real.values())
        if len(kinds) > 1:
            found = ", ".join(f"{n} {str(k).removeprefix('torch.')}" for n, k in real.items())
            raise RungError(f"{name} takes tensors of one dtype, not {found}.")
        kind = kinds.pop() if kinds else torch.float32
        if kind not in NAMES:
            raise RungError(f"{name} takes float32, float16 and bfloat16, not {str(kind).removeprefix('torch.')}.")
        dtype = dtype_named("tf32" if tf32 and kind == torch.float32 else NAMES[kind])
        for o in operands:
            actual, expected = given[o.name].dtype, element(o.dtype, dtype)
            if o.dtype != "real" and actual != expected:
                raise RungError(f"{name} takes {o.name} as {expected}, not {actual}.".replace("torch.", ""))
        return dtype

    def compute(
        self, given: Tensors, scalars: Mapping[str, float], which: str, outputs: Sequence[Operand], tf32: bool
    ) -> list[torch.Tensor]:
        """Allocate the outputs and run."""
        call = self._call(given, scalars, tf32)
        made = [self._empty(call, o) for o in outputs]
        self._run(call, dict(zip([o.name for o in outputs], made, strict=True)), which)
        return [t.view(call.seen(o)) for t, o in zip(made, outputs, strict=True)]

    def fake(
        self, given: Tensors, scalars: Mapping[str, float], outputs: Sequence[Operand], tf32: bool
    ) -> list[torch.Tensor]:
        """Shapes and dtypes of the outputs, nothing computed."""
        call = self._call(given, scalars, tf32)
        return [self._empty(call, o).view(call.seen(o)) for o in outputs]

    def _into(
        self, out: torch.Tensor, given: Tensors, scalars: Mapping[str, float], which: str, outputs: Sequence[Operand],
        tf32: bool,
    ) -> Any:  # fmt: skip
        call = self._call(given, scalars, tf32)
        first, *rest = outputs
        shape = call.seen(first)
        if tuple(out.shape) != shape or out.dtype != element(first.dtype, call.dtype) or not out.is_contiguous():
            of = self.operation.name
            raise RungError(f"{of}: `out` must be contiguous, {list(shape)}, and of the inputs' dtype.")
        made = {first.name: out.view(first.size(call.values)), **{o.name: self._empty(call, o) for o in rest}}
        self._run(call, made, which)
        others = [made[o.name].view(call.seen(o)) for o in rest]
        return (out, *others) if others else out

    def _empty(self, call: Call, operand: Operand) -> torch.Tensor:
        example: torch.Tensor = next(iter(call.tensors.values()))
        return example.new_empty(operand.size(call.values), dtype=element(operand.dtype, call.dtype))

    def _run(self, call: Call, outputs: Tensors, which: str) -> None:
        on_gpu = next(iter(call.tensors.values())).is_cuda
        tensors = {**call.tensors, **outputs}
        rung = choose(call.operation, tensors, call.values, call.dtype, which, on_gpu)
        device: Device = "cuda" if on_gpu else ("cpu" if isinstance(rung, LibraryRung) else "emulator")
        for operand in call.operation.operands:  # an output that the rung writes without being requested
            if operand.role == "out" and operand.name in rung.binds and operand.name not in tensors:
                tensors[operand.name] = self._empty(call, operand)
        silent = [n for n in outputs if n not in rung.binds]
        if silent:
            raise RungError(f"{rung.full_name} does not return {silent[0]}; name a rung that does, or leave it out.")
        bound = {n: t for n, t in tensors.items() if n in rung.binds}
        tuning = tunings.best(rung, call.values, call.dtype.name) if on_gpu else None
        rung.prepare(bound, call.values, call.dtype, device=device, tuning=tuning).run()

    def _documentation(self) -> str:
        o = self.operation
        tensors = ", ".join(
            f"{t.name} ({', '.join(map(str, t.shape))}){' or None' if t.optional else ''}" for t in self.inputs
        )
        parts = [o.summary, f"Tensors: {tensors}."]
        if self.views:
            whole = self.views[0].view_of
            parts.append(f"In place of {whole}, {', '.join(v.name for v in self.views)} may be given, each "
                         f"({', '.join(map(str, self.views[0].shape))}); they are copied into one.")  # fmt: skip
        if self.free:
            parts.append(f"Dims to be given by name: {', '.join(self.free)}.")
        parts.append("Leading dimensions may be missing (they are 1) or more than these (they are merged).")
        if o.scalars:
            parts.append("Numbers: " + ", ".join(f"{n} = {v}" for n, v in {**o.scalars, **o.alone}.items()) + ".")
        optional = [t.name for t in self.outputs if t.optional]
        if optional:
            parts.append(f"Further outputs (`also=`): {', '.join(optional)}.")
        return "\n\n".join(parts)


def choose(operation: Operation, tensors: Tensors, values: Values, dtype: Dtype, which: str, on_gpu: bool) -> Rung:
    """The rung that `which` selects; "best" is the last of the ladder that supports this call, on a CPU torch's own."""
    path = Path(which)
    if path.suffix in (".cu", ".py"):
        return catalogue.rung_from_file(operation, path)
    if which != "best":
        return catalogue.find(f"{operation.name}/{which}")
    known = _operands(operation)
    inputs = {n for n, o in known.items() if o.optional and o.role != "out" and n in tensors}
    outputs = {n for n, o in known.items() if o.optional and o.role == "out" and n in tensors}
    device: Device = "cuda" if on_gpu else "emulator"
    ladder = list(catalogue.rungs(operation.name))
    libraries = [r for r in ladder if isinstance(r, LibraryRung)]
    kernels = [r for r in reversed(ladder) if not isinstance(r, LibraryRung)]
    for rung in [*kernels, *libraries] if on_gpu else [*libraries, *kernels]:
        if rung.emulate and not on_gpu:
            continue
        extra = {n for n in rung.binds if known[n].optional and known[n].role != "out"}
        nullable = {n for n in extra if known[n].nullable}
        if extra - nullable - inputs or inputs - rung.binds or outputs - rung.binds:
            continue  # it computes something else
        if rung.refusal(values, dtype, None, tensors, device) is None:
            return rung
    name = operation.name
    raise RungError(f"no rung of {name} takes this call in {dtype.name}; `rung list {name}` shows them.")


def _operands(operation: Operation) -> dict[str, Operand]:
    return {o.name: o for o in operation.operands}


def _inferable(operation: Operation, dim: str) -> bool:
    known = set(operation.inverse)
    for operand in operation.operands:
        if operand.role != "out" and operand.view_of is None and not operand.optional:
            known |= {str(s) for s in operand.shape if str(s).isidentifier()}
            known |= {d for d in operation.dims for s in operand.shape if d in str(s).split()}
    return dim in known


def _fold(
    operation: Operation, operand: Operand, tensor: torch.Tensor, leading: dict[str, tuple[int, ...]]
) -> torch.Tensor:
    """The tensor at the operand's rank: missing leading dimensions are 1, surplus ones are merged."""
    rank = len(operand.shape)
    names = [str(s) for s in operand.shape]
    if tensor.ndim == rank:
        return tensor
    if tensor.ndim < rank:
        missing = rank - tensor.ndim
        for dim in names[:missing]:
            leading[dim] = ()
        return tensor.view((1,) * missing + tuple(tensor.shape))
    extra = tensor.ndim - rank
    leading[names[0]] = tuple(tensor.shape[: extra + 1])
    try:
        return tensor.view((math.prod(tensor.shape[: extra + 1]), *tensor.shape[extra + 1 :]))
    except RuntimeError:
        raise RungError(
            f"{operation.name}: the leading dimensions of {operand.name} lie too far apart to be read as one; "
            "use its contiguous()."
        ) from None


def _dims(operation: Operation, sizes: Mapping[str, tuple[int, ...]], scalars: Mapping[str, float]) -> Values:
    """The dims that follow from the shapes, with the given scalars."""
    values: Values = {n: (int(v) if float(v).is_integer() else v) for n, v in scalars.items()}
    for name, shape in sizes.items():
        operand = operation.operand(name)
        if len(shape) != len(operand.shape):
            rank = len(operand.shape)
            raise RungError(f"{operation.name}: {name} has {len(shape)} dimensions, but {rank} are expected.")
        for dim, size in zip(operand.shape, shape, strict=True):
            if isinstance(dim, str) and (dim in operation.dims or dim in operation.derived):
                values.setdefault(dim, size)
    for name, shape in sizes.items():
        for dim, size in zip(operation.operand(name).shape, shape, strict=True):
            unknown = [d for d in operation.dims if isinstance(dim, str) and d in dim.split() and d not in values]
            if len(unknown) == 1:
                _solve(str(dim), unknown[0], size, values)
    for name, expression in operation.inverse.items():
        if name not in values:
            try:
                values[name] = evaluate(expression, values)
            except RungError:
                continue
    return {n: v for n, v in values.items() if n not in operation.derived}


def _solve(expression: str, unknown: str, size: int, values: Values) -> None:
    """Linear in its one unknown, as `3 * C` is."""
    at_one = evaluate(expression, {**values, unknown: 1})
    slope = evaluate(expression, {**values, unknown: 2}) - at_one
    if slope and (size - at_one) % slope == 0:
        values[unknown] = int((size - at_one) / slope) + 1


# ---------------------------------------------------------------- torch's operators


def _register(operator: Operator) -> None:
    """`torch.ops.rung.NAME(tensors..., names, numbers, rung, outputs, tf32) -> Tensor[]`, with its fake."""
    operation = operator.operation
    places = (*operator.inputs, *operator.views)
    arguments = ", ".join(f"Tensor? {o.name}" for o in places)
    written = [o for o in operator.inputs if o.role == "inout"]
    if written:  # a state that is changed in place would need another kind of operator
        return
    schema = f"({arguments}, str[] names, float[] numbers, str rung, str[] outputs, bool tf32) -> Tensor[]"

    def sorted_out(arguments: Sequence[Any]) -> tuple[Tensors, dict[str, Number], str, list[Operand], bool]:
        tensors = {o.name: t for o, t in zip(places, arguments, strict=False) if t is not None}
        names, numbers, which, outputs, tf32 = arguments[len(places) :]
        requested = [operation.operand(n) for n in outputs]
        return tensors, dict(zip(names, numbers, strict=True)), which, requested, tf32

    def run(*arguments: Any) -> list[torch.Tensor]:
        tensors, scalars, which, requested, tf32 = sorted_out(arguments)
        return operator.compute(tensors, scalars, which, requested, tf32)

    def fake(*arguments: Any) -> list[torch.Tensor]:
        tensors, scalars, _, requested, tf32 = sorted_out(arguments)
        return operator.fake(tensors, scalars, requested, tf32)

    made = torch.library.custom_op(f"rung::{operation.name}", run, mutates_args=(), schema=schema)
    made.register_fake(fake)


@cache
def _operators() -> dict[str, Operator]:
    found = {name: Operator(of) for name, of in catalogue.operations().items() if name != NO_OPERATOR}
    for operator in found.values():
        _register(operator)
    return {n: o for n, o in found.items() if not any(i.role == "inout" for i in o.inputs)}


def __getattr__(name: str) -> Callable[..., Any]:
    operators = _operators() if not name.startswith("_") else {}
    if name not in operators:
        raise AttributeError(f"rung.ops has no operation {name!r}; it has {', '.join(operators)}")
    return operators[name]


def __dir__() -> list[str]:
    return sorted(_operators())
