"""A `.py` file as a rung: Triton kernels, or Python that drives several launches."""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections import ChainMap
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial, reduce
from pathlib import Path
from types import ModuleType
from typing import Any

from gpuless.base.expressions import evaluate
from rung.errors import RungError
from rung.lazy import torch
from rung.operation import Operation
from rung.rungs import python_module
from rung.rungs.base import Call, Device, Prepared, Rung, device_facts
from rung.rungs.reached import Imported
from rung.rungs.words import SHAPES

_NUMBER = re.compile(r"(\w+)\[0\]")  # an operand that a function takes as one number


class PythonRung(Rung):
    """A `.py` file: Triton kernels, or Python that drives several launches."""

    takes_torch = True
    kind = "python"
    mend = "write a function run that takes the operands by name"

    def __init__(self, operation: Operation, path: Path, table: dict[str, Any] | None = None) -> None:
        self.facts = facts = python_module.read_facts(path, operation, table)
        super().__init__(operation, path.stem, path, facts.header)
        meant = facts.entry.meaning.values() if facts.entry else ()
        self.operation = self.operation.with_numbers({m[1]: None for one in meant if (m := _NUMBER.fullmatch(one))})
        if facts.triton:
            self.kind = "triton"

    @property
    def source(self) -> str:
        return self.facts.source

    @property
    def imported(self) -> Collection[Imported]:
        return self.facts.modules.values()

    @property
    def foreign(self) -> bool:
        return self.guessed or self.facts.entry is not None

    @property
    def declared(self) -> bool:
        return self.facts.declared

    @cached_property
    def binds(self) -> frozenset[str]:
        operands = {o.name for o in self.operation.operands}
        entry = self.facts.entry
        meant = (entry.meaning.get(name, name) if entry else name for name in self.facts.parameters)
        named = {_NUMBER.sub(r"\1", one) for one in meant}
        return frozenset(named & operands | {*(entry.returns if entry else ())})

    def load(self, device: Device) -> ModuleType:
        """The module itself, as Triton compiles it for a GPU that is not there, if there is none."""
        assert self.path is not None
        return python_module.load(self.path, self.facts, emulated=device != "cuda")

    def bound(self, call: Call) -> Prepared:
        entry = self.facts.entry
        run: Any = reduce(getattr, entry.name.split(".") if entry else ["run"], self.load(call.device))
        arguments = self.arguments(call)
        results = [name for name in entry.returns if name in call.tensors] if entry else []
        if isinstance(run, type):
            run = partial(_of_a_module, run)
        by_place = isinstance(getattr(run, "__self__", None), type)  # torch.autograd.Function.apply

        def returned_by(given: dict[str, Any]) -> Any:
            with self._gpu(call.device):
                return run(*given.values()) if by_place else run(**given)

        def zeroed_run() -> None:
            nonlocal arguments
            for zero in call.zeroed:
                zero()
            try:
                returned = returned_by(arguments)
            except RungError:
                raise
            except Exception:  # it may take rows and columns only
                deep = {n for n, v in arguments.items() if isinstance(v, torch.Tensor) and v.ndim > 2}
                if not (entry and deep):
                    raise
                rows = {n: _rows_of(v) if n in deep else v for n, v in arguments.items()}
                returned, arguments = returned_by(rows), rows
            made = returned if isinstance(returned, tuple) else (returned,)
            if len(made) > len(results):  # what it was given is no result
                made = tuple(value for value in made if not _is_given(value, arguments))
            for name, value in zip(results, made, strict=False):
                if value is not None:
                    _deliver(value, call.tensors[name], arguments)

        return Prepared(self, zeroed_run, call.tuning, buffers=call.buffers)

    def _gpu(self, device: Device) -> AbstractContextManager[None]:
        """What the file's own code sees: a GPU, whose kernels are Triton's, where there is none."""
        if not (self.facts.triton or "triton" in sys.modules):  # a file that it imports may use it
            return nullcontext()
        from rung.cuda import triton

        return triton.explained() if device == "cuda" else triton.enabled(device_facts(device)[1])

    def arguments(self, call: Call) -> dict[str, Any]:
        """The arguments of `run`, by name."""
        entry = self.facts.entry
        flat = {n: _rows_of(call.tensors[n]) for n in entry.flat if n in call.tensors} if entry else {}
        shapes = {name: call.tensors[of].shape for name, of in SHAPES.items() if of in call.tensors}
        known = ChainMap[str, Any](flat, call.tensors, call.buffers, {"dtype": call.dtype.name}, shapes, call.names)
        nullable = {o.name: None for o in self.operation.operands if o.nullable}
        arguments: dict[str, Any] = {}
        for name, required in self.facts.parameters.items():
            meant = entry.meaning.get(name, name) if entry else name
            if meant in known or meant in nullable:
                arguments[name] = known.get(meant)
            elif number := _NUMBER.fullmatch(meant):
                arguments[name] = float(call.tensors[number[1]].flatten()[0])
            elif entry and name in entry.meaning:  # calculated from sizes
                arguments[name] = evaluate(meant, call.names)
            elif required:
                available = ", ".join([*call.tensors, *call.buffers, *(n for n in call.names if "_stride_" not in n)])
                raise RungError(f"{self.path}: run() takes {name!r}, which is not known; there are {available}.")
        return arguments


def _rows_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as rows and columns; numbers in a line make several rows, as many as their least factor."""
    if tensor.ndim > 1:
        return tensor.flatten(0, -2)
    numbers = tensor.numel()
    return tensor.view(next((n for n in range(2, math.isqrt(numbers) + 1) if numbers % n == 0), numbers), -1)


def _of_a_module(kind: type, **arguments: Any) -> Any:
    """The result of a torch module that is made with what it takes, and whose own parameters are those given."""
    made = {name: arguments.pop(name) for name in inspect.signature(kind).parameters if name in arguments}
    module = kind(**made)
    for name in [name for name in arguments if name in module._parameters]:
        module._parameters[name] = torch.nn.Parameter(arguments.pop(name), requires_grad=False)
    return module(**arguments)


def _is_given(value: object, arguments: dict[str, Any]) -> bool:
    """Whether it is a tensor in an argument's memory."""
    if not isinstance(value, torch.Tensor):
        return False
    given = [a.untyped_storage().data_ptr() for a in arguments.values() if isinstance(a, torch.Tensor)]
    return value.untyped_storage().data_ptr() in given


def _deliver(value: torch.Tensor, to: torch.Tensor, arguments: dict[str, Any]) -> None:
    """Copies a result; of memory that the function itself has filled, this is none of its computation."""
    own = value.is_contiguous() and not _is_given(value, arguments)
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes() if own else nullcontext():
        to.copy_(value.reshape(to.shape))
