"""Runs a learner's kernel on the machine: numpy in, numpy out, without torch, whose import takes seconds."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gpuless
from gpuless import cubins, machine
from gpuless.base.expressions import Names, evaluate_int
from gpuless.compile import nvrtc
from gpuless.counts.counters import Launched
from gpuless.facts import gpus
from gpuless.facts.limits import limits
from gpuless.module import pack
from gpuless.session import require_fit
from rung.dtypes import Dtype, element_name
from rung.errors import EmulatorFault, RungError
from rung.learn.checked import checked
from rung.operation import Operand, Values
from rung.rungs import python_module
from rung.rungs.arguments import Arguments, Typed
from rung.rungs.base import Call
from rung.rungs.cuda import CudaRung
from rung.rungs.python import PythonRung

MARGIN = 1 << 12  # bytes on either side of a tensor, which no kernel may touch
UNSET = {1: 0xA5, 2: 0xFDA5, 4: 0xFFA5A5A5, 8: 0xFFF5A5A5A5A5A5A5}  # by size: NaNs that no arithmetic results in
TRITON = {"float16": "fp16", "float32": "fp32", "int32": "i32"}
Arrays = dict[str, NDArray[Any]]
Rung = CudaRung | PythonRung


@dataclass(frozen=True)
class Tensor(Typed):
    """An operand or buffer in memory of its own."""

    name: str
    values: NDArray[Any]
    written: bool

    def data_ptr(self) -> int:
        return int(self.values.ctypes.data)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

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
    blocks: int = 0  # of all launches


def run(
    rung: Rung,
    values: Values,
    dtype: Dtype,
    given: Arrays,
    settings: gpuless.Settings,
    tuning: dict[str, int] | None = None,
    *,
    shifted: int = 0,
    from_zero: bool = False,
) -> Ran:
    """One call of the rung at this shape. With counts, requests of the first block are traced for drawings. Operands
    begin `shifted` elements after a multiple of 256 bytes, as parts of a larger tensor do. Outputs hold no numbers at
    first, or zeros."""
    operation, named = rung.operation, rung.binds if isinstance(rung, PythonRung) else rung.operand_names
    names = rung.names(values, dtype, tuning)
    bound = (o for o in operation.operands if o.name in named and (o.written or o.name in given))
    tensors = {o.name: _tensor(o, values, dtype, given, shifted) for o in bound}
    for name in (o.name for o in operation.operands if o.name in tensors and o.written and from_zero):
        tensors[name].values[...] = 0
    for name in rung.header.zeroed:
        tensors[name].values[...] = 0
    ran = Ran({}, {})
    session = gpuless.current()
    session.unwritten = None
    with session.recorded() as ran.launched:
        if isinstance(rung, PythonRung):
            ran.tensors = (*tensors.values(),)
            call = Call(tensors, values, dtype, "emulator", tuning or {}, names, {}, ())
            _run_triton(rung, call, ran, settings)
            ran.unwritten = session.unwritten
        else:
            _run_cuda(rung, tensors, values, dtype, names, tuning, settings, ran)
    outputs = [o.name for o in operation.operands if o.written and o.name in tensors]
    ran.outputs = {name: tensors[name].values for name in outputs}
    ran.unset = {name: _unset(array) for name, array in ran.outputs.items()}
    return ran


def _run_cuda(
    rung: CudaRung,
    tensors: dict[str, Tensor],
    values: Values,
    dtype: Dtype,
    names: Names,
    tuning: dict[str, int] | None,
    settings: gpuless.Settings,
    ran: Ran,
) -> None:
    build = rung.build(values, dtype, tuning)
    tested, cubin = checked(build) if settings.check_races else build, None
    if tested != build:
        with contextlib.suppress(RungError):  # a test that cannot be put in
            cubin, build = nvrtc.compile_cubin(tested.with_lines, machine.ARCH), tested
    cubin = cubin or nvrtc.compile_cubin(build.with_lines, machine.ARCH)
    buffers = {
        name: _array(name, [evaluate_int(s, names, name) for s in b.shape], element_name(b.dtype, dtype), written=True)
        for name, b in rung.header.buffers.items()
    }
    for name in (n for n, b in rung.header.buffers.items() if b.zero or b.zero_once):
        buffers[name].values[...] = 0
    ran.tensors = (*tensors.values(), *buffers.values())
    variables = machine.Variables(cubin.path.read_bytes())
    regions = [t.region for t in ran.tensors if t.values.nbytes]
    calls = list(rung.calls(Arguments(rung, tensors, buffers, dtype), names))
    session = gpuless.current()
    for kernel, config, arguments in calls:
        program = machine.program(build, kernel)
        of = program.resources
        ran.blocks += math.prod(config.grid)
        require_fit(program.kernel, machine.ARCH, config, of.static_shared, of.registers)
        if any(c.pdl for _, c, _ in calls):
            session.expect_dependent()
        given = [(kind, value.values if isinstance(value, Tensor) else value) for kind, value in arguments]
        packed = [machine.aligned(pack(*one), 64) for one in given]
        session.execute(program, config, variables, packed, regions, settings=settings)
        ran.unwritten = ran.unwritten or session.unwritten


def _run_triton(rung: PythonRung, call: Call, ran: Ran, settings: gpuless.Settings) -> None:
    """Calls the file's function run, whose launches are executed as Triton has compiled them."""
    from unittest import mock  # takes as long to import as a kernel to run

    from rung.cuda import triton, triton_driver

    regions = [t.region for t in ran.tensors if t.values.nbytes]

    def launch(kernel: triton_driver.Kernel) -> None:
        ran.blocks += math.prod(kernel.config.grid)
        cubins.loaded(kernel.cubin, kernel.file).launch(
            kernel.name, kernel.config, kernel.parameters, tiles=True, regions=regions, settings=settings
        )

    of = limits(machine.ARCH)
    driver = triton_driver.Driver(launch, of, gpus.of_arch(machine.ARCH), "cpu", None)
    with triton_driver.driving(driver), triton.explained():
        from triton.runtime import jit

        def specialised(backend: Any, value: Any, *how: bool) -> tuple[Any, Any]:
            """As Triton's own function, which imports torch; but 0 and 1 are numbers like others: each combination of
            kinds is a compilation of half a second."""
            if isinstance(value, Tensor):
                return f"*{TRITON[value.values.dtype.name]}", "D" if value.data_ptr() % 16 == 0 else ""
            if type(value) is int:
                return "i32", "D" if value and value % 16 == 0 else ""
            if type(value) is float:
                return "fp32", None
            return before(backend, value, *how)  # type: ignore[no-any-return]

        before = jit.native_specialize_impl
        with mock.patch.object(jit, "native_specialize_impl", specialised):
            assert rung.path is not None
            python_module.load(rung.path, rung.facts).run(**rung.arguments(call))


