"""Arguments of a kernel's parameters: found by name, passed by C type, refused if they do not fit."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuless.base.expressions import Number, evaluate, evaluate_int
from gpuless.compile.source import Parameter
from gpuless.tensor_map import TensorMap
from rung.arrays import Array
from rung.dtypes import Dtype, name_of
from rung.errors import RungError
from rung.operation import Tensors, Values
from rung.rungs.base import Rung

if TYPE_CHECKING:
    from gpuless.launch import Argument

SCALAR_KINDS = {
    "int": "i32", "int32_t": "i32", "signed int": "i32", "unsigned int": "u32", "unsigned": "u32",
    "uint32_t": "u32", "uint": "u32", "long": "i64", "long long": "i64", "int64_t": "i64", "ptrdiff_t": "i64",
    "unsigned long": "u64", "unsigned long long": "u64", "uint64_t": "u64", "size_t": "u64",
    "float": "f32", "double": "f64", "bool": "bool", "__half": "f16", "half": "f16",
    "__nv_bfloat16": "bf16", "nv_bfloat16": "bf16",
}  # fmt: skip

POINTEES = {  # what a pointer of C points to, as an element type of rung
    **dict.fromkeys(("float", "float2", "float3", "float4"), "f32"),
    **dict.fromkeys(("__half", "half", "__half2", "half2"), "f16"),
    **dict.fromkeys(("__nv_bfloat16", "nv_bfloat16", "__nv_bfloat162", "nv_bfloat162"), "bf16"),
    **dict.fromkeys(("int", "int32_t", "unsigned int", "unsigned", "uint32_t"), "i32"),
    **dict.fromkeys(("long long", "int64_t", "long"), "i64"),
    **dict.fromkeys(("short", "unsigned short", "int16_t", "uint16_t"), "i16"),
    **dict.fromkeys(("int8_t", "signed char"), "i8"),
    **dict.fromkeys(("uint8_t", "unsigned char"), "u8"),
    "double": "f64",
}
BITS = {"f32": "i32", "f16": "i16", "bf16": "i16"}  # integers of their size
# Pointers to these may point to any element type: they are used for vector loads.
ANY_POINTEE = re.compile(r"void|char|u?int[24]|Vec\b.*|Vec16")


@dataclass(frozen=True)
class Arguments:
    """The operands and buffers of one call, to which parameters may be bound."""

    rung: Rung
    tensors: Tensors
    buffers: Tensors
    dtype: Dtype
    maps: Mapping[str, TensorMap | None] = field(default_factory=dict)

    def operand(self, name: str) -> Array:
        if name not in self.tensors:
            raise RungError(f"{self.rung.full_name} needs the operand {name!r}, which this call leaves out.")
        return self.tensors[name]

    def argument(self, parameter: Parameter, kernel: str, target: str | int | float, names: Values) -> Argument:
        """The value of one parameter, given by `target`, and how it is passed."""
        where = f"{self.rung.path}: parameter {parameter.name!r} of {kernel}"
        if parameter.pointer:
            return "pointer", self._pointer(parameter, kernel, target, where)
        if parameter.ctype == "TensorMap":
            return "tensor_map", self._map(parameter, target, where)
        kind = SCALAR_KINDS.get(self.dtype.ctype if parameter.ctype == "Real" else parameter.ctype)
        if kind is None:
            raise RungError(
                f"{where} has the type {parameter.ctype!r}, which cannot be passed; use a pointer or number."
            )
        of_operand = target in self.tensors and target not in names
        if isinstance(target, str) and target == parameter.name and not (target in names or of_operand):
            values = [n for n in names if "_stride_" not in n]
            mend = self._mend(parameter, kernel, values)
            raise RungError(f"{where} matches no value ({self._choices(names)}); {mend}")
        value = _number(self.tensors[str(target)], where) if of_operand else evaluate(target, names)
        if kind in ("i32", "u32", "i64", "u64") and isinstance(value, float):
            value = evaluate_int(target, names, f"parameter {parameter.name}")  # type: ignore[arg-type]
        _must_fit(kind, value, where)
        return kind, value

    def _mend(self, parameter: Parameter, kernel: str, names: list[str]) -> str:
        """The two names that are meant most probably, and the kernel's signature."""
        taken = {p.name for p in self.rung.signature(kernel)}
        near = difflib.get_close_matches(parameter.name, [n for n in names if n not in taken] or names, n=2, cutoff=0.0)
        signature = ", ".join(f"{p.ctype}{'*' if p.pointer else ''} {p.name}" for p in self.rung.signature(kernel))
        meant = " or ".join(f'"{name}"' for name in near)
        return f"map it in [bind], as in {parameter.name} = {meant}, for {kernel}({signature})."

    def _pointer(self, parameter: Parameter, kernel: str, target: str | int | float, where: str) -> Array | None:
        if target == "null":
            return None
        known = {o.name: o for o in self.rung.operation.operands}
        tensor = self.buffers.get(str(target))
        if tensor is None and target in known:
            tensor = self.tensors.get(str(target))
            if tensor is None and known[str(target)].nullable:
                return None
            if tensor is None:
                raise RungError(f"{where} needs the operand {target!r}, which this call leaves out.")
        if tensor is None:
            mend = self._mend(parameter, kernel, [*known, *self.buffers])
            raise RungError(f"{where} matches no operand ({self._choices({})}); {mend}")
        _must_point_to(parameter, tensor, self.dtype, where, moved=self.rung.operation.exact)
        return tensor

    def _map(self, parameter: Parameter, target: str | int | float, where: str) -> TensorMap | None:
        if target not in self.maps:
            known = f"there are {', '.join(self.maps)}" if self.maps else f"write [maps.{parameter.name}]"
            raise RungError(f"{where} is bound to no tensor map; {known}.")
        if not parameter.grid_constant:
            raise RungError(
                f"{where} is a copy in each thread; write const __grid_constant__ TensorMap {parameter.name}."
            )
        return self.maps[str(target)]

    def _choices(self, names: Values) -> str:
        operands = [*(o.name for o in self.rung.operation.operands), *self.buffers]
        values = [n for n in names if "_stride_" not in n]
        return ", ".join(operands) + (f"; {', '.join(values)}" if values else "")


