"""What a rung is: CUDA, Python and library rungs behind one call.

`Rung.prepare` binds a rung to tensors (compiling, allocating and packing arguments on the way) and
gives a `Prepared`, whose `run` only launches; that is what gets checked, timed, captured in a graph
and used by the model.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import torch

from rung import alignment, frontmatter, python_module, source_file
from rung.cuda import limits
from rung.cuda.source import Parameter, kernel_parameters
from rung.dtypes import ELEMENTS, Dtype, element
from rung.errors import RungError
from rung.expressions import Number, evaluate, evaluate_int
from rung.operation import Library, Operation, Tensors, Values

if TYPE_CHECKING:
    from rung.cuda.emulator import Settings
    from rung.cuda.launch import Argument, Build, LaunchConfig, Module

Device = Literal["cuda", "emulator", "cpu"]
Empty = Callable[[str, tuple[int, ...], torch.dtype], torch.Tensor]

INCLUDE = Path(__file__).parent / "ladders" / "include"

SCALAR_KINDS = {
    "int": "i32", "int32_t": "i32", "signed int": "i32", "unsigned int": "u32", "unsigned": "u32",
    "uint32_t": "u32", "long": "i64", "long long": "i64", "int64_t": "i64", "ptrdiff_t": "i64",
    "unsigned long": "u64", "unsigned long long": "u64", "uint64_t": "u64", "size_t": "u64",
    "float": "f32", "double": "f64", "bool": "bool", "__half": "f16", "half": "f16",
    "__nv_bfloat16": "bf16", "nv_bfloat16": "bf16",
}  # fmt: skip

POINTEES: dict[str, torch.dtype] = {
    **dict.fromkeys(("float", "float2", "float3", "float4"), torch.float32),
    **dict.fromkeys(("__half", "half", "__half2", "half2"), torch.float16),
    **dict.fromkeys(("__nv_bfloat16", "nv_bfloat16", "__nv_bfloat162", "nv_bfloat162"), torch.bfloat16),
    **dict.fromkeys(("int", "int32_t", "unsigned int", "unsigned", "uint32_t"), torch.int32),
    **dict.fromkeys(("long long", "int64_t", "long"), torch.int64),
    **dict.fromkeys(("int8_t", "signed char"), torch.int8),
    **dict.fromkeys(("uint8_t", "unsigned char"), torch.uint8),
    "double": torch.float64,
}
# Pointers to these may aim at anything: they are how vector loads are written.
ANY_POINTEE = re.compile(r"void|char|u?int[24]|Vec\b.*|Vec16")


@dataclass
class Prepared:
    """A rung bound to tensors, ready to run as often as wanted.

    A library may put its result where it likes; `run` then copies it into the operand. What is timed is `bare`,
    the call without that copy, after which `settle` makes up for it.
    """

    rung: Rung
    run: Callable[[], None]
    tuning: dict[str, int]
    launches: list[tuple[str, LaunchConfig]] = field(default_factory=list)
    module: Module | None = None
    buffers: Tensors = field(default_factory=dict)
    bare: Callable[[], None] | None = None
    settle: Callable[[], None] = lambda: None


class Rung(ABC):
    """One implementation of an operation."""

    kind: str = ""

    def __init__(self, operation: Operation, name: str, path: Path | None) -> None:
        self.operation = operation
        self.name = name
        self.path = path
        self.idea = self.expect = self.found = self.provenance = ""
        self.dtypes: tuple[str, ...] = ()
        self.needs: tuple[str, ...] = ()
        self.tune: dict[str, tuple[int, ...]] = {}
        self.emulate = ""

    @property
    def full_name(self) -> str:
        return f"{self.operation.name}/{self.name}"

    @property
    def number(self) -> int | None:
        digits = re.match(r"(\d+)_", self.name)
        return int(digits.group(1)) if digits else None

    @property
    @abstractmethod
    def source(self) -> str:
        """The text that a reader is shown."""

    @property
    @abstractmethod
    def binds(self) -> frozenset[str]:
        """The operands that this rung takes."""

    @property
    def digest(self) -> str:
        """Changes whenever what is run does; what a rung tells of itself (its idea, its findings) may."""
        text = _ADMITTANCE.sub("", without_prose(self.source))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @abstractmethod
    def prepare(
        self,
        tensors: Tensors,
        values: Values,
        dtype: Dtype,
        *,
        device: Device,
        tuning: Mapping[str, int] | None = None,
        empty: Empty | None = None,
        emulation: Settings | None = None,
    ) -> Prepared:
        """Bind the rung to these tensors. `empty` allocates scratch; `emulation` sets the thread order."""

    def tuned(self, tuning: Mapping[str, int] | None) -> dict[str, int]:
        """The tunables' values: the defaults, replaced by those given."""
        chosen = {name: choices[0] for name, choices in self.tune.items()}
        for name, value in (tuning or {}).items():
            if name not in self.tune:
                known = ", ".join(self.tune) or "none"
                raise RungError(f"{self.full_name} has no tunable {name!r}; it has {known}.")
            chosen[name] = value
        return chosen

    def names(
        self,
        values: Values,
        dtype: Dtype,
        tuning: Mapping[str, int] | None,
        tensors: Tensors | None = None,
        device: Device = "emulator",
    ) -> Values:
        """Everything an expression of this rung may name."""
        sm, sms = device_facts(device)
        names: Values = {**values, **self.tuned(tuning), "sizeof_real": dtype.size, "sm": sm, "sms": sms}
        for operand in self.operation.operands:
            tensor = (tensors or {}).get(operand.name)
            strides = tensor.stride() if tensor is not None else _packed_strides(operand.size(values))
            for index, (dim, stride) in enumerate(zip(operand.shape, strides, strict=True)):
                label = dim if isinstance(dim, str) and dim.isidentifier() else str(index)
                names[f"{operand.name}_stride_{label}"] = stride
        return names

    def refusal(
        self,
        values: Values,
        dtype: Dtype,
        tuning: Mapping[str, int] | None = None,
        tensors: Tensors | None = None,
        device: Device = "emulator",
    ) -> str | None:
        """Why the rung does not take this call, or None when it does."""
        if dtype.name not in self.dtypes:
            return f"{self.full_name} has no {dtype.name} version; it has {', '.join(self.dtypes)}"
        names = self.names(values, dtype, tuning, tensors, device)
        for rule in self.needs:
            if not evaluate(rule, names):
                return f"{self.full_name} needs {rule}"
        multiple = evaluate_int(self.align, names, f"align of {self.full_name}")
        name = alignment.misplaced(((n, t) for n, t in (tensors or {}).items() if n in self.binds), multiple)
        if name is not None:
            return (
                f"{self.full_name} needs {name} to start at a multiple of {multiple} bytes, which this view of it "
                "does not (a clone would)"
            )
        return None

    @property
    def align(self) -> frontmatter.Expression:
        """At a multiple of how many bytes every operand must start."""
        return 1

    def admit(
        self, tensors: Tensors, values: Values, dtype: Dtype, tuning: Mapping[str, int] | None, device: Device
    ) -> None:
        """Refuse, before anything is launched, what the rung is not made for."""
        reason = self.refusal(values, dtype, tuning, tensors, device)
        if reason is None:
            return
        from rung import catalogue

        other = catalogue.stand_in(self, values, dtype, device, tensors=tensors)
        raise RungError(f"{reason}; {other.full_name} would do." if other else f"{reason}.")


