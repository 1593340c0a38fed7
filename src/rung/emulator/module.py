"""Emulated kernels behind the interface of a loaded CUDA module: compiled by g++, or their machine code, to count."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import re
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from rung.cuda import limits, nvrtc, tensor_map
from rung.cuda.elf import shared_symbols
from rung.cuda.launch import Argument, Build, LaunchConfig, Resources
from rung.cuda.source import kernel_parameters
from rung.emulator import counters, machine, native
from rung.emulator.guard import mapping_of
from rung.emulator.translation import LIMITS, Variant, translate
from rung.errors import FAULTS, EmulatorFault, FaultKind, RungError
from rung.lazy import torch

Order = Literal["forward", "reverse", "shuffled"]
_ORDERS: tuple[Order, ...] = ("forward", "reverse", "shuffled")
_FORMATS = {"i32": "i", "u32": "I", "i64": "q", "u64": "Q", "f32": "f", "f64": "d", "bool": "?", "f16": "e"}
_one_at_a_time = threading.Lock()  # the runtime's state is global
_NOWHERE = 0xFFFFFFFF
SIZES = {"float": 4, "int": 4, "unsigned": 4, "double": 8, "half": 2, "__half": 2, "float2": 8, "float4": 16}
_SHARED_ROOM = 1 << 20
MOST_BLOCKS = 1 << 26  # of a launch; the runtime keeps their order, and they take a minute at least
INSTRUCTION = 8  # switches that take as long as an instruction of a warp on the machine
_PATTERNS = 5  # patterns of unwritten memory: NaN first, then others from launch to launch
CONSTANT_ROOM = 64 * 1024  # bytes of __constant__ memory that a module has


@dataclass(frozen=True)
class Settings:
    """How threads take turns. A result that depends on `order` or `seed` is a race."""

    order: Order = "forward"
    seed: int = 0
    poison: bool = True  # at the start of every block, shared memory holds a pattern that no kernel has written
    seconds: float = 6.0  # of CPU time without any thread ending, until the launch is stopped
    check_races: bool = False  # every access to shared memory is checked; several times slower
    fused: bool = False  # products and sums become fused multiply-adds, as a GPU's compiler makes them
    counters: bool = False  # the machine code runs, and what it does is counted; counters.py reports it by line
    coverage: bool = False  # conditions and loop iterations are counted; coverage.py reports them by line


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
        raise RungError("the run waits for what its kernels would have written")
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


def begin() -> None:
    """The next launch may start while an unknown kernel still runs: one of another part of the model."""
    native.runtime().rung_unknown_launch_ahead()


_unwatched = 0


def unwatched() -> int:
    """The most co-resident threads of a launch that had too many to be checked for races, since the last call."""
    global _unwatched
    most, _unwatched = _unwatched, 0
    return most


def ambient() -> Settings:
    """The settings of modules without their own."""
    return _ambient


_atomics, _instructions = 0, 0  # that warps of machine code have executed


def atomics_ran() -> int:
    """How many read-modify-writes kernels have done in this process."""
    return int(native.runtime().rung_atomics_ran()) + _atomics


def switches() -> int:
    """Switches between threads in this process, which are most of the time of kernels that exchange much data; an
    instruction of a warp counts as many switches as take as long."""
    return int(native.runtime().rung_switches()) + INSTRUCTION * _instructions


def load(build: Build, *, settings: Settings | None = None) -> EmulatedModule:
    """Compiles `build` with g++ (or takes it from the cache) and loads it; without settings, see `under`."""
    return EmulatedModule(build, settings)


class Library:
    """A source, compiled in one way."""

    counting: ClassVar[list[Library]] = []  # those that count

    def __init__(self, build: Build, variant: Variant) -> None:
        native.runtime()
        translation = translate(build, variant)
        self.path, self.static_shared = translation.library, translation.static_shared
        self.code = ctypes.CDLL(str(self.path))
        self.module = ctypes.addressof(ctypes.c_char.in_dll(self.code, "rung_module"))
        self.origin = build.origin
        if variant.coverage:
            self.counting.append(self)
        self.entries = [
            ctypes.cast(getattr(self.code, f"rung_entry_{number}"), ctypes.c_void_p)
            for number in range(len(build.kernels))
        ]

    @property
    def base(self) -> int | None:
        """Its address in memory."""
        return _base_of(self.path)

    def line_of(self, counter: int) -> str:
        """The line of an instruction, through addr2line if binutils are installed."""
        base = self.base
        if not counter or base is None or counter < base:
            return ""
        try:
            result = subprocess.run(
                ["addr2line", "-i", "-e", str(self.path), hex(counter - base)],
                capture_output=True,
                text=True,
                check=True,
            )
        except (OSError, subprocess.CalledProcessError):
            return ""
        for line in result.stdout.splitlines():
            file, _, number = line.partition(" ")[0].rpartition(":")
            if file.endswith(Path(self.origin).name) and number.isdigit():
                return f", line {number}"
        return ""

    def variable(self, offset: int, source: str) -> str:
        """The `__shared__` variable at an offset in a block's shared memory, and its element where that is plain."""
        symbols = [s for s in shared_symbols(self.path) if s.offset <= offset and s.plain != "rung_dynamic_shared"]
        if not symbols:
            return "shared memory"
        nearest = max(symbols, key=lambda s: s.offset)
        within, name = offset - nearest.offset, nearest.plain
        declared = re.search(rf"__shared__\s+(\w+)\s[^;]*?\b{re.escape(name)}\s*\[[^\]]*\](?!\s*\[)", source)
        size = SIZES.get(declared[1]) if declared else None
        return f"shared variable '{name}', " + (f"element {within // size}" if size else f"byte {within}")


