"""A `.py` file as a rung: Triton kernels, or Python that drives several launches."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from rung.dtypes import Dtype, element
from rung.errors import RungError
from rung.expressions import evaluate_int
from rung.lazy import torch
from rung.operation import Operation, Tensors, Values
from rung.rungs import header, python_module
from rung.rungs.base import Device, Empty, Prepared, Rung


class PythonRung(Rung):
    """A `.py` file: Triton kernels, or Python that drives several launches."""

    kind = "python"

    def __init__(self, operation: Operation, path: Path) -> None:
        super().__init__(operation, path.stem, path)
        self._facts = facts = python_module.read_facts(path)
        self.idea = facts.doc
        self.expect, self.found, self.provenance = facts.expect, facts.found, facts.provenance
        self.dtypes, self.needs, self.tune, self.emulate = (
            facts.dtypes,
            facts.needs,
            facts.tune,
            facts.emulate,
        )
        self.parent, self.leap, self.let = facts.parent, facts.leap, facts.let
        if facts.triton:
            self.kind = "triton"

    @property
    def source(self) -> str:
        return self._facts.source

    @property
    def align(self) -> header.Expression:
        return self._facts.align

    @cached_property
    def binds(self) -> frozenset[str]:
        operands = {o.name for o in self.operation.operands}
        return frozenset(self._facts.parameters) & operands

    def load(self, device: Device) -> ModuleType:
        """The module itself, with Triton's interpreter in place of its compiler when there is no GPU."""
        assert self.path is not None
        return python_module.load(self.path, interpret=device != "cuda")

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
        if self.emulate and device != "cuda":
            raise RungError(f"{self.full_name} runs on a GPU only: {self.emulate}")
        arguments, buffers = self.arguments(tensors, values, dtype, device=device, tuning=tuning, empty=empty)
        run = self.load(device).run
        return Prepared(self, lambda: run(**arguments), self.tuned(tuning), buffers=buffers)

    def arguments(
        self,
        tensors: Tensors,
        values: Values,
        dtype: Dtype,
        *,
        device: Device,
        tuning: Mapping[str, int] | None = None,
        empty: Empty | None = None,
    ) -> tuple[dict[str, Any], Tensors]:
        """What `run` is called with, by name, and the buffers among it."""
        names = self.names(values, dtype, tuning, tensors, device)
        where = next(iter(tensors.values())).device
        make: Empty = empty or (lambda _, shape, kind: torch.empty(shape, dtype=kind, device=where))
        buffers: Tensors = {}
        for name, buffer in self._facts.buffers.items():
            shape = tuple(evaluate_int(s, names, f"the size of buffer {name}") for s in buffer.shape)
            buffers[name] = make(name, shape, element(buffer.dtype, dtype))
        arguments: dict[str, Any] = {}
        for name, required in self._facts.parameters.items():
            if name in tensors:
                arguments[name] = tensors[name]
            elif name in buffers:
                arguments[name] = buffers[name]
            elif name in names:
                arguments[name] = names[name]
            elif name == "dtype":
                arguments[name] = dtype.name
            elif name in self.binds and self.operation.operand(name).nullable:
                arguments[name] = None
            elif required:
                known = ", ".join([*tensors, *buffers, *(n for n in names if "_stride_" not in n)])
                raise RungError(f"{self.path}: run() takes {name!r}, which is not known; there are {known}.")
        return arguments, buffers