@dataclass(frozen=True)
class Typed:
    """In place of a tensor: its element type, in torch's words."""

    dtype: str


def _number(tensor: Array, where: str) -> float:
    """What an operand holds everywhere."""
    if isinstance(tensor, Typed):
        return 0.0
    first = tensor.reshape(-1)[0]
    if not bool((tensor == first).all()):
        raise RungError(f"{where} is one number, but its operand holds several here; take a pointer.")
    return float(first)


def _must_point_to(parameter: Parameter, tensor: Array, dtype: Dtype, where: str, *, moved: bool) -> None:
    """Numbers that are only moved may be so as integers of their size."""
    ctype = dtype.ctype if parameter.ctype == "Real" else parameter.ctype
    if ANY_POINTEE.fullmatch(ctype):
        return
    pointee = POINTEES.get(ctype)
    actual = name_of(tensor.dtype)
    if pointee is None:
        raise RungError(f"{where} points to {ctype!r}, which is not known; use Real, float, int, void or a vector.")
    if pointee != actual and not (moved and pointee == BITS.get(actual)):
        raise RungError(f"{where} points to {parameter.ctype}, but the tensor holds {actual}; change one of them.")


_RANGES = {"i32": (-(2**31), 2**31), "u32": (0, 2**32), "i64": (-(2**63), 2**63), "u64": (0, 2**64)}


def _must_fit(kind: str, value: Number, where: str) -> None:
    if kind in _RANGES and not _RANGES[kind][0] <= value < _RANGES[kind][1]:
        raise RungError(f"{where} would be {value}, which its type cannot hold; use a wider one.")


def formats_of(parameters: Sequence[Parameter]) -> list[str]:
    """The formats that a kernel or function is for: a narrow one, if any pointer has it."""
    if any(p.pointer and p.ctype == "Real" for p in parameters):
        return ["f32", "f16", "bf16"]
    named = [kind for p in parameters if p.pointer and (kind := POINTEES.get(p.ctype)) in ("f32", "f16", "bf16")]
    return [next((kind for kind in named if kind != "f32"), "f32")]
