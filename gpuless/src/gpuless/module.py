"""Kernels executed on a CPU behind the interface of a loaded CUDA module: the machine code that a GPU would run."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from gpuless import guard, machine, tensor_map, timing
from gpuless.base.errors import EmulatorFault, UserError
from gpuless.base.lazy import torch
from gpuless.compile import nvrtc
from gpuless.compile.source import kernel_parameters
from gpuless.counts import counters, coverage
from gpuless.facts import limits
from gpuless.launch import Argument, Build, LaunchConfig, Resources

Order = Literal["forward", "reverse", "shuffled"]
_ORDERS: tuple[Order, ...] = ("forward", "reverse", "shuffled")
_FORMATS = {"i32": "i", "u32": "I", "i64": "q", "u64": "Q", "f32": "f", "f64": "d", "bool": "?", "f16": "e"}
_POINTING = ("pointer", "tensor_map")
_one_at_a_time = threading.Lock()  # counts and traces are those of the last launch
MOST_BLOCKS = 1 << 26  # of a launch; the machine keeps their order, and they take a minute at least
_PATTERNS = 5  # patterns of unwritten memory: NaN first, then others from launch to launch
CONSTANT_ROOM = 64 * 1024  # bytes of __constant__ memory that a module has


@dataclass(frozen=True)
class Settings:
    """How threads take turns. A result that depends on `order` or `seed` is a race."""

    order: Order = "forward"
    seed: int = 0
    poison: bool = True  # at the start of every block, shared memory holds a pattern that no kernel has written
    seconds: float = 6.0  # of CPU time without any thread ending, until the launch is stopped
    steps: int = 0  # instructions of warps, until the launch is stopped; 0: no limit
    check_races: bool = False  # accesses that nothing orders are looked for; takes twice as long
    counters: bool = False  # what the instructions do is counted; counters.py reports it by line
    coverage: bool = False  # branches are counted; coverage.py reports them by line
    few: bool = False  # of each launch only the first, the middle and the last block run
    arch: str = machine.ARCH  # that modules are compiled for, and whose limits hold


_ambient = Settings()


@contextlib.contextmanager
def under(**changes: Any) -> Iterator[None]:
    """Inside, modules without settings of their own use the ambient ones with these changes."""
    global _ambient
    before, _ambient = _ambient, replace(_ambient, **changes)
    try:
        yield
    finally:
        _ambient = before


_launched = 0  # kernels


def launching() -> bool:
    """Counts a launch, and returns whether it is to run."""
    global _launched
    _launched += 1
    global _left_out
    if _left_out is None:
        return True
    _left_out -= 1
    if _left_out < 0:
        raise UserError("the run waits for what its kernels would have written")
    return False


_left_out: int | None = None  # launches that may still be skipped in this run


@contextlib.contextmanager
def without_launches(most: int = 10_000) -> Iterator[None]:
    """Inside, launches of rung and Triton do nothing."""
    global _left_out
    _left_out = most
    try:
        yield
    finally:
        _left_out = None


def launches_ran() -> int:
    """How many kernels have been launched in this process, Triton's included."""
    return _launched


_followed = False  # whether a dependent launch has been bound: those ahead of such keep what they touch
_ahead = False  # whether an unknown kernel may still run when the next launch begins


def begin() -> None:
    """The next launch may start while an unknown kernel still runs: one of another part of the model."""
    global _ahead
    _ahead = True


def ambient() -> Settings:
    """The settings of modules without their own."""
    return _ambient


_atomics, _steps, _unwritten = 0, 0, ""


def steps() -> int:
    """Instructions of warps that have run in this process."""
    return _steps


def atomics_ran() -> int:
    """How many read-modify-writes kernels have done in this process."""
    return _atomics


def unwritten_read() -> str:
    """The last read of shared or local memory that nothing had written, by a kernel of the module that was loaded last,
    as a sentence; empty if there was none."""
    return _unwritten


def load(build: Build, *, settings: Settings | None = None) -> EmulatedModule:
    """Compiles `build` (or takes it from the cache) and loads it; without settings, see `under`."""
    return EmulatedModule(build, settings)


