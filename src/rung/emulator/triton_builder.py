"""Makes the builder of Triton's interpreter do what a GPU does: numbers, unloaded lanes, the order of programs, and a
record of every access for the race check.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from rung.cuda.launch import LaunchConfig
from rung.emulator import counters, module
from rung.emulator.counters import Launched
from rung.emulator.programs import ATOMIC, LOAD, STORE, Parameters, Programs
from rung.errors import TooLarge

UNLOADED = 0xFF  # each byte of a lane that no load has filled: NaN in every format of numbers, and -1 as an integer
STEPS = 2  # accesses per program, on average, of a launch that is run where their number is limited
_TF32 = 0xFFFFE000  # the bits of a float32 that tensor cores multiply in tf32
Data = np.ndarray[Any, Any]


class _Launch:
    """The running launch."""

    def __init__(self) -> None:
        self.programs: Programs | None = None  # with the race check
        self.parameters: Parameters | None = None
        self.begun = 0.0  # steps before it
        self.order: list[int] | None = None  # the programs in the order in which they run, if it is not the usual one
        self.traced: Launched | None = None  # where accesses are kept, for a drawing
        self.done = Counter[tuple[int, int]]()  # accesses of a program, by kind


_now = _Launch()


@contextlib.contextmanager
def launched(kernel: str, parameters: Parameters, *, reordered: bool) -> Iterator[None]:
    """A launch: its programs run in the ambient order if they may be `reordered`; races are refused at its end."""
    settings = module.ambient()
    _now.parameters, _now.begun = parameters, module.steps()
    _now.programs = Programs(kernel) if settings.check_races else None
    _now.order = [] if reordered and settings.order != "forward" else None
    _now.traced, _now.done = counters.programs(kernel), Counter()
    try:
        yield
        if _now.programs is not None:
            _now.programs.judge()
    finally:
        _now.programs, _now.parameters, _now.order, _now.traced = None, None, None, None


@cache
def mend() -> None:
    """Changes the interpreter's builder for the rest of the process."""
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    _mend_numbers(builder)
    _mend_memory(builder)
    _mend_order(builder)


def _mend_order(builder: Any) -> None:
    """The interpreter goes through the grid in one order; each of its steps becomes another program."""
    place, resize = builder.set_grid_idx, builder.set_grid_dim

    def set_grid_dim(self: Any, nx: Any, ny: Any, nz: Any) -> None:
        resize(self, nx, ny, nz)
        if _now.traced is not None:
            _now.traced.config = LaunchConfig((int(nx), int(ny), int(nz)), (1, 1, 1))
        most = module.ambient().programs
        if most is not None and int(nx) * int(ny) * int(nz) > most:
            raise TooLarge("has more programs than are interpreted here")
        if _now.order is not None:
            settings = module.ambient()
            _now.order = list(range(int(nx) * int(ny) * int(nz)))[::-1]
            if settings.order == "shuffled":
                random.Random(settings.seed).shuffle(_now.order)

    def set_grid_idx(self: Any, x: Any, y: Any, z: Any) -> None:
        if _now.order:
            _, height, depth = map(int, self.grid_dim)
            step = _now.order[(x * height + y) * depth + z]
            x, y, z = step // (height * depth), step // depth % height, step % depth
        place(self, x, y, z)

    builder.set_grid_dim, builder.set_grid_idx = set_grid_dim, set_grid_idx