class EmulatedModule:
    """Kernels of one source, launched on CPU tensors, synchronously."""

    def __init__(self, build: Build, settings: Settings | None = None) -> None:
        self._build, self._own = build, settings
        if self.settings.order not in _ORDERS:
            raise RungError(f"Thread order '{self.settings.order}' is not known: take one of {', '.join(_ORDERS)}.")
        self._libraries: dict[Variant, Library] = {}
        self._variables: machine.Variables | None = None
        _ = self.resources  # what does not compile is refused now
        self._ready: set[tuple[str, LaunchConfig]] = set()
        self._constants: dict[str, int] = {}
        self._launches = 0

    @property
    def settings(self) -> Settings:
        return self._own or _ambient

    def _library(self, settings: Settings) -> Library:
        variant = Variant(settings.check_races, settings.coverage, settings.fused)
        if variant not in self._libraries:
            self._libraries[variant] = Library(self._build, variant)
        return self._libraries[variant]

    @property
    def resources(self) -> Mapping[str, Resources]:
        """What the compiler reports: g++ only the static shared memory."""
        if self.settings.counters:
            return machine.resources(self._build)
        static = self._library(self.settings).static_shared
        return {kernel: Resources(0, size, 0, 0, 0) for kernel, size in static.items()}

    def prepare(self, kernel: str, config: LaunchConfig) -> None:
        """Checks the launch against the limits of an sm_90."""
        if (kernel, config) in self._ready:
            return
        self._number(kernel)
        name, static = f"{self._build.origin}, kernel '{kernel}'", self.resources[kernel].static_shared
        if static > limits.DEFAULT_SHARED:
            raise EmulatorFault(
                "shared",
                f"{name} declares {static} bytes of shared memory; {limits.DEFAULT_SHARED} is the most for __shared__ "
                "arrays of fixed size: use `extern __shared__` and the launch's `shared`.",
            )
        if reason := limits.refusal(LIMITS, config, static_shared=static):
            too_much = static + config.shared > LIMITS.shared_block
            raise EmulatorFault("shared", f"{name}: {reason}.") if too_much else RungError(f"{name}: {reason}.")
        if (blocks := math.prod(config.grid)) > MOST_BLOCKS:
            raise RungError(f"{name}: {blocks:,} blocks are more than the emulator runs, at most {MOST_BLOCKS:,}.")
        self._ready.add((kernel, config))

    def launch(self, kernel: str, config: LaunchConfig, args: Sequence[Argument]) -> None:
        """Runs the whole grid before it returns."""
        self.bind(kernel, config, args)()

    def bind(self, kernel: str, config: LaunchConfig, args: Sequence[Argument]) -> Callable[[], None]:
        """The same launch, packed once, for repeated calls."""
        self.prepare(kernel, config)
        number = self._number(kernel)
        values = self._pack(kernel, number, args)
        pointers = (ctypes.c_void_p * max(1, len(values)))(*(ctypes.addressof(v) for v in values))
        launch = native.Launch(
            args=ctypes.cast(pointers, ctypes.POINTER(ctypes.c_void_p)),
            grid=native.Index(*config.grid),
            block=native.Index(*config.block),
            cluster=native.Index(*(config.cluster or (1, 1, 1))),
            dynamic_bytes=config.shared,
            cooperative=config.cooperative,
            dependent=config.pdl,
        )

        def go(references: tuple[Any, ...] = (values, pointers, args)) -> None:
            global _unwatched
            report, settings = native.Report(), self.settings
            if not launching():
                return
            if settings.counters:
                self._count(kernel, config, values)
                return
            library = self._library(settings)
            with _one_at_a_time:
                launch.module, launch.entry = library.module, library.entries[number]
                launch.order, launch.seed = _ORDERS.index(settings.order), settings.seed & 0xFFFFFFFF
                launch.races, launch.seconds = settings.check_races, settings.seconds
                launch.poison = 1 + (settings.seed + self._launches) % _PATTERNS if settings.poison else 0
                self._launches += 1
                native.runtime().rung_launch(ctypes.byref(launch), ctypes.byref(report))
                _unwatched = max(_unwatched, report.unwatched)
            if report.fault:
                raise self._fault(kernel, report, args, library)
            self._require_wait(kernel, config, report.waits > 0)

        return go

    def _require_wait(self, kernel: str, config: LaunchConfig, waits: bool) -> None:
        if config.pdl and not waits:
            raise EmulatorFault(
                "async",
                f"{self._build.origin}: kernel '{kernel}' is launched with pdl, and no thread waits for the kernel "
                "before it (pdl_wait).",
            )

    def _count(self, kernel: str, config: LaunchConfig, values: Sequence[machine.Bytes]) -> None:
        """Runs the machine code of the whole grid."""
        program = machine.program(self._build, kernel)
        execute(program, config, self._own_variables(), values, self.settings)
        executed = zip(program.instructions, program.tally(), strict=True)
        self._require_wait(kernel, config, any(warps for i, (warps, _) in executed if i.name == "ACQBULK"))

    def _own_variables(self) -> machine.Variables:
        if self._variables is None:
            cubin = nvrtc.compile_cubin(self._build.with_lines, machine.ARCH)
            self._variables = machine.Variables(cubin.path.read_bytes())
        return self._variables

    def _constant(self, symbol: str) -> tuple[int, int] | None:
        """The address and the size of a __constant__ variable."""
        if self.settings.counters:
            return self._own_variables().constant(symbol)
        capacity = ctypes.c_ulonglong()
        library = self._library(self.settings).code
        address = native.runtime().rung_symbol(library._handle, symbol.encode(), ctypes.byref(capacity))
        return (address, capacity.value) if address else None

    def set_constant(self, symbol: str, tensor: torch.Tensor) -> None:
        """Copies a tensor into a `__constant__` array."""
        found = self._constant(symbol)
        if found is None:
            raise RungError(
                f"{self._build.origin} has no __constant__ variable named '{symbol}' (outside functions, not static)."
            )
        address, capacity = found
        source = tensor.detach().contiguous()
        size = source.numel() * source.element_size()
        if size > capacity:
            raise RungError(
                f"{self._build.origin}: constant '{symbol}' has room for {capacity} bytes, and {size} were given."
            )
        self._constants[symbol] = capacity
        total = sum(self._constants.values())
        if total > CONSTANT_ROOM:
            raise RungError(
                f"{self._build.origin}: the constants {', '.join(self._constants)} take {total} bytes, and constant "
                f"memory has {CONSTANT_ROOM}: pass what is larger as a pointer."
            )
        ctypes.memmove(address, source.data_ptr(), size)

    def _number(self, kernel: str) -> int:
        try:
            return self._build.kernels.index(kernel)
        except ValueError:
            raise RungError(
                f"Kernel '{kernel}' was not built from {self._build.origin}; "
                f"built are {', '.join(self._build.kernels)}."
            ) from None

    def _pack(self, kernel: str, number: int, args: Sequence[Argument]) -> list[machine.Bytes]:
        sizes = self._sizes(kernel, number)
        if len(sizes) != len(args):
            raise RungError(
                f"{self._build.origin}: kernel '{kernel}' has {len(sizes)} parameters, and {len(args)} were given."
            )
        packed = []
        for i, ((kind, value), size) in enumerate(zip(args, sizes, strict=True)):
            data = _bytes_of(kind, value)
            if len(data) != abs(size) or (kind == "pointer" and size > 0) or (kind != "pointer" and size < 0):
                raise RungError(
                    f"{self._build.origin}: parameter {i + 1} of kernel '{kernel}' is "
                    f"{'a pointer' if size < 0 else f'a value of {size} bytes'}, and a {kind} was given."
                )
            packed.append(machine.aligned(data, 64))
        return packed

    def _sizes(self, kernel: str, number: int) -> list[int]:
        """Bytes of each parameter, negative for a pointer."""
        if self.settings.counters:
            sizes = [size for _, size in machine.program(self._build, kernel).memory.parameters]
            named = kernel_parameters(self._build.source, kernel, self._build.origin)
            pointers = [p.pointer for p in named] if len(named) == len(sizes) else [False] * len(sizes)
            return [-size if pointer else size for size, pointer in zip(sizes, pointers, strict=True)]
        shape_of = getattr(self._library(self.settings).code, f"rung_shape_{number}")
        shape_of.restype = ctypes.POINTER(ctypes.c_int)
        shape = shape_of()
        return list(shape[1 : 1 + shape[0]])

    # ---- what went wrong --------------------------------------------------------------------------------------

    def _fault(self, kernel: str, report: native.Report, args: Sequence[Argument], library: Library) -> EmulatorFault:
        kind: FaultKind = FAULTS[report.fault - 1]
        text = report.text.decode(errors="replace")
        text = re.sub(r"\{([0-9a-f]+)\}", lambda place: library.line_of(int(place[1], 16) - 1)[2:] or "some line", text)
        where = f"kernel '{kernel}', block ({report.block.x}, {report.block.y}, {report.block.z})"
        if report.thread.x != _NOWHERE:
            where += f", thread ({report.thread.x}, {report.thread.y}, {report.thread.z})"
        if report.counter:
            where += library.line_of(report.counter)
        if kind == "race":
            line = library.line_of(report.other_counter).replace(", line", " at line") if report.other_counter else ""
            what, _, lacks = text.partition("|")
            text = f"{what}{line}, {lacks}: {self._place(kernel, report.address, args, library)}"
        elif not text:
            text = self._touched(kernel, report.address, args)
        return EmulatorFault(kind, f"{self._build.origin}: {where}: {text}.")

    def _touched(self, kernel: str, address: int, args: Sequence[Argument]) -> str:
        if address < 1 << 16:
            return f"a null pointer is followed (address {address:#x})"
        mapping = mapping_of(address)
        for i, (kind, value) in enumerate(args):
            if kind != "pointer" or value is None or mapping is None or mapping_of(value.data_ptr()) != mapping:
                continue
            name = kernel_parameters(self._build.source, kernel, self._build.origin)[i].name
            start = value.data_ptr()
            index = (address - start) // value.element_size()
            count = value.untyped_storage().nbytes() // value.element_size() if value.dim() else 1
            if 0 <= index < (value.numel() or count):
                return f"writes to parameter '{name}', which is an input: element {index}"
            side = "past the end" if address >= start else "before the start"
            return f"touches parameter '{name}' {side}: element {index} (a tensor of {value.numel() or count} elements)"
        return f"touches memory that belongs to no argument (address {address:#x})"

    def _place(self, kernel: str, address: int, args: Sequence[Argument], library: Library) -> str:
        """What is at an address, or at an offset in shared memory, which is smaller than any address."""
        if address < _SHARED_ROOM:
            return library.variable(address, self._build.source)
        for i, (kind, value) in enumerate(args):
            if kind != "pointer" or value is None:
                continue
            start, size = value.data_ptr(), value.element_size()
            if start <= address < start + value.untyped_storage().nbytes() - value.storage_offset() * size:
                name = kernel_parameters(self._build.source, kernel, self._build.origin)[i].name
                return f"parameter '{name}', element {(address - start) // size}"
        return "global memory"


