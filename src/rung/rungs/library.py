"""A library call of an operation as one more rung of its ladder."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from rung.dtypes import Dtype
from rung.errors import RungError
from rung.lazy import torch
from rung.operation import Library, Operation, Tensors, Values
from rung.rungs.base import Device, Empty, Prepared, Rung


class LibraryRung(Rung):
    """A library call of `operation.py`, as one more rung of the ladder."""

    kind = "library"

    def __init__(self, operation: Operation, library: Library) -> None:
        super().__init__(operation, library.name, None)
        self.library = library
        self.idea = library.note or f"The {library.name} call that a user would make."
        self.dtypes = library.dtypes
        self.needs = library.needs
        if library.where == "cuda":
            self.emulate = "the library call needs CUDA."

    @property
    def source(self) -> str:
        return inspect.getsource(self.library.run)

    @cached_property
    def binds(self) -> frozenset[str]:
        operands = {o.name for o in self.operation.operands}
        taken = set(inspect.signature(self.library.run).parameters)
        # What a library returns it need not take: the plain output is always bound.
        return frozenset((taken & operands) | {o for o in self.operation.required if _is_output(self.operation, o)})

    def prepare(
        self,
        tensors: Tensors,
        values: Values,
        dtype: Dtype,
        *,
        device: Device,
        tuning: Mapping[str, int] | None = None,
        empty: Empty | None = None,
    ) -> Prepared:
        self.admit(tensors, values, dtype, tuning, device)
        if self.library.where == "cuda" and device != "cuda":
            raise RungError(f"{self.full_name} runs on a GPU only: {self.emulate}")
        call = self.library.run
        available: dict[str, Any] = {**self.names(values, dtype, tuning, tensors, device), **tensors}
        available["dtype"] = dtype.name
        arguments: dict[str, Any] = {}
        for name, parameter in inspect.signature(call).parameters.items():
            if name in available:
                arguments[name] = available[name]
            elif parameter.default is inspect.Parameter.empty:
                arguments[name] = None

        results: Tensors = {}  # of the last call

        def bare() -> None:
            with torch.inference_mode():
                result = call(**arguments)
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
