"""The interface of every rung, in any language: its rules, and binding to tensors. `Rung.prepare` binds a rung to
tensors (it compiles, allocates and packs arguments) and returns a `Prepared`, whose `run` only launches. The checker,
the bench, graphs and the model all use this `run`.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gpuless.base.expressions import Names, evaluate, evaluate_int
from rung.arrays import Array, empty_like, strides_of, to_torch
from rung.dtypes import Dtype, element_name
from rung.errors import CompileError, RungError
from rung.lazy import has_gpu, torch
from rung.operation import Case, Empty, Operation, Tensors, Values
from rung.rungs import alignment, header
from rung.rungs.learned import LearnedCall
from rung.rungs.reached import Imported

if TYPE_CHECKING:
    from gpuless.compile.source import Parameter
    from gpuless.launch import LaunchConfig, Module

Device = Literal["cuda", "emulator", "cpu"]
Tuning = Mapping[str, int] | None  # values of tunables; the others have their defaults
LARGEST_BUFFER = 1 << 38  # elements


@dataclass
class Prepared:
    """A rung bound to tensors, ready to run repeatedly. A library may allocate its result; `run` then copies it into
    the operand. `bare` is the call without that copy, which is what is timed, and `copy_back` makes the copy
    afterwards.
    """

    rung: Rung
    run: Callable[[], None]
    tuning: dict[str, int]
    launches: list[tuple[str, LaunchConfig]] = field(default_factory=list)
    module: Module | None = None
    buffers: Tensors = field(default_factory=dict)
    bare: Callable[[], None] | None = None
    copy_back: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Call:
    """The arguments of a rung's call."""

    tensors: Tensors
    values: Values
    dtype: Dtype
    device: Device
    tuning: dict[str, int]
    names: Names  # all names that an expression may use
    buffers: Tensors
    zeroed: Sequence[Callable[[], None]]  # zeroes the buffers and outputs that must be zero before each run


