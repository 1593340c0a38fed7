"""A `.cu` file as a rung: header and kernels, bound by parameter name."""

from __future__ import annotations

import copy
import itertools
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from gpuless.base.expressions import Names, evaluate, evaluate_int
from gpuless.base.files import read_text
from gpuless.compile.host_code import device_part, with_headers, with_made_kernels
from gpuless.compile.source import Parameter, body_of, kernel_parameters
from gpuless.facts import limits
from gpuless.tensor_map import TensorMap, packed_strides
from rung.arrays import Array, is_contiguous
from rung.dtypes import ELEMENTS, Dtype
from rung.errors import CompileError, RungError
from rung.lazy import torch
from rung.operation import Operation, Tensors, Values
from rung.rungs import alignment, header
from rung.rungs.arguments import POINTEES, Arguments, Typed
from rung.rungs.base import Call, Device, Prepared, Rung, Tuning, arch

if TYPE_CHECKING:
    from gpuless.launch import Argument, Build, LaunchConfig, Module

_DYNAMIC = re.compile(r"\bextern\s+(?:__shared__|__align__\s*\([^)]*\)\s*__shared__)[^;]*?(\w+)\s*\[\s*\]")
_REAL = re.compile(r"\brung\.cuh|\b(?:typedef\b[^;]*|using|typename|class|struct|define)\s+Real\b")  # says what it is
ABOVE = 5  # folders, from a file's own up to its repository's, whose headers are found
MOST_TEXT = 1 << 18  # characters of expressions that all rounds evaluate; gpt2-xl's layers have 40,000
MOST_ROUNDS = 4096  # repetitions of a launch at most
INCLUDE = Path(__file__).parents[1] / "ladders" / "include"


def build_of(source: Path, kernels: tuple[str, ...], *defines: tuple[str, int]) -> Build:
    """Kernels of a file that is no rung, over the ladders' headers."""
    from gpuless.launch import Build

    given = tuple((name, str(value)) for name, value in defines)
    text = source.read_text(encoding="utf-8")
    return Build(source=text, origin=str(source), kernels=kernels, defines=given, include=(str(INCLUDE),))


def _size(entry: header.Launch) -> int:
    """The characters of a launch's expressions."""
    sizes = (*entry.grid, *entry.block, *(entry.cluster or ()), entry.shared, entry.when or "", *entry.bind.values())
    return sum(len(str(size)) for size in sizes)


@lru_cache(maxsize=256)
def _of_a_ladder(path: Path) -> bool:
    return INCLUDE.parent in path.resolve().parents


def _uses_dynamic(body: str) -> bool:
    """Whether a kernel names an `extern __shared__` array again, behind its declaration."""
    return any(re.search(rf"\b{found[1]}\b", body[found.end() :]) for found in _DYNAMIC.finditer(body))


def whole_text(path: Path) -> str:
    """A file's text; of a file that is not the ladders', with the author's own headers in their places."""
    if _of_a_ladder(path):
        return read_text(path)
    above = path.resolve().parents[:ABOVE]
    root = next((n for n, folder in enumerate(above) if (folder / ".git").exists()), None)
    own = above if root is None else above[: root + 1]
    beside = [] if root is None else [place for folder in own for place in sorted(folder.glob("*/include"))]
    places = [*(place for folder in own for place in (folder / "include", folder)), *beside]
    text = with_made_kernels(with_headers(path, places))
    if re.search(r"\bReal\b", text) and not _REAL.search(text):
        return f'#include "rung.cuh"\n#line 1 "{path}"\n{text}'
    return text