_PROSE = r"""^(?:{keys})[ \t]*=[ \t]*
        (?:\"\"\".*?\"\"\" | '''.*?''' | \((?:\s*(?:"(?:\\.|[^"\\])*"))+\s*\)
         | "(?:\\.|[^"\\\n])*" | '[^'\n]*')
        [^\n]*\n"""
_TOLD = ("idea", "expect", "found", "provenance", "EXPECT", "FOUND", "PROVENANCE")
# Which GPUs and addresses a rung leaves alone changes nothing of what runs on the others.
_ADMITTANCE = re.compile(
    r'^needs[ \t]*=[ \t]*"sm >= \d+"\n|(?<=\w) and sm >= \d+(?="$)'
    r'|(?<=\[)"sm >= \d+[^"\n]*", |^[ \t]+"sm >= \d+[^"\n]*",\n'  # the first in a list, or a line of one
    r'|^(?:align|ALIGN)[ \t]*=[ \t]*(?:\d+|"[^"\n]*")[ \t]*\n',
    re.MULTILINE,
)


def without_prose(source: str, keys: Sequence[str] = _TOLD) -> str:
    """A rung's source without what it tells of itself."""
    pattern = _PROSE.replace("{keys}", "|".join(keys))
    return re.sub(pattern, "", source, flags=re.MULTILINE | re.DOTALL | re.VERBOSE)


def device_facts(device: Device) -> tuple[int, int]:
    """Compute capability (90 for 9.0) and the number of multiprocessors."""
    if device == "cuda":
        facts = torch.cuda.get_device_properties(torch.cuda.current_device())
        return facts.major * 10 + facts.minor, facts.multi_processor_count
    return 90, 4


