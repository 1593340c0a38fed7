"""The public interface in Python: compile or load kernels, launch them in a session, count, and predict time."""

from __future__ import annotations

import inspect
import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpuless import cubins, guard, machine, session, timing
from gpuless.base.errors import UserError
from gpuless.compile import nvrtc
from gpuless.compile.source import kernel_parameters, kernels_in
from gpuless.counts import coverage
from gpuless.counts.counters import Launched
from gpuless.cubins import Parameter
from gpuless.facts import gpus
from gpuless.launch import Build, LaunchConfig

Size = int | tuple[int, ...]
Arguments = Sequence[Any] | Mapping[str, Any]


class Kernel(NamedTuple):
    """A kernel of a module, and the names and C types of its parameters where they are known."""

    module: cubins.Loaded
    symbol: str
    parameters: tuple[str, ...] = ()
    types: tuple[str, ...] = ()


class Module:
    """Compiled kernels by name: `module["gelu"]`, an instance of a template as it was asked for, or a mangled name or a
    unique part of it."""

    def __init__(self, loaded: cubins.Loaded, named: Mapping[str, Kernel] | None = None) -> None:
        self._loaded = loaded
        self._named = {name.replace(" ", ""): kernel for name, kernel in (named or {}).items()}

    @property
    def kernels(self) -> list[str]:
        return list(self._loaded.kernels)

    def __getitem__(self, name: str) -> Kernel:
        if asked_for := self._named.get(name.replace(" ", "")):
            return asked_for
        symbol = cubins.select_kernel(self.kernels, name, self._loaded.origin)
        known = (kernel for kernel in self._named.values() if kernel.symbol == symbol)
        return next(known, Kernel(self._loaded, symbol))


def compile_cuda(
    source: str,
    *,
    arch: str = machine.ARCH,
    kernels: Sequence[str] = (),
    defines: Mapping[str, object] | None = None,
    include: Sequence[str] = (),
    origin: str = "kernel.cu",
) -> Module:
    """Compiles CUDA C++ for an architecture. `kernels` names instances of templates ("scale<float>");
    `origin` is the file that faults name."""
    names = tuple(kernels) or tuple(kernels_in(source))
    macros = tuple((name, str(value)) for name, value in (defines or {}).items())
    cubin = nvrtc.compile_cubin(Build(source, origin, names, macros, include=tuple(include)).with_lines, arch)
    loaded, named = cubins.loaded(cubin.path.read_bytes(), origin), dict[str, Kernel]()
    for name in names:
        parameters = kernel_parameters(source, name, origin)
        types = tuple("" if p.pointer else p.ctype for p in parameters)
        named[name] = Kernel(loaded, cubin.lowered[name], tuple(p.name for p in parameters), types)
    return Module(loaded, named)


def load_cubin(path: str | Path) -> Module:
    """Loads a cubin that any compiler has made."""
    return Module(cubins.read(Path(path)))


class Session(session.Session):
    """How launches run and what is looked for, with the record of those that ran here.

    `order` ("forward", "reverse", "shuffled") and `seed` say in which order blocks and warps run. With `races`,
    accesses that nothing orders are faults; with `counts`, instructions and memory traffic are counted by line; with
    `covers`, lines that ran are recorded. `seconds` and `steps` limit a launch. A fault is raised as EmulatorFault.
    """

    def __init__(
        self,
        *,
        order: session.Order = "forward",
        seed: int = 0,
        races: bool = True,
        counts: bool = False,
        covers: bool = False,
        seconds: float = 60.0,
        steps: int = 0,
    ) -> None:
        looked_for = {"check_races": races, "counters": counts, "coverage": covers}
        super().__init__(order=order, seed=seed, seconds=seconds, steps=steps, **looked_for)
        if counts:
            self.counts = []

    def memory(self, array: Any, *, writable: bool = True) -> Any:
        """A copy of a numpy array between pages that fault when touched. Without `writable`, a kernel that writes it is
        at fault."""
        array = np.asarray(array)
        raw = guard.guarded_empty(array.nbytes)
        guard.mark_data(raw, 0, array.nbytes, written=writable)
        copy = raw.view(array.dtype).reshape(array.shape)
        copy[...] = array
        return copy

    def launch(
        self,
        kernel: Kernel,
        grid: Size,
        block: Size,
        arguments: Arguments,
        *,
        shared: int = 0,
        cluster: Size | None = None,
        cooperative: bool = False,
    ) -> None:
        """Runs the whole grid before it returns. Arguments are arrays (of numpy, or torch's on a CPU), None for a null
        pointer, numpy scalars, and Python's numbers, which take the size of their parameter."""
        with self:
            _launch(kernel, _config(grid, block, shared, cluster, cooperative), arguments)

    def traffic(self) -> list[Launched]:
        """What each launch of this session counted."""
        if self.counts is None:
            raise UserError("this session does not count; open it as Session(counts=True).")
        return list(self.counts)

    def missed(self) -> list[coverage.Place]:
        """Lines of the source, and accesses to memory on others, that no launch of this session has reached."""
        ran = self.coverage.take()
        self.coverage.put(ran)
        return coverage.missed(ran)