class CudaRung(Rung):
    """A `.cu` file: header and kernels, bound by parameter name."""

    kind = "cuda"

    def __init__(
        self, operation: Operation, path: Path, table: dict[str, Any] | None = None, form: str = ""
    ) -> None:
        self._source = read_text(path)
        self._whole = whole_text(path)
        self.table = header.table(self._source, str(path)) if table is None else table
        if form:
            self.table = header.in_format(self.table, form, str(path))
        name = f"{path.stem}_{form}" if form else path.stem
        super().__init__(operation, name, path, header.of_table(self.table, str(path)))
        if not _of_a_ladder(path):
            with suppress(RungError):  # it is told where the parameters are bound
                every = ((p, self._target(p, e)) for e in self.header.launches for p in self.parameters[e.kernel])
                numbers = {str(target): None for p, target in every if not p.pointer}
                self.operation = self.operation.with_numbers(numbers)
        self._purposes: tuple[str, ...] = ()
        for name in self.header.constants:
            if name not in [o.name for o in operation.operands]:
                known = ", ".join(o.name for o in operation.operands)
                raise RungError(f"{path}: constants.{name} is no operand of {operation.name}; it has {known}.")

    @property
    def source(self) -> str:
        return self._source

    def built_for(self, purpose: str) -> Self:
        """The same rung compiled with `purpose` defined, such as RUNG_TIMED: for tools, not for measuring its speed."""
        other = copy.copy(self)
        other._purposes = (*self._purposes, purpose)
        return other

    def for_architecture(self, number: int) -> Self:
        """The same rung with the branches of its text that another __CUDA_ARCH__ takes."""
        other = copy.copy(self)
        text = re.sub(r"\b__CUDA_ARCH__\b", "RUNG_CUDA_ARCH", self._whole)
        other._whole = f'#define RUNG_CUDA_ARCH {number}\n#line 1 "{self.path}"\n{text}'
        return other

    @cached_property
    def align(self) -> header.Expression:
        assert self.path is not None
        declared = self.header.align
        return alignment.of_source(self._source, (self.path.parent, INCLUDE)) if declared is None else declared

    @cached_property
    def parameters(self) -> dict[str, tuple[Parameter, ...]]:
        """The parameters of each launched kernel; of types with conditional names, those that [define] chooses."""
        kernels = dict.fromkeys(entry.kernel for entry in self.header.launches)
        defines = "".join(f"#define {name}\n" for name in self.header.define)
        found = {k: kernel_parameters(defines + self._whole, k, str(self.path)) for k in kernels}
        if {p.ctype for parameters in found.values() for p in parameters if p.pointer} <= {"Real", *POINTEES}:
            return found
        assert self.path is not None
        whole = defines + with_headers(self.path, ())
        return {k: kernel_parameters(whole, k, str(self.path)) for k in kernels}

    def signature(self, kernel: str) -> tuple[Parameter, ...]:
        return self.parameters[kernel]

    @cached_property
    def binds(self) -> frozenset[str]:
        operands = {o.name for o in self.operation.operands}
        bound = set(self.header.constants) | {m.operand for m in self.header.maps.values()} & operands
        for entry in self.header.launches:
            for parameter in self.parameters[entry.kernel]:
                target = self._target(parameter, entry)
                if parameter.pointer and isinstance(target, str) and target in operands:
                    bound.add(target)
        return frozenset(bound)

    def _target(self, parameter: Parameter, entry: header.Launch) -> str | int | float:
        return entry.bind.get(parameter.name, self.header.bind.get(parameter.name, parameter.name))

    def _require_parameters_for_bind(self) -> None:
        """Refuses misspelt names in [bind], which would otherwise be ignored."""
        of = {kernel: [p.name for p in parameters] for kernel, parameters in self.parameters.items()}
        every = list(dict.fromkeys(name for names in of.values() for name in names))
        tables = [(self.header.bind, every), *((e.bind, of[e.kernel]) for e in self.header.launches)]
        for bind, known in tables:
            for name in bind:
                if name not in known:
                    raise RungError(f"{self.path}: bind.{name} is no kernel parameter; there are {', '.join(known)}.")

    def too_large(self, values: Values, dtype: Dtype, tuning: Tuning, device: Device) -> str | None:
        try:
            here = limits.limits(arch(device))
            launches = self.launches(values, dtype, tuning, device)
        except RungError:
            return None  # for a GPU that is not in the table, the driver decides
        for kernel, config in launches:
            reason = limits.refusal(here, config)
            if reason is not None:
                return f"{self.full_name} does not fit this GPU ({kernel}: {reason})"
        return None

    def require_compiled(self, values: Values, dtype: Dtype, archs: tuple[str, ...]) -> None:
        """A CompileError with what NVRTC refuses. A check itself reports a missing compiler."""
        from gpuless.compile import nvrtc

        if self.emulate:
            return
        build = self.build(values, dtype)
        for each in archs:
            try:
                nvrtc.compile_cubin(build.with_lines, each)  # with lines, as the machine takes it
            except CompileError:
                raise
            except RungError:
                continue

    def unfit(self, values: Values, dtype: Dtype, tuning: Tuning, arch: str, device: Device = "emulator") -> str | None:
        """Why the compiled code cannot be launched on this architecture; compiles what is not in the cache."""
        from gpuless.compile import nvrtc

        cubin = nvrtc.compile_cubin(self.build(values, dtype, tuning), arch)
        for kernel, config in self.launches(values, dtype, tuning, device, emulated=False):
            needs = cubin.resources[kernel]
            most = cubin.most_threads(kernel)
            reason = limits.refusal(limits.limits(cubin.arch), config, needs.registers, needs.static_shared, most)
            if reason is not None:
                return f"{self.full_name} does not fit this GPU ({kernel}: {reason})"
        return None

    def build(self, values: Values, dtype: Dtype, tuning: Tuning = None) -> Build:
        """Everything that determines the compiled code at this shape."""
        from gpuless.launch import Build

        names = self.names(values, dtype, tuning)
        defines = {dtype.macro: "1", **dict.fromkeys(self._purposes, "1")}
        defines |= {name: str(value) for name, value in self.tuned(tuning).items()}
        for name, expression in {**{f"DIM_{dim}": dim for dim in self.header.dims}, **self.header.define}.items():
            defines[name] = str(evaluate_int(expression, names, f"define.{name}"))
        assert self.path is not None
        launched = frozenset(re.findall(r"[A-Za-z_]\w*", " ".join(self.parameters)))
        return Build(
            # what another kernel of somebody's file lacks is no fault of the kernel that is judged
            source=device_part(self._whole, only=None if _of_a_ladder(self.path) else launched),
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
        tuning: Tuning = None,
        device: Device = "emulator",
        *,
        emulated: bool | None = None,
    ) -> list[tuple[str, LaunchConfig]]:
        """The kernels that a call at this shape launches, and how; if not `emulated`, for a GPU, even if there is none
        here."""
        names = self.names(values, dtype, tuning, device=device)
        if emulated is not None:
            names = names.also(emulated=int(emulated))
        return [(e.kernel, self._config(e, scope)) for e, scope in self._schedule(names)]

    def _schedule(self, names: Names) -> Iterator[tuple[header.Launch, Names]]:
        """The launches in their order, each with the names that its expressions may use."""
        for each, group in itertools.groupby(self.header.launches, key=lambda entry: entry.each):
            entries = list(group)
            rounds = [names]
            if each is not None:
                count = evaluate_int(each[1], names, f"each.{each[0]}")
                if count > MOST_ROUNDS:
                    raise RungError(f"{self.path}: each.{each[0]} = {count:,}; at most {MOST_ROUNDS:,} rounds are run.")
                size = sum(map(_size, entries)) + sum(len(str(e)) for e in self.header.let.values())
                if count * size > MOST_TEXT:
                    raise RungError(
                        f"{self.path}: each.{each[0]} = {count:,} rounds of {size:,} characters of expressions are too "
                        "many; shorten them."
                    )
                rounds = [names.also(**{each[0]: i}) for i in range(count)]
            for scope in rounds:
                for entry in entries:
                    if entry.when is None or bool(evaluate(entry.when, scope)):
                        yield entry, scope

    def require_bindable(self, values: Values, dtype: Dtype) -> None:
        """Refuses parameters whose names or types cannot be bound, before anything is compiled, and without torch."""

        def typed(kind: str) -> Any:
            return Typed(f"torch.{ELEMENTS.get(dtype.stored if kind == 'real' else kind)}")

        self._require_parameters_for_bind()
        launched = {e.kernel.partition("<")[0] for e in self.header.launches}  # another kernel's array does not count
        dynamic = (k for k in launched if _uses_dynamic(body_of(self._whole, k)))
        if all(e.shared == 0 for e in self.header.launches) and (kernel := next(dynamic, None)):
            raise RungError(
                f"{self.path}: {kernel} has an `extern __shared__` array, and no launch gives it memory; add its bytes "
                'to [[launch]], as in shared = "4 * C".'
            )
        tensors = {o.name: typed(o.dtype) for o in self.operation.operands}
        buffers = {name: typed(buffer.dtype) for name, buffer in self.header.buffers.items()}
        bound = Arguments(self, tensors, buffers, dtype, dict.fromkeys(self.header.maps))
        for _ in self.calls(bound, self.names(values, dtype, None)):
            pass

    def _config(self, entry: header.Launch, names: Values) -> LaunchConfig:
        from gpuless.launch import LaunchConfig

        def three(expressions: tuple[header.Expression, ...], what: str) -> tuple[int, int, int]:
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

    def bound(self, call: Call) -> Prepared:
        self._require_parameters_for_bind()
        every = call.tensors | call.buffers
        bound = Arguments(self, call.tensors, call.buffers, call.dtype, self.maps(every, call.names, call.dtype))
        module = load_module(self.build(call.values, call.dtype, call.tuning), call.device)
        steps: list[Callable[[], None]] = [*call.zeroed]
        for name, symbol in self.header.constants.items():
            steps.append(_constant_step(module, symbol, bound.operand(name)))
        launched: list[tuple[str, LaunchConfig]] = []
        for kernel, config, arguments in self.calls(bound, call.names):
            module.prepare(kernel, config)
            steps.append(module.bind(kernel, config, arguments))
            launched.append((kernel, config))

        def run() -> None:
            for step in steps:
                step()

        only = steps[0] if len(steps) == 1 else run
        return Prepared(self, only, call.tuning, launched, module, call.buffers)

    def calls(self, bound: Arguments, names: Names) -> Iterator[tuple[str, LaunchConfig, list[Argument]]]:
        """The launches of a call on these arguments."""
        for entry, scope in self._schedule(names):
            given = (self._target(p, entry) for p in self.parameters[entry.kernel])
            pairs = zip(self.parameters[entry.kernel], given, strict=True)
            arguments = [bound.argument(p, entry.kernel, target, scope) for p, target in pairs]
            yield entry.kernel, self._config(entry, scope), arguments

    def maps(self, tensors: Tensors, names: Values, dtype: Dtype) -> dict[str, TensorMap | None]:
        """The tensor maps of the header for these operands and buffers."""

        def numbers(expressions: Iterable[header.Expression], what: str) -> tuple[int, ...]:
            return tuple(evaluate_int(e, names, f"maps.{what}") for e in expressions)

        made: dict[str, TensorMap | None] = {}
        for name, entry in self.header.maps.items():
            if not evaluate(entry.when, names):
                made[name] = None
                continue
            if entry.operand not in tensors:
                known = ", ".join(tensors)
                raise RungError(
                    f"{self.path}: maps.{name} is of {entry.operand!r}, which does not exist; there are {known}."
                )
            tensor = tensors[entry.operand]
            dims, strides = numbers(entry.dims, f"{name}.dims"), numbers(entry.strides, f"{name}.strides")
            if not strides and not is_contiguous(tensor):
                raise RungError(
                    f"{self.path}: maps.{name} gives no strides, and {entry.operand} has gaps; write strides."
                )
            offset, swizzle, promotion = numbers((entry.offset, entry.swizzle, entry.promotion), name)
            made[name] = TensorMap(
                name=name,
                tensor=tensor,
                dims=dims or tuple(tensor.shape),
                strides=strides or packed_strides(dims or tuple(tensor.shape)),
                box=numbers(entry.box, f"{name}.box"),
                offset=offset,
                swizzle=swizzle,
                promotion=promotion,
                fill="nan" if entry.fill == "nan" else "zeros",
                tf32=entry.tf32 and dtype.name == "tf32",
            )
        return made


_making = [threading.RLock() for _ in range(64)]  # one for each of so many classes of builds


def load_module(build: Build, device: Device) -> Module:
    """The compiled kernels of `build` on the current GPU, or emulated."""
    with _making[hash(build) % len(_making)]:  # threads that need the same code at the same time
        return _on_gpu(build, torch.cuda.current_device()) if device == "cuda" else _emulated(build)


@lru_cache(maxsize=256)  # a shape is prepared for many sets of tensors, and its code is looked up once
def _on_gpu(build: Build, index: int) -> Module:
    from rung.cuda import driver

    with torch.cuda.device(index):
        return driver.load_module(build)


@lru_cache(maxsize=256)
def _emulated(build: Build) -> Module:
    import gpuless

    return gpuless.load(build)


def _constant_step(module: Module, symbol: str, tensor: Array) -> Callable[[], None]:
    module.set_constant(symbol, tensor)  # also refuses a symbol that is missing or too small
    return lambda: module.set_constant(symbol, tensor)