def _packed_strides(shape: Sequence[int]) -> list[int]:
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * shape[i + 1]
    return strides


class CudaRung(Rung):
    """A `.cu` file: header and kernels, bound by parameter name."""

    kind = "cuda"

    def __init__(self, operation: Operation, path: Path) -> None:
        super().__init__(operation, path.stem, path)
        self._source = source_file.read(path)
        self.header = h = frontmatter.parse(self._source, str(path))
        self.idea, self.expect, self.found, self.provenance = h.idea, h.expect, h.found, h.provenance
        self.dtypes, self.needs, self.tune, self.emulate = h.dtypes, h.needs, h.tune, h.emulate
        for name in h.constants:
            if name not in [o.name for o in operation.operands]:
                known = ", ".join(o.name for o in operation.operands)
                raise RungError(f"{path}: constants.{name} is no operand of {operation.name}; it has {known}.")

    @property
    def source(self) -> str:
        return self._source

    @cached_property
    def align(self) -> frontmatter.Expression:
        assert self.path is not None
        declared = self.header.align
        return alignment.of_source(self._source, (self.path.parent, INCLUDE)) if declared is None else declared

    @cached_property
    def parameters(self) -> dict[str, tuple[Parameter, ...]]:
        """The parameters of each launched kernel."""
        kernels = dict.fromkeys(entry.kernel for entry in self.header.launches)
        return {k: kernel_parameters(self._source, k, str(self.path)) for k in kernels}

    @cached_property
    def binds(self) -> frozenset[str]:
        operands = {o.name for o in self.operation.operands}
        bound = set(self.header.constants)
        for entry in self.header.launches:
            for parameter in self.parameters[entry.kernel]:
                target = self._target(parameter, entry)
                if parameter.pointer and isinstance(target, str) and target in operands:
                    bound.add(target)
        return frozenset(bound)

    def _target(self, parameter: Parameter, entry: frontmatter.Launch) -> str | int | float:
        return entry.bind.get(parameter.name, self.header.bind.get(parameter.name, parameter.name))

    def _require_parameters_for_bind(self) -> None:
        """A name that [bind] spells wrongly would be passed over in silence."""
        of = {kernel: [p.name for p in parameters] for kernel, parameters in self.parameters.items()}
        every = list(dict.fromkeys(name for names in of.values() for name in names))
        tables = [(self.header.bind, every), *((e.bind, of[e.kernel]) for e in self.header.launches)]
        for bind, there in tables:
            for name in bind:
                if name not in there:
                    raise RungError(f"{self.path}: bind.{name} is no kernel parameter; there are {', '.join(there)}.")

    def refusal(
        self,
        values: Values,
        dtype: Dtype,
        tuning: Mapping[str, int] | None = None,
        tensors: Tensors | None = None,
        device: Device = "emulator",
    ) -> str | None:
        reason = super().refusal(values, dtype, tuning, tensors, device)
        return self._too_large(values, dtype, tuning) if reason is None and device == "cuda" else reason

    def _too_large(self, values: Values, dtype: Dtype, tuning: Mapping[str, int] | None) -> str | None:
        """Which launch this GPU has no room for, as far as can be known before compiling."""
        try:
            here = limits.limits(f"sm_{device_facts('cuda')[0]}")
            launches = self.launches(values, dtype, tuning, "cuda")
        except RungError:
            return None  # of a GPU that is not in the table, the driver will tell
        for kernel, config in launches:
            reason = limits.refusal(here, config)
            if reason is not None:
                return f"{self.full_name} does not fit this GPU ({kernel}: {reason})"
        return None

    def build(self, values: Values, dtype: Dtype, tuning: Mapping[str, int] | None = None) -> Build:
        """Everything that determines the compiled code at this shape."""
        from rung.cuda.launch import Build

        names = self.names(values, dtype, tuning)
        defines = {dtype.macro: "1"}
        defines |= {name: str(value) for name, value in self.tuned(tuning).items()}
        for name, expression in self.header.define.items():
            defines[name] = str(evaluate_int(expression, names, f"define.{name}"))
        assert self.path is not None
        return Build(
            source=self._source,
            origin=str(self.path),
            kernels=tuple(self.parameters),
            defines=tuple(sorted(defines.items())),
            options=self.header.options,
            include=(str(INCLUDE), str(self.path.parent)),
            arch_specific=self.header.arch_specific,
        )

    def launches(
        self,
        values: Values,
        dtype: Dtype,
        tuning: Mapping[str, int] | None = None,
        device: Device = "emulator",
    ) -> list[tuple[str, LaunchConfig]]:
        """The kernels that a call at this shape launches, and how."""
        names = self.names(values, dtype, tuning, device=device)
        return [(e.kernel, self._config(e, scope)) for e, scope in self._schedule(names)]

    def _schedule(self, names: Values) -> Iterator[tuple[frontmatter.Launch, Values]]:
        """The launches in their order, each with the names that its expressions may use."""
        for each, group in itertools.groupby(self.header.launches, key=lambda entry: entry.each):
            entries = list(group)
            rounds = [names]
            if each is not None:
                count = evaluate_int(each[1], names, f"each.{each[0]}")
                rounds = [{**names, each[0]: i} for i in range(count)]
            for scope in rounds:
                for entry in entries:
                    if entry.when is None or bool(evaluate(entry.when, scope)):
                        yield entry, scope

    def _config(self, entry: frontmatter.Launch, names: Values) -> LaunchConfig:
        from rung.cuda.launch import LaunchConfig

        def three(expressions: tuple[frontmatter.Expression, ...], what: str) -> tuple[int, int, int]:
            sizes = [evaluate_int(e, names, f"the {what} of {entry.kernel}") for e in expressions]
            for size, expression in zip(sizes, expressions, strict=True):
                if size < 1:
                    raise RungError(f"{self.full_name}: the {what} {expression!r} of {entry.kernel} is {size}.")
            x, y, z = (*sizes, 1, 1)[:3]
            return x, y, z

        return LaunchConfig(
            grid=three(entry.grid, "grid"),
            block=three(entry.block, "block"),
            shared=evaluate_int(entry.shared, names, f"the shared memory of {entry.kernel}"),
            cooperative=entry.cooperative,
            cluster=three(entry.cluster, "cluster") if entry.cluster else None,
            pdl=entry.pdl,
        )

    def prepare(
        self,
        tensors: Tensors,
        values: Values,
        dtype: Dtype,
        *,
        device: Device,
        tuning: Mapping[str, int] | None = None,
        empty: Empty | None = None,
        emulation: Settings | None = None,
    ) -> Prepared:
        self.admit(tensors, values, dtype, tuning, device)
        self._require_parameters_for_bind()
        names = self.names(values, dtype, tuning, tensors, device)
        where = next(iter(tensors.values())).device
        make: Empty = empty or (lambda _, shape, kind: torch.empty(shape, dtype=kind, device=where))
        buffers: Tensors = {}
        for name, buffer in self.header.buffers.items():
            shape = tuple(evaluate_int(s, names, f"the size of buffer {name}") for s in buffer.shape)
            buffers[name] = make(name, shape, element(buffer.dtype, dtype))
        module = self._load(self.build(values, dtype, tuning), device, emulation)

        steps: list[Callable[[], None]] = []
        for name, buffer in self.header.buffers.items():
            if buffer.zero:
                steps.append(_zero_step(buffers[name]))
        for name, symbol in self.header.constants.items():
            steps.append(_constant_step(module, symbol, self._operand_tensor(name, tensors)))
        launched: list[tuple[str, LaunchConfig]] = []
        for entry, scope in self._schedule(names):
            config = self._config(entry, scope)
            arguments = [
                self._argument(p, entry, tensors, buffers, scope, dtype) for p in self.parameters[entry.kernel]
            ]
            module.prepare(entry.kernel, config)
            steps.append(module.bind(entry.kernel, config, arguments))
            launched.append((entry.kernel, config))

        def run() -> None:
            for step in steps:
                step()

        only = steps[0] if len(steps) == 1 else run
        return Prepared(self, only, self.tuned(tuning), launched, module, buffers)

    def _load(self, build: Build, device: Device, emulation: Settings | None) -> Module:
        if device == "cuda":
            return _on_gpu(build, torch.cuda.current_device())
        if self.emulate:
            raise RungError(f"{self.full_name} runs on a GPU only: {self.emulate}")
        from rung.cuda.emulator import Settings

        return _emulated(build, emulation or Settings())

    def _operand_tensor(self, name: str, tensors: Tensors) -> torch.Tensor:
        if name not in tensors:
            raise RungError(f"{self.full_name} needs the operand {name!r}, which this call leaves out.")
        return tensors[name]

    def _argument(
        self,
        parameter: Parameter,
        entry: frontmatter.Launch,
        tensors: Tensors,
        buffers: Tensors,
        names: Values,
        dtype: Dtype,
    ) -> Argument:
        target = self._target(parameter, entry)
        where = f"{self.path}: parameter {parameter.name!r} of {entry.kernel}"
        if parameter.pointer:
            return "pointer", self._pointer(parameter, target, tensors, buffers, dtype, where)
        kind = SCALAR_KINDS.get(dtype.ctype if parameter.ctype == "Real" else parameter.ctype)
        if kind is None:
            raise RungError(
                f"{where} has the type {parameter.ctype!r}, which cannot be passed; use a pointer or number."
            )
        if isinstance(target, str) and target == parameter.name and target not in names:
            raise RungError(f"{where} is bound to nothing; {self._choices(names, buffers)}")
        value = evaluate(target, names)
        if kind in ("i32", "u32", "i64", "u64") and isinstance(value, float):
            value = evaluate_int(target, names, f"parameter {parameter.name}")  # type: ignore[arg-type]
        _must_fit(kind, value, where)
        return kind, value

    def _pointer(
        self,
        parameter: Parameter,
        target: str | int | float,
        tensors: Tensors,
        buffers: Tensors,
        dtype: Dtype,
        where: str,
    ) -> torch.Tensor | None:
        if target == "null":
            return None
        known = {o.name: o for o in self.operation.operands}
        tensor = buffers.get(str(target))
        if tensor is None and target in known:
            tensor = tensors.get(str(target))
            if tensor is None and known[str(target)].nullable:
                return None
            if tensor is None:
                raise RungError(f"{where} needs the operand {target!r}, which this call leaves out.")
        if tensor is None:
            raise RungError(f"{where} is bound to nothing; {self._choices({}, buffers)}")
        _must_point_to(parameter, tensor, dtype, where)
        return tensor

    def _choices(self, names: Values, buffers: Tensors) -> str:
        operands = ", ".join(o.name for o in self.operation.operands)
        text = f"there are the operands {operands}"
        if buffers:
            text += f", the buffers {', '.join(buffers)}"
        if names:
            text += f" and the values {', '.join(n for n in names if '_stride_' not in n)}"
        return text + f"; name one in [bind] ({self.operation.name})."


