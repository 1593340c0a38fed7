"""A library call of an operation as one more rung of its ladder."""

from __future__ import annotations

import inspect
from functools import cached_property
from typing import Any

from rung.lazy import torch
from rung.operation import Library, Operation, Tensors
from rung.rungs.base import Call, Prepared, Rung
from rung.rungs.header import Header, Model


class LibraryRung(Rung):
    """A library call of `operation.py`, as one more rung of the ladder."""

    takes_torch = True
    kind = "library"

    def __init__(self, operation: Operation, library: Library) -> None:
        idea = library.note or f"The {library.name} call that a user would make."
        emulate = "the library call needs CUDA." if library.where == "cuda" else ""
        described = Header(
            idea, dtypes=library.dtypes, products=library.products, needs=library.needs, emulate=emulate,
            model=Model(dict(library.serves)),
        )  # fmt: skip
        super().__init__(operation, library.name, None, described)
        self.library = library

    @property
    def source(self) -> str:
        return inspect.getsource(self.library.run)

    @cached_property
    def binds(self) -> frozenset[str]:
        operands = {o.name for o in self.operation.operands}
        accepted = set(inspect.signature(self.library.run).parameters)
        # A library that returns its result does not take it as an argument: the plain output is always bound.
        return frozenset((accepted & operands) | {o for o in self.operation.required if _is_output(self.operation, o)})

    def bound(self, call: Call) -> Prepared:
        library, tensors = self.library.run, call.tensors
        available: dict[str, Any] = {**call.names, **tensors, "dtype": call.dtype.name}
        arguments: dict[str, Any] = {}
        for name, parameter in inspect.signature(library).parameters.items():
            if name in available:
                arguments[name] = available[name]
            elif parameter.default is inspect.Parameter.empty:
                arguments[name] = None

        results: Tensors = {}  # of the last call

        def bare() -> None:
            with torch.inference_mode():
                result = library(**arguments)
            if result is not None:
                results.update(result if isinstance(result, dict) else {"out": result})

        def copy_back() -> None:
            for name, tensor in results.items():
                if name in tensors and tensor.data_ptr() != tensors[name].data_ptr():
                    tensors[name].copy_(tensor)

        def run() -> None:
            bare()
            copy_back()

        return Prepared(self, run, {}, bare=bare, copy_back=copy_back)


def _is_output(operation: Operation, name: str) -> bool:
    return operation.operand(name).role == "out"