def _mend_memory(builder: Any) -> None:
    from triton.runtime import interpreter

    load, store, atomic = builder.create_masked_load, builder.create_masked_store, builder.create_atomic_rmw
    swap = builder.create_atomic_cas

    def number(self: Any) -> int:
        (x, y, z), (width, height, _) = self.grid_idx, self.grid_dim
        return int(x + width * (y + height * z))

    def width(ptrs: Any) -> int:
        return max(1, int(ptrs.get_element_ty().primitive_bitwidth) // 8)

    def note(self: Any, kind: int, ptrs: Any, mask: Any, value: Any = None) -> None:
        module.note_steps(ptrs.data.size)
        most = module.ambient().programs
        if most is not None and module.steps() - _now.begun > most * STEPS * module.STEP:
            raise TooLarge("takes more steps than are interpreted here")
        if _now.parameters is not None:
            place = tuple(map(int, self.grid_idx))
            _now.parameters.require_inside(kind, width(ptrs), ptrs.data, mask, place)
        if _now.programs is not None:
            _now.programs.note(kind, ptrs.data, mask, number(self), value)
        if _now.traced is not None and kind in (LOAD, STORE) and (kind == STORE or number(self) == 0):
            which = number(self), kind
            at = dict(enumerate(map(int, ptrs.data[np.broadcast_to(mask, ptrs.data.shape)])))
            access = counters.Access("", 0, "global", "read" if kind == LOAD else "write", "plain")
            _now.traced.trace.append(counters.Request(access, which[0], _now.done[which], width(ptrs), at))
            _now.done[which] += 1

    def as_handle(mask: Any) -> Any:  # of a block pointer it is an array
        import triton.language as tl

        return interpreter.TensorHandle(mask, tl.int1) if isinstance(mask, np.ndarray) else mask

    def create_masked_load(self: Any, ptrs: Any, mask: Any, other: Any, *rest: Any, **named: Any) -> Any:
        mask = as_handle(mask)
        note(self, LOAD, ptrs, mask.data)
        if other is None and not mask.data.all():
            kind = ptrs.get_element_ty()
            numpy_kind = interpreter._get_np_dtype(kind)
            unloaded = np.full((*ptrs.data.shape, numpy_kind.itemsize), UNLOADED, np.uint8).view(numpy_kind)[..., 0]
            other = interpreter.TensorHandle(unloaded, kind)
        return load(self, ptrs, mask, other, *rest, **named)

    def create_masked_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        mask = as_handle(mask)
        note(self, STORE, ptrs, mask.data, value.data)
        return store(self, ptrs, value, mask, *rest, **named)

    def ordering(self: Any, ptr: Any, mask: Data, semantics: Any) -> None:
        module.note_atomics(1)
        note(self, ATOMIC, ptr, mask)
        if _now.programs is not None:
            from triton._C.libtriton import ir

            kind, both = ir.MEM_SEMANTIC, ir.MEM_SEMANTIC.ACQUIRE_RELEASE
            acquires, releases = semantics in (kind.ACQUIRE, both), semantics in (kind.RELEASE, both)
            _now.programs.ordered(ptr.data, mask, number(self), acquires=acquires, releases=releases)

    def create_atomic_rmw(self: Any, operation: Any, ptr: Any, value: Any, mask: Any, sem: Any, *rest: Any) -> Any:
        ordering(self, ptr, mask.data, sem)
        return atomic(self, operation, ptr, value, mask, sem, *rest)

    def create_atomic_cas(self: Any, ptr: Any, compared: Any, value: Any, sem: Any, *rest: Any) -> Any:
        ordering(self, ptr, np.ones_like(ptr.data, dtype=bool), sem)
        return swap(self, ptr, compared, value, sem, *rest)

    def create_barrier(self: Any) -> None:
        if _now.programs is not None:
            _now.programs.barrier()

    builder.create_masked_load, builder.create_masked_store = create_masked_load, create_masked_store
    builder.create_atomic_rmw, builder.create_atomic_cas = create_atomic_rmw, create_atomic_cas
    builder.create_barrier = create_barrier


def _mend_numbers(builder: Any) -> None:
    """The interpreter keeps bfloat16 as raw 16-bit integers, and is wrong with them in three places; and it multiplies
    all bits of a float32 where tensor cores do not.

    A dot product multiplies the integers themselves; widened to float32 first, the products are exact and
    the sum is what the tensor cores' float32 accumulator would hold. A cast from float32 truncates the low bits,
    where the GPU rounds to nearest even, and a cast to float32 is wrong for subnormal numbers.
    """
    from triton._C.libtriton import ir
    from triton.runtime import interpreter

    dot, cast = builder.create_dot, builder.cast_impl

    def create_dot(self: Any, a: Any, b: Any, d: Any, precision: Any, *rest: Any, **named: Any) -> Any:
        module.note_steps(a.data.size * b.data.shape[-1] // 64)
        a, b = _widened(a), _widened(b)
        if precision == ir.INPUT_PRECISION.TF32:
            a, b = _cut(a), _cut(b)
        return dot(self, a, b, d, precision, *rest, **named)

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        import triton.language as tl

        if source.dtype.scalar == tl.float32 and target.scalar == tl.bfloat16:
            return interpreter.TensorHandle(_rounded(source.data), target.scalar)
        if source.dtype.scalar == tl.bfloat16 and target.scalar == tl.float32:
            return _widened(source)
        return cast(self, source, target)

    def _cut(handle: Any) -> Any:
        import triton.language as tl

        if handle.dtype.scalar != tl.float32 or handle.data.dtype != np.float32:
            return handle
        bits = np.ascontiguousarray(handle.data).view(np.uint32) & np.uint32(_TF32)
        return interpreter.TensorHandle(bits.view(np.float32), tl.float32)

    builder.create_dot, builder.cast_impl = create_dot, cast_impl


def _rounded(values: Data) -> Data:
    """float32 to the bits of bfloat16, rounded to nearest even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, nearest).astype(np.uint16)


def _widened(handle: Any) -> Any:
    import triton.language as tl
    from triton.runtime import interpreter

    if handle.dtype.scalar != tl.bfloat16 or handle.data.dtype.kind == "f":
        return handle
    bits = handle.data.view(np.uint16).astype(np.uint32) << 16
    return interpreter.TensorHandle(bits.view(np.float32), tl.float32)