class EmulatedModule:
    """Kernels of one source, launched on CPU tensors, synchronously."""

    def __init__(self, build: Build, settings: Settings | None = None) -> None:
        global _unwritten
        self._build, self._own, _unwritten = build, settings, ""
        if self.settings.order not in _ORDERS:
            raise UserError(f"Thread order '{self.settings.order}' is not known: take one of {', '.join(_ORDERS)}.")
        self._variables: dict[str, machine.Variables] = {}  # by architecture
        _ = self.resources  # what does not compile is refused now
        self._ready: set[tuple[str, LaunchConfig, str]] = set()
        self._constants: dict[str, int] = {}

    @property
    def settings(self) -> Settings:
        return self._own or _ambient

    @property
    def _arch(self) -> str:
        return self.settings.arch

    @property
    def resources(self) -> Mapping[str, Resources]:
        """What the compiler reports."""
        return machine.resources(self._build, self._arch)

    def prepare(self, kernel: str, config: LaunchConfig) -> None:
        """Checks the launch against the limits of the architecture."""
        if (kernel, config, self._arch) in self._ready:
            return
        if kernel not in self._build.kernels:
            raise UserError(
                f"Kernel '{kernel}' was not built from {self._build.origin}; "
                f"built are {', '.join(self._build.kernels)}."
            )
        name, static = f"{self._build.origin}, kernel '{kernel}'", self.resources[kernel].static_shared
        if static > limits.DEFAULT_SHARED:
            raise EmulatorFault(
                "shared",
                f"{name} declares {static} bytes of shared memory; {limits.DEFAULT_SHARED} is the most for __shared__ "
                "arrays of fixed size: use `extern __shared__` and the launch's `shared`.",
            )
        here = limits.limits(self._arch)
        if reason := limits.refusal(here, config, static_shared=static):
            too_much = static + config.shared > here.shared_block
            raise EmulatorFault("shared", f"{name}: {reason}.") if too_much else UserError(f"{name}: {reason}.")
        if (blocks := math.prod(config.grid)) > MOST_BLOCKS:
            raise UserError(f"{name}: {blocks:,} blocks are more than the emulator runs, at most {MOST_BLOCKS:,}.")
        self._ready.add((kernel, config, self._arch))

    def launch(self, kernel: str, config: LaunchConfig, args: Sequence[Argument]) -> None:
        """Runs the whole grid before it returns."""
        self.bind(kernel, config, args)()

    def bind(self, kernel: str, config: LaunchConfig, args: Sequence[Argument]) -> Callable[[], None]:
        """The same launch, packed once, for repeated calls."""
        global _followed
        self.prepare(kernel, config)
        _followed |= config.pdl
        values = self._pack(kernel, args)
        program, variables = machine.program(self._build, kernel, self._arch), self._own_variables()

        def go() -> None:
            if not launching():
                return
            regions = self._regions(kernel, args)
            # A model's tensors are not guarded, and its kernels follow pointers that lie in memory.
            bounds = any(guard.data_at(region.start) for region in regions)
            execute(program, config, variables, values, regions, self.settings, bounds=bounds)
            if config.pdl:
                executed = zip(program.instructions, program.tally(), strict=True)
                self._require_wait(kernel, any(warps for i, (warps, _) in executed if i.name == "ACQBULK"))

        return go

    def _regions(self, kernel: str, args: Sequence[Argument]) -> list[machine.Region]:
        names = [p.name for p in kernel_parameters(self._build.source, kernel, self._build.origin)]
        named = zip(names if len(names) == len(args) else [""] * len(args), args, strict=True)
        tensors = ((name, getattr(value, "tensor", value)) for name, (kind, value) in named if kind in _POINTING)
        return regions_of(tensors)

    def _require_wait(self, kernel: str, waits: bool) -> None:
        if not waits:
            raise EmulatorFault(
                "async",
                f"{self._build.origin}: kernel '{kernel}' is launched with pdl, and no thread waits for the kernel "
                "before it (pdl_wait).",
            )

    def _own_variables(self) -> machine.Variables:
        if self._arch not in self._variables:
            cubin = nvrtc.compile_cubin(self._build.with_lines, self._arch)
            self._variables[self._arch] = machine.Variables(cubin.path.read_bytes())
        return self._variables[self._arch]

    def _constant(self, symbol: str) -> tuple[int, int] | None:
        """The address and the size of a __constant__ variable."""
        return self._own_variables().constant(symbol)

    def set_constant(self, symbol: str, tensor: torch.Tensor) -> None:
        """Copies a tensor into a `__constant__` array."""
        found = self._constant(symbol)
        if found is None:
            raise UserError(
                f"{self._build.origin} has no __constant__ variable named '{symbol}' (outside functions, not static)."
            )
        address, capacity = found
        source = tensor.detach().contiguous()
        size = source.numel() * source.element_size()
        if size > capacity:
            raise UserError(
                f"{self._build.origin}: constant '{symbol}' has room for {capacity} bytes, and {size} were given."
            )
        self._constants[symbol] = capacity
        total = sum(self._constants.values())
        if total > CONSTANT_ROOM:
            raise UserError(
                f"{self._build.origin}: the constants {', '.join(self._constants)} take {total} bytes, and constant "
                f"memory has {CONSTANT_ROOM}: pass what is larger as a pointer."
            )
        ctypes.memmove(address, source.data_ptr(), size)

    def _pack(self, kernel: str, args: Sequence[Argument]) -> list[machine.Bytes]:
        sizes = self._sizes(kernel)
        if len(sizes) != len(args):
            raise UserError(
                f"{self._build.origin}: kernel '{kernel}' has {len(sizes)} parameters, and {len(args)} were given."
            )
        packed = []
        for i, ((kind, value), size) in enumerate(zip(args, sizes, strict=True)):
            data = _bytes_of(kind, value)
            if len(data) != abs(size) or (kind == "pointer" and size > 0) or (kind != "pointer" and size < 0):
                raise UserError(
                    f"{self._build.origin}: parameter {i + 1} of kernel '{kernel}' is "
                    f"{'a pointer' if size < 0 else f'a value of {size} bytes'}, and a {kind} was given."
                )
            packed.append(machine.aligned(data, 64))
        return packed

    def _sizes(self, kernel: str) -> list[int]:
        """Bytes of each parameter, negative for a pointer."""
        sizes = [size for _, size in machine.program(self._build, kernel, self._arch).memory.parameters]
        named = kernel_parameters(self._build.source, kernel, self._build.origin)
        pointers = [p.pointer for p in named] if len(named) == len(sizes) else [False] * len(sizes)
        return [-size if pointer else size for size, pointer in zip(sizes, pointers, strict=True)]