class Rung(ABC):
    """One implementation of an operation."""

    kind: str = ""
    takes_torch = False  # whether it is called with torch's tensors
    mend = "--write puts it into the file, to be corrected there"  # of a header that is a guess

    def __init__(self, operation: Operation, name: str, path: Path | None, keys: header.Header) -> None:
        self.name = name
        self.path = path
        self.header = keys
        self.idea, self.expect, self.found, self.provenance = keys.idea, keys.expect, keys.found, keys.provenance
        self.parent, self.emulate = keys.parent, keys.emulate
        self.rewrite, self.side_experiment = keys.rewrite, keys.side_experiment
        self.dtypes, self.tune, self.let = keys.dtypes, keys.tune, keys.let
        operands = {o.name for o in operation.operands}
        told = {rule: m for rule in keys.needs if (m := _FIXED.fullmatch(rule)) and m[1] in operands}
        self._numbers = {m[1]: float(m[2]) for m in told.values()}  # operands that must hold one number
        self.operation = operation.with_numbers(self._numbers)
        self.needs = tuple(rule for rule in keys.needs if rule not in told)
        self.products = keys.products
        outputs = [o.name for o in operation.operands if o.role == "out"]
        for zeroed in keys.zeroed:
            if zeroed not in outputs:
                known = ", ".join(outputs)
                raise RungError(f"{path}: zeroed names {zeroed!r}; the outputs of {operation.name} are {known}.")
        self.siblings: Callable[[], Sequence[Rung]] = tuple  # the rungs of its ladder, libraries left out
        self.guessed = bool(keys.adopted)  # whether rung found out how it is called
        self.learned: LearnedCall | None = None  # that, of a file without a header

    @property
    def full_name(self) -> str:
        return f"{self.operation.name}/{self.name}"

    @property
    def imported(self) -> Collection[Imported]:
        """The modules of its own project that it imports."""
        return ()

    @property
    def doubts(self) -> Sequence[str]:
        """Why its call is only proposed, and the likeliest ones; empty if the call is known."""
        return self.learned.doubts if self.learned else ()

    @property
    def foreign(self) -> bool:
        """Whether it was not written for rung."""
        return self.guessed

    @property
    def declared(self) -> bool:
        """Whether it says itself which calls it is for."""
        return not self.guessed

    @property
    def number(self) -> int | None:
        digits = re.match(r"(\d+)_", self.name)
        return int(digits.group(1)) if digits else None

    @property
    def story(self) -> str:
        """The page beside the rung, for more than `found`; empty if there is none."""
        if self.path is None or self.number is None:
            return ""
        page = self.path.with_name(f"{self.number:02}.md")
        return page.read_text(encoding="utf-8") if page.is_file() else ""

    @property
    @abstractmethod
    def source(self) -> str:
        """The text shown to a reader."""

    def signature(self, kernel: str) -> tuple[Parameter, ...]:
        """The parameters of one of its kernels, where they are known."""
        return ()

    @property
    @abstractmethod
    def binds(self) -> frozenset[str]:
        """The operands that this rung takes."""

    def prepare(
        self,
        tensors: Tensors,
        values: Values,
        dtype: Dtype,
        *,
        device: Device,
        tuning: Tuning = None,
        empty: Empty | None = None,
    ) -> Prepared:
        """Bind the rung to these tensors. `empty` allocates scratch."""
        if self.takes_torch:
            if find_spec("torch") is None:
                raise CompileError(f"{self.full_name} needs PyTorch: pip install 'rung[models]'.", missing="torch")
            given, make = tensors, empty
            tensors = {name: to_torch(array) for name, array in given.items()}
            empty = make and (lambda *which: to_torch(make(*which)))
        self.admit(tensors, values, dtype, tuning, device)
        if self.emulate and device != "cuda":
            raise RungError(f"{self.full_name} runs on a GPU only: {self.emulate}")
        return self.bound(self.call(tensors, values, dtype, device, tuning, empty))

    def call(
        self, tensors: Tensors, values: Values, dtype: Dtype, device: Device, tuning: Tuning, empty: Empty | None = None
    ) -> Call:
        """The arguments of a call, with scratch memory allocated."""
        for name, number in self._numbers.items():
            if name in tensors and not bool((tensors[name] == number).all()):
                raise RungError(f"{self.full_name} needs {name} == {number:g} everywhere.")
        names = self.names(values, dtype, tuning, tensors, device)
        like = next(iter(tensors.values()))
        make: Empty = empty or (lambda _, shape, kind: empty_like(like, shape, kind))
        buffers: Tensors = {}
        for name, buffer in self.header.buffers.items():
            shape = tuple(evaluate_int(s, names, f"the size of buffer {name}") for s in buffer.shape)
            if min(shape) < 0 or math.prod(shape) > LARGEST_BUFFER:
                sizes = " x ".join(str(s) for s in shape)
                raise RungError(f"{self.path}: buffers.{name} has the shape {sizes}, beyond any memory; correct it.")
            buffers[name] = make(name, shape, element_name(buffer.dtype, dtype))
            if buffer.zero_once:
                buffers[name][...] = 0
        zeroed = [_filling(buffers[name], buffer.fill) for name, buffer in self.header.buffers.items() if buffer.zero]
        zeroed += [_filling(tensors[name], 0.0) for name in self.header.zeroed if name in tensors]
        return Call(tensors, values, dtype, device, self.tuned(tuning), names, buffers, zeroed)

    @abstractmethod
    def bound(self, call: Call) -> Prepared:
        """The rung, bound to its arguments."""

    def tuned(self, tuning: Tuning) -> dict[str, int]:
        """The tunables' values: the defaults, replaced by those given."""
        chosen = {name: choices[0] for name, choices in self.tune.items()}
        for name, value in (tuning or {}).items():
            if name not in self.tune:
                known = ", ".join(self.tune) or "none"
                raise RungError(f"{self.full_name} has no tunable {name!r}; it has {known}.")
            chosen[name] = value
        return chosen

    def names(
        self, values: Values, dtype: Dtype, tuning: Tuning, tensors: Tensors | None = None, device: Device = "emulator"
    ) -> Names:
        """All names that an expression of this rung may use."""
        sm, sms = device_facts(device)
        names: Values = {**values, **self.tuned(tuning), "sizeof_real": dtype.size, "sm": sm, "sms": sms}
        names["emulated"] = int(device == "emulator")
        names["max_grid_y"] = 65535 if device == "cuda" or sms >= USUAL else 2
        for operand in self.operation.operands:
            tensor = (tensors or {}).get(operand.name)
            strides = strides_of(tensor) if tensor is not None else _packed_strides(operand.size(values))
            for index, (dim, stride) in enumerate(zip(operand.shape, strides, strict=True)):
                label = dim if isinstance(dim, str) and dim.isidentifier() else str(index)
                names[f"{operand.name}_stride_{label}"] = stride
        for name in self.let:
            if name in names:
                raise RungError(f"{self.path}: let.{name} has the name of a dimension, scalar or tunable; rename it.")
        return Names(names, self.let)

    def refusal(
        self,
        values: Values,
        dtype: Dtype,
        tuning: Tuning = None,
        tensors: Tensors | None = None,
        device: Device = "emulator",
    ) -> str | None:
        """Why the rung does not support this call, or None if it does."""
        names = self.names(values, dtype, tuning, tensors, device)
        if reason := self._unmet(dtype, names, tensors):
            return reason
        multiple = self._alignment(names)
        name = alignment.find_misplaced(((n, t) for n, t in (tensors or {}).items() if n in self.binds), multiple)
        if name is not None:
            return (
                f"{self.full_name} needs {name} to start at a multiple of {multiple} bytes, which this view of it "
                "does not (a clone would)"
            )
        return self.too_large(values, dtype, tuning, device)

    def refused_by_needs(self, values: Values, dtype: Dtype, tuning: Tuning = None) -> str | None:
        """Why its dtypes or its `needs` do not admit these values, or None if they do."""
        return self._unmet(dtype, self.names(values, dtype, tuning))

    def cases(
        self, dtype: Dtype, tuning: Tuning = None, device: Device | None = None
    ) -> Iterator[tuple[Case, Values]]:
        """The operation's cases in this dtype that `needs` admits, with all values; of a device, those that fit it."""
        for case in (case for case in self.operation.cases if dtype.name in case.dtypes):
            values = self.operation.complete(case.values)
            call = values, dtype, tuning
            if (self.refusal(*call, device=device) if device else self.refused_by_needs(*call)) is None:
                yield case, values

    def fitted(self, values: Values, dtype: Dtype, device: Device = "emulator") -> Values | None:
        """The values with the scalars that `needs` fixes, and dimensions rounded up to multiples of a power of two, as
        few as necessary, so that the rung takes them; None if it takes no such values."""
        operation = self.operation
        equal = [(m[1], m[2]) for rule in self.needs if (m := _EQUAL.fullmatch(rule))]

        def ruled(given: Values, names: Container[str]) -> Values:
            for name, text in equal:
                given |= {name: evaluate(text, given)} if name in names else {}
            return given

        def taken(dims: Values) -> Values | None:
            try:
                told = ruled({**values, **dims}, operation.dims if self.guessed else ())  # of a header nobody wrote
                given = operation.complete({n: told[n] for n in (*operation.dims, *operation.scalars)})
                found = ruled(given, operation.scalars)
                return found if self.refusal(found, dtype, device=device) is None else None
            except RungError:
                return None

        own: Values = {dim: values[dim] for dim in operation.dims}
        for multiple in (1, 2, 4, 8, 16, 32, 64, 128, 256):
            rounded: Values = {dim: -(-int(size) // multiple) * multiple for dim, size in own.items()}
            if taken(rounded) is None:
                continue
            for dim, size in own.items():
                lesser = (-(-int(size) // step) * step for step in (1, 2, 4, 8, 16, 32, 64, 128) if step < multiple)
                rounded[dim] = next((n for n in lesser if taken({**rounded, dim: n}) is not None), rounded[dim])
            return taken(rounded)
        return None

    def _unmet(self, dtype: Dtype, names: Names, tensors: Tensors | None = None) -> str | None:
        if dtype.name not in self.dtypes:
            return f"{self.full_name} has no {dtype.name} version; it has {', '.join(self.dtypes)}"
        nullable = {o.name for o in self.operation.operands if o.nullable}  # a rule may be that the call has it
        for rule in self.needs:
            if not (tensors is None or rule in tensors if rule in nullable else evaluate(rule, names)):
                return f"{self.full_name} needs {rule}"
        return None

    @property
    def operand_names(self) -> list[str]:
        """The operands of a plain call: those that are not optional, and those that it binds."""
        operands, replaced = self.operation.operands, self.operation.replaced(self.binds)
        return [o.name for o in operands if o.name in self.binds or not (o.optional or o.name in replaced)]

    def too_large(self, values: Values, dtype: Dtype, tuning: Tuning, device: Device) -> str | None:
        """The launch that does not fit the GPU, as far as this is known before compiling."""
        return None

    def alignment(self, values: Values, dtype: Dtype, tuning: Tuning = None, device: Device = "emulator") -> int:
        """The alignment in bytes that the operands of this call need."""
        return self._alignment(self.names(values, dtype, tuning, device=device))

    def _alignment(self, names: Names) -> int:
        return evaluate_int(self.align, names, f"align of {self.full_name}")

    @property
    def align(self) -> header.Expression:
        """The alignment in bytes that every operand needs."""
        return 1 if self.header.align is None else self.header.align

    def stand_in(
        self,
        values: Values,
        dtype: Dtype,
        device: Device = "emulator",
        tuning: Tuning = None,
        tensors: Tensors | None = None,
    ) -> Rung | None:
        """The highest rung of the same ladder that supports a call that this one does not."""
        extra = {o.name for o in self.operation.operands if o.optional and not o.nullable and o.role != "out"}
        for other in reversed(self.siblings()):
            if other.name == self.name or other.side_experiment or (other.emulate and device != "cuda"):
                continue
            if other.binds & extra != self.binds & extra:
                continue  # it computes something else
            if other.refusal(values, dtype, tuning, tensors, device) is None:
                return other
        return None

    def admit(self, tensors: Tensors, values: Values, dtype: Dtype, tuning: Tuning, device: Device) -> None:
        """Refuse, before anything is launched, a call that the rung does not support."""
        reason = self.refusal(values, dtype, tuning, tensors, device)
        if reason is None:
            return
        other = self.stand_in(values, dtype, device, tensors=tensors)
        raise RungError(f"{reason}; {other.full_name} would do." if other else f"{reason}.")


_EQUAL = re.compile(r"(\w+) == ([^=<>%]+)")
_FIXED = re.compile(r"(\w+) == ([\d.e-]+)")
_PROSE = r"""^(?:{keys})[ \t]*=[ \t]*
        (?:\"\"\".*?\"\"\" | '''.*?''' | \((?:\s*(?:"(?:\\.|[^"\\])*"))+\s*\)
         | "(?:\\.|[^"\\\n])*" | '[^'\n]*')
        [^\n]*\n"""
_KEYS = ("idea", "expect", "found", "provenance", "from", "rewrite", "side_experiment")
_PROSE_KEYS = (*_KEYS, *(key.upper() for key in _KEYS))


def without_prose(source: str, keys: Sequence[str] = _PROSE_KEYS) -> str:
    """A rung's source without its descriptive keys."""
    pattern = _PROSE.replace("{keys}", "|".join(keys))
    return re.sub(pattern, "", source, flags=re.MULTILINE | re.DOTALL | re.VERBOSE)


USUAL = 4  # multiprocessors that the emulator has
_emulated_multiprocessors: ContextVar[int] = ContextVar("emulated_multiprocessors", default=USUAL)


def device_facts(device: Device) -> tuple[int, int]:
    """Compute capability (90 for 9.0) and the number of multiprocessors."""
    if device == "cuda":
        facts = torch.cuda.get_device_properties(torch.cuda.current_device())
        return facts.major * 10 + facts.minor, facts.multi_processor_count
    return 90, _emulated_multiprocessors.get()


def arch(device: Device | None = None) -> str:
    """The architecture that code is compiled for here: the GPU's, or Hopper's if there is none."""
    return f"sm_{device_facts(device or ('cuda' if has_gpu() else 'emulator'))[0]}"


@contextmanager
def emulated_multiprocessors(count: int | None) -> Iterator[None]:
    """Inside the block the emulator has this many multiprocessors: with one, persistent blocks take every tile.

    With fewer than usual, grids that are limited by `max_grid_y` have at most two rows of blocks.
    """
    before = _emulated_multiprocessors.set(count or _emulated_multiprocessors.get())
    try:
        yield
    finally:
        _emulated_multiprocessors.reset(before)


def _filling(buffer: Array, number: float) -> Callable[[], None]:
    def fill() -> None:
        buffer[...] = number

    return fill


def _packed_strides(shape: Sequence[int]) -> list[int]:
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * shape[i + 1]
    return strides


@dataclass(frozen=True)
class Subject:
    """A rung at one shape (all its values) and dtype."""

    rung: Rung
    shape: str
    values: Values
    dtype: Dtype
