"""Runs a learner's kernel on the machine: numpy in, numpy out, without torch, whose import takes seconds."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gpuless
from gpuless import machine
from gpuless.base.expressions import evaluate_int
from gpuless.compile import nvrtc
from gpuless.counts.counters import Launched
from gpuless.session import require_fit
from rung.dtypes import ELEMENTS, Dtype
from rung.errors import EmulatorFault, RungError
from rung.operation import Operand, Values
from rung.rungs.arguments import Arguments, Typed
from rung.rungs.cuda import CudaRung

MARGIN = 1 << 12  # bytes on either side of a tensor, which no kernel may touch
UNSET = {1: 0xA5, 2: 0xFDA5, 4: 0xFFA5A5A5, 8: 0xFFF5A5A5A5A5A5A5}  # by size: NaNs that no arithmetic results in
_FORMATS = {"i32": "i", "u32": "I", "i64": "q", "u64": "Q", "f32": "f", "f64": "d", "bool": "?", "f16": "e"}
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Tensor(Typed):
    """An operand or buffer in memory of its own."""

    name: str
    values: NDArray[Any]
    written: bool

    @property
    def region(self) -> machine.Region:
        start = self.values.ctypes.data
        return machine.Region(start, start + self.values.nbytes, self.name, self.values.itemsize, self.written)


@dataclass
class Ran:
    """What a run left behind."""

    outputs: Arrays
    unset: Mapping[str, NDArray[np.bool_]]  # of each output, which numbers nothing has written
    launched: list[Launched] = field(default_factory=list)
    unwritten: EmulatorFault | None = None  # a read of shared memory that nothing had written
    tensors: tuple[Tensor, ...] = ()


def kind_of(operand: str, dtype: Dtype) -> str:
    return ELEMENTS[dtype.stored if operand == "real" else operand]


def run(
    rung: CudaRung,
    values: Values,
    dtype: Dtype,
    given: Arrays,
    settings: gpuless.Settings,
    tuning: dict[str, int] | None = None,
    *,
    shifted: bool = False,
) -> Ran:
    """One call of the rung at this shape. With counts, requests of the first block are traced for drawings. `shifted`:
    operands begin one element after a multiple of 256 bytes, as parts of a larger tensor do."""
    operation = rung.operation
    names = rung.names(values, dtype, tuning)
    build = rung.build(values, dtype, tuning)
    nvrtc.compile_cubin(build.with_lines, machine.ARCH)
    bound = (o for o in operation.operands if o.name in rung.operand_names and (o.written or o.name in given))
    tensors = {o.name: _tensor(o, values, dtype, given, shifted) for o in bound}
    buffers = {
        name: _array(name, tuple(evaluate_int(s, names, name) for s in b.shape), kind_of(b.dtype, dtype), written=True)
        for name, b in rung.header.buffers.items()
    }
    for name in (*rung.header.zeroed, *(n for n, b in rung.header.buffers.items() if b.zero or b.zero_once)):
        (tensors | buffers)[name].values[...] = 0
    passed = Arguments(rung, tensors, buffers, dtype)  # type: ignore[arg-type]
    variables = machine.Variables(nvrtc.compile_cubin(build.with_lines, machine.ARCH).path.read_bytes())
    every = (*tensors.values(), *buffers.values())
    regions = [t.region for t in every if t.values.nbytes]
    ran = Ran({}, {}, tensors=every)
    calls = list(rung.calls(passed, names))
    session = gpuless.current()
    session.unwritten = None
    with session.recorded() as ran.launched:
        for kernel, config, arguments in calls:
            program = machine.program(build, kernel)
            of = program.resources
            require_fit(program.kernel, machine.ARCH, config, of.static_shared, of.registers)
            if any(c.pdl for _, c, _ in calls):
                session.expect_dependent()
            packed = [_packed(*a) for a in arguments]
            session.execute(program, config, variables, packed, regions, settings=settings)
            ran.unwritten = ran.unwritten or session.unwritten
    outputs = [o.name for o in operation.operands if o.written and o.name in tensors]
    ran.outputs = {name: tensors[name].values for name in outputs}
    ran.unset = {name: _unset(array) for name, array in ran.outputs.items()}
    return ran


def _tensor(operand: Operand, values: Values, dtype: Dtype, given: Arrays, shifted: bool) -> Tensor:
    kind = kind_of(operand.dtype, dtype)
    tensor = _array(operand.name, operand.size(values), kind, written=operand.written, shifted=shifted)
    if operand.name in given:
        tensor.values[...] = given[operand.name]
    return tensor


def _array(name: str, shape: Sequence[int], kind: str, *, written: bool, shifted: bool = False) -> Tensor:
    """An array of unset numbers, at a multiple of 256 bytes or one element further, between margins."""
    size = math.prod(shape) * np.dtype(kind).itemsize
    memory = np.zeros(size + 2 * MARGIN, np.uint8)
    first = MARGIN + -(memory.ctypes.data + MARGIN) % 256 + (np.dtype(kind).itemsize if shifted else 0)
    values = memory[first : first + size].view(kind).reshape(shape)
    values.view(f"u{values.itemsize}")[...] = UNSET[values.itemsize]
    return Tensor(f"torch.{kind}", name, values, written)


def _unset(array: NDArray[Any]) -> NDArray[np.bool_]:
    """Which numbers still have the bits from before the run."""
    bits = np.ascontiguousarray(array).view(f"u{array.itemsize}")
    return np.asarray(bits == UNSET[array.itemsize])


def _packed(kind: str, value: Any) -> ctypes.Array[ctypes.c_char]:
    if kind == "pointer":
        return machine.aligned(struct.pack("P", 0 if value is None else value.values.ctypes.data), 64)
    if kind not in _FORMATS:
        raise RungError(f"a parameter of kind {kind} is not passed in the course; take a pointer or a number.")
    return machine.aligned(struct.pack(_FORMATS[kind], value), 64)