def execute(
    program: machine.Program,
    config: LaunchConfig,
    variables: machine.Variables,
    values: Sequence[machine.Bytes],
    settings: Settings | None = None,
) -> None:
    """Runs a kernel's machine code on the whole grid; what it counts is kept where counts are recorded."""
    settings = settings or _ambient
    with _one_at_a_time:
        room, seconds = counters.room(), settings.seconds
        machine.run(program, config, variables, values, room=room, seconds=seconds, timed=counters.timed())
        counters.collect(program, config)
        _note(program)


def _note(program: machine.Program) -> None:
    """Adds up what the launch that has just ended has executed."""
    global _atomics, _instructions
    for instruction, (executed, _) in zip(program.instructions, program.tally(), strict=True):
        _instructions += executed
        if instruction.name.startswith(("ATOM", "RED")) and instruction.name != "REDUX":
            _atomics += executed


def _bytes_of(kind: str, value: Any) -> bytes:
    if kind == "pointer":
        if value is not None and value.device.type != "cpu":
            raise RungError(f"The emulator takes CPU tensors, and one on {value.device} was given.")
        return struct.pack("P", 0 if value is None else value.data_ptr())
    if kind == "tensor_map":
        packed: bytes = value.emulated() if value else bytes(tensor_map.SIZE)
        return packed
    if kind == "bf16":
        return struct.pack("h", torch.tensor(value, dtype=torch.bfloat16).view(torch.int16).item())
    if kind not in _FORMATS:
        raise RungError(f"An argument of kind '{kind}' is not known: take pointer, bf16, {', '.join(_FORMATS)}.")
    try:
        return struct.pack(_FORMATS[kind], value)
    except (struct.error, OverflowError) as problem:
        raise RungError(f"{value!r} does not fit a parameter of kind {kind}: {problem}.") from None


@functools.cache
def _base_of(path: Path) -> int | None:
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(str(path)):
            return int(line.partition("-")[0], 16)
    return None