def regions_of(tensors: Iterable[tuple[str, torch.Tensor | None]]) -> list[machine.Region]:
    """The memory that a launch on these may touch: the data of a guarded tensor, else the storage."""
    found, guarded = {}, False
    for name, tensor in tensors:
        if tensor is None or not tensor.untyped_storage().nbytes():
            continue
        storage, data = tensor.untyped_storage(), guard.data_at(tensor.data_ptr())
        guarded |= data is not None
        place = data or guard.Data(storage.data_ptr(), storage.data_ptr() + storage.nbytes())
        size = tensor.element_size()
        found[place.start] = machine.Region(place.start, place.end, name, size, place.written, place.constant)
    for place in guard.alive() if guarded else ():  # behind pointers that lie in memory
        found.setdefault(place.start, machine.Region(place.start, place.end, "", 1, place.written, place.constant))
    return [*found.values()]


def execute(
    program: machine.Program,
    config: LaunchConfig,
    variables: machine.Variables,
    values: Sequence[machine.Bytes],
    regions: Sequence[machine.Region],
    settings: Settings | None = None,
    *,
    bounds: bool = True,
    tiles: bool = False,
) -> None:
    """Runs a kernel's machine code on the whole grid; what it counts is kept where counts are recorded. `bounds`: no
    memory outside the regions is touched. `tiles`: the code is Triton's, whose threads hold elements of tiles."""
    global _ahead, _atomics, _steps, _unwritten
    settings = settings or _ambient
    with _one_at_a_time:
        asked = machine.Asked(
            order=_ORDERS.index(settings.order),
            seed=settings.seed & 0xFFFFFFFF,
            races=settings.check_races,
            seconds=settings.seconds,
            steps=settings.steps,
            poison=1 + max(_launched - 1, 0) % _PATTERNS if settings.poison else 0,
            ahead=_ahead,
            followed=_followed,
            bounds=bounds,
            tiles=tiles,
            counts=settings.counters,
            room=counters.room() if settings.counters else 0,
            few=settings.few,
        )
        _ahead = False
        execute = functools.partial(machine.run, program, config, variables, values, asked, regions)
        try:
            if timing.recording():
                timing.run(program, config, execute)
            else:
                execute()
        finally:  # what a launch has done that is stopped counts, too
            tally = program.tally()
            _steps += sum(warps for warps, _ in tally)
            _atomics += sum(tally[n][1] for n in program.atomics)
            if settings.coverage:
                coverage.add(program, tally)
        if found := machine.unwritten(program, config) if settings.poison else None:
            _unwritten = str(found)
        if settings.counters:
            counters.collect(program, config)


def _bytes_of(kind: str, value: Any) -> bytes:
    if kind == "pointer":
        if value is not None and value.device.type != "cpu":
            raise UserError(f"The emulator takes CPU tensors, and one on {value.device} was given.")
        return struct.pack("P", 0 if value is None else value.data_ptr())
    if kind == "tensor_map":
        packed: bytes = value.emulated() if value else bytes(tensor_map.SIZE)
        return packed
    if kind == "bf16":
        return struct.pack("h", torch.tensor(value, dtype=torch.bfloat16).view(torch.int16).item())
    if kind not in _FORMATS:
        raise UserError(f"An argument of kind '{kind}' is not known: take pointer, bf16, {', '.join(_FORMATS)}.")
    try:
        return struct.pack(_FORMATS[kind], value)
    except (struct.error, OverflowError) as problem:
        raise UserError(f"{value!r} does not fit a parameter of kind {kind}: {problem}.") from None