@lru_cache(maxsize=256)  # a shape is prepared for many sets of tensors, and its code looked up once
def _on_gpu(build: Build, index: int) -> Module:
    from rung.cuda import launch

    with torch.cuda.device(index):
        return launch.load(build)


@lru_cache(maxsize=256)
def _emulated(build: Build, settings: Settings) -> Module:
    from rung.cuda import emulator

    return emulator.load(build, settings=settings)


def _zero_step(buffer: torch.Tensor) -> Callable[[], None]:
    def step() -> None:
        buffer.zero_()

    return step


def _constant_step(module: Module, symbol: str, tensor: torch.Tensor) -> Callable[[], None]:
    module.set_constant(symbol, tensor)  # also refuses a symbol that is missing or too small
    return lambda: module.set_constant(symbol, tensor)


def _must_point_to(parameter: Parameter, tensor: torch.Tensor, dtype: Dtype, where: str) -> None:
    ctype = dtype.ctype if parameter.ctype == "Real" else parameter.ctype
    if ANY_POINTEE.fullmatch(ctype):
        return
    pointee = POINTEES.get(ctype)
    held = next((name for name, kind in ELEMENTS.items() if kind == tensor.dtype), str(tensor.dtype))
    if pointee is None:
        raise RungError(f"{where} points to {ctype!r}, which is not known; use Real, float, int, void or a vector.")
    if pointee != tensor.dtype:
        raise RungError(f"{where} points to {parameter.ctype}, but the tensor holds {held}; change one of them.")


_RANGES = {"i32": (-(2**31), 2**31), "u32": (0, 2**32), "i64": (-(2**63), 2**63), "u64": (0, 2**64)}


def _must_fit(kind: str, value: Number, where: str) -> None:
    if kind in _RANGES and not _RANGES[kind][0] <= value < _RANGES[kind][1]:
        raise RungError(f"{where} would be {value}, which its type cannot hold; use a wider one.")


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
        if facts.triton:
            self.kind = "triton"

    @property
    def source(self) -> str:
        return self._facts.source

    @property
    def align(self) -> frontmatter.Expression:
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
        emulation: Settings | None = None,
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
        emulation: Settings | None = None,
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

        def settle() -> None:
            for name, tensor in results.items():
                if name in tensors and tensor.data_ptr() != tensors[name].data_ptr():
                    tensors[name].copy_(tensor)

        def run() -> None:
            bare()
            settle()

        return Prepared(self, run, {}, bare=bare, settle=settle)


def _is_output(operation: Operation, name: str) -> bool:
    return operation.operand(name).role == "out"