def _tensor(operand: Operand, values: Values, dtype: Dtype, given: Arrays, shifted: int) -> Tensor:
    kind = element_name(operand.dtype, dtype)
    tensor = _array(operand.name, operand.size(values), kind, written=operand.written, shifted=shifted)
    if operand.name in given:
        tensor.values[...] = given[operand.name]
    return tensor


def _array(name: str, shape: Sequence[int], kind: str, *, written: bool, shifted: int = 0) -> Tensor:
    """An array of unset numbers, at a multiple of 256 bytes or some elements further, between margins."""
    size = math.prod(shape) * np.dtype(kind).itemsize
    memory = np.zeros(size + 2 * MARGIN, np.uint8)
    first = MARGIN + -(memory.ctypes.data + MARGIN) % 256 + shifted * np.dtype(kind).itemsize
    values = memory[first : first + size].view(kind).reshape(shape)
    values.view(f"u{values.itemsize}")[...] = UNSET[values.itemsize]
    return Tensor(f"torch.{kind}", name, values, written)


def _unset(array: NDArray[Any]) -> NDArray[np.bool_]:
    """Which numbers still have the bits from before the run."""
    bits = np.ascontiguousarray(array).view(f"u{array.itemsize}")
    return np.asarray(bits == UNSET[array.itemsize])