class Prediction(NamedTuple):
    """How long a launch takes by the model of a GPU: it is computed, not measured."""

    gpu: str
    microseconds: float
    stalls: Sequence[Sequence[float]]  # of each instruction, clocks of warps by the reason why they did not issue


def predict(
    kernel: Kernel,
    grid: Size,
    block: Size,
    arguments: Arguments,
    *,
    gpu: str = gpus.USUAL,
    shared: int = 0,
    cluster: Size | None = None,
) -> Prediction:
    """Predicts the time of a launch on a GPU, with cold caches. Only blocks that stand for the grid are executed."""
    here = session.Session(poison=False, seconds=60.0)
    with here, here.predicted(gpu) as launches:
        _launch(kernel, _config(grid, block, shared, cluster, cooperative=False), arguments)
    of = gpus.find(gpu)
    return Prediction(of.name, sum(timing.microseconds(of, one) for one in launches), launches[-1].stalls)


def _launch(kernel: Kernel, config: LaunchConfig, arguments: Arguments) -> None:
    sizes = [size for _, size in kernel.module.program(kernel.symbol).memory.parameters]
    if isinstance(arguments, Mapping):
        named = inspect.Signature([inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY) for n in kernel.parameters])
        try:
            arguments = list(named.bind(**arguments).kwargs.values())
        except TypeError as problem:
            have = ", ".join(kernel.parameters) or "none that are known"
            raise UserError(f"kernel '{kernel.symbol}': {problem}; its parameters are {have}.") from None
    if len(arguments) != len(sizes):
        raise UserError(f"kernel '{kernel.symbol}' has {len(sizes)} parameters, and {len(arguments)} were given.")
    names = kernel.parameters or [f"argument {n}" for n in range(1, len(sizes) + 1)]
    types = kernel.types or [""] * len(sizes)
    packed = [_parameter(*each) for each in zip(names, arguments, sizes, types, strict=True)]
    kernel.module.launch(kernel.symbol, config, packed)


_KINDS = {"float": "f32", "double": "f64", **dict.fromkeys(("half", "__half"), "f16"),
          **dict.fromkeys(("nv_bfloat16", "__nv_bfloat16"), "bf16")}  # fmt: skip
_WHOLE = re.compile(r"(unsigned|signed|long|short|int|char|bool|size_t|uint|u?int\d+_t|\s)+")


def _parameter(name: str, value: Any, size: int, ctype: str) -> Parameter:
    if value is None or hasattr(value, "data_ptr") or isinstance(value, np.ndarray):
        return cubins.of_tensor(name, value)
    if isinstance(value, np.generic):
        return Parameter(name, value.tobytes())
    if isinstance(value, bytes):
        return Parameter(name, value)
    if ctype in _KINDS and isinstance(value, int | float):
        return cubins.of_number(name, _KINDS[ctype], value)
    if isinstance(value, float) and _WHOLE.fullmatch(ctype):
        if not value.is_integer():
            raise UserError(f"{name} is of type {ctype}, and {value!r} is no whole number.")
        value = int(value)
    formats = {1: "?" if isinstance(value, bool) else "b", 2: "h", 4: "i", 8: "q"}
    if isinstance(value, float):
        formats = {2: "e", 4: "f", 8: "d"}
    if size not in formats:
        raise UserError(f"{name} has {size} bytes; give bytes instead of {value!r}.")
    code = formats[size]
    try:
        return Parameter(name, struct.pack(f"<{code}", value))
    except struct.error:
        return Parameter(name, struct.pack(f"<{code.upper()}", value))


def _config(grid: Size, block: Size, shared: int, cluster: Size | None, cooperative: bool) -> LaunchConfig:
    return LaunchConfig(_three(grid), _three(block), shared, cooperative, _three(cluster) if cluster else None)


def _three(size: Size) -> tuple[int, int, int]:
    x, y, z = (*((size,) if isinstance(size, int) else size), 1, 1)[:3]
    return x, y, z
