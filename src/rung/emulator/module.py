"""Emulated kernels behind the interface of a loaded CUDA module."""

from __future__ import annotations

import ctypes
import functools
import math
import re
import struct
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from rung.cuda import tensor_map
from rung.cuda.launch import Argument, Build, LaunchConfig, Resources
from rung.cuda.source import kernel_parameters
from rung.emulator import native
from rung.emulator.elf import shared_symbols
from rung.emulator.faults import KINDS, EmulatorFault, FaultKind
from rung.emulator.guard import mapping_of
from rung.emulator.translation import DYNAMIC_ROOM, Translation, translate
from rung.errors import RungError

Order = Literal["forward", "reverse", "shuffled"]
_ORDERS: tuple[Order, ...] = ("forward", "reverse", "shuffled")
_FORMATS = {"i32": "i", "u32": "I", "i64": "q", "u64": "Q", "f32": "f", "f64": "d", "bool": "?", "f16": "e"}
_one_at_a_time = threading.Lock()  # the runtime's state is global
_NOWHERE = 0xFFFFFFFF
_SHARED_ROOM = 1 << 20
_PATTERNS = 5  # of what memory holds that nobody has written: NaN first, then others from launch to launch
CONSTANT_ROOM = 64 * 1024  # bytes of __constant__ memory that a module has


@dataclass(frozen=True)
class Settings:
    """How threads take turns. A result that depends on `order` or `seed` is a race."""

    order: Order = "forward"
    seed: int = 0
    poison: bool = True  # shared memory holds what no kernel has written at the start of every block
    seconds: float = 60.0  # without any thread that ends, and the launch is stopped
    check_races: bool = False  # every access to shared memory is looked at; several times slower
    coverage: bool = False  # basic blocks are counted: coverage.py tells by line


def load(build: Build, *, settings: Settings | None = None) -> EmulatedModule:
    """Compiles `build` with g++ (or takes it from the cache) and loads it."""
    settings = settings or Settings()
    return EmulatedModule(build, translate(build, races=settings.check_races, coverage=settings.coverage), settings)


class EmulatedModule:
    """Kernels of one source, compiled by g++; launched on CPU tensors, synchronously."""

    def __init__(self, build: Build, translation: Translation, settings: Settings) -> None:
        if settings.order not in _ORDERS:
            raise RungError(f"Thread order '{settings.order}' is not known: take one of {', '.join(_ORDERS)}.")
        native.runtime()
        self._build, self._settings = build, settings
        self._static_shared = translation.static_shared
        self._path = translation.library
        self._library = ctypes.CDLL(str(translation.library))
        self._module = ctypes.addressof(ctypes.c_char.in_dll(self._library, "rung_module"))
        self._ready: set[tuple[str, LaunchConfig]] = set()
        self._constants: dict[str, int] = {}
        self._launches = 0

    @property
    def library(self) -> Path:
        return self._path

    @property
    def base(self) -> int | None:
        """Where the library lies in memory."""
        return _base_of(self._path)

    @property
    def resources(self) -> Mapping[str, Resources]:
        """What g++ can tell: the static shared memory."""
        return {kernel: Resources(0, size, 0, 0, 0) for kernel, size in self._static_shared.items()}

    def prepare(self, kernel: str, config: LaunchConfig) -> None:
        """Checks the launch against the limits of an sm_90."""
        if (kernel, config) in self._ready:
            return
        self._number(kernel)
        name = f"{self._build.origin}, kernel '{kernel}'"
        threads = math.prod(config.block)
        if min(*config.grid, *config.block) < 1:
            raise RungError(f"{name}: grid {config.grid} and block {config.block} must be 1 or more everywhere.")
        if threads > 1024 or config.block[2] > 64:
            raise RungError(f"{name}: a block of {config.block} is {threads} threads; 1024 is the most (64 in z).")
        if config.grid[1] > 65535 or config.grid[2] > 65535 or config.grid[0] > 2**31 - 1:
            raise RungError(f"{name}: a grid of {config.grid} is too large; y and z end at 65535.")
        cluster = config.cluster or (1, 1, 1)
        if any(g % c for g, c in zip(config.grid, cluster, strict=True)) or math.prod(cluster) > 8:
            raise RungError(f"{name}: a grid of {config.grid} is not made of clusters of {cluster} (at most 8 blocks).")
        static = self._static_shared[kernel]
        if static > 48 * 1024:
            raise EmulatorFault(
                "shared",
                f"{name} declares {static} bytes of shared memory; 49152 is the most for __shared__ arrays of "
                "fixed size: use `extern __shared__` and the launch's `shared`.",
            )
        if static + config.shared > DYNAMIC_ROOM:
            raise EmulatorFault(
                "shared",
                f"{name} asks for {static + config.shared} bytes of shared memory a block ({static} static, "
                f"{config.shared} dynamic); an sm_90 has {DYNAMIC_ROOM}: use smaller tiles.",
            )
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
        entry = ctypes.cast(getattr(self._library, f"rung_entry_{number}"), ctypes.c_void_p)
        launch = native.Launch(
            module=self._module,
            entry=entry,
            args=ctypes.cast(pointers, ctypes.POINTER(ctypes.c_void_p)),
            kernel=kernel.encode(),
            grid=native.Index(*config.grid),
            block=native.Index(*config.block),
            cluster=native.Index(*(config.cluster or (1, 1, 1))),
            dynamic_bytes=config.shared,
            cooperative=config.cooperative,
            order=_ORDERS.index(self._settings.order),
            seed=self._settings.seed & 0xFFFFFFFF,
            poison=0,
            races=self._settings.check_races,
            seconds=self._settings.seconds,
        )
        run = native.runtime().rung_launch

        def go(keep: tuple[Any, ...] = (values, pointers, args)) -> None:
            report = native.Report()
            with _one_at_a_time:
                if self._settings.poison:
                    launch.poison = 1 + (self._settings.seed + self._launches) % _PATTERNS
                self._launches += 1
                run(ctypes.byref(launch), ctypes.byref(report))
            if report.fault:
                raise self._fault(kernel, report, args)

        return go

    def set_constant(self, symbol: str, tensor: torch.Tensor) -> None:
        """Copies a tensor into a `__constant__` array."""
        room = ctypes.c_ulonglong()
        address = native.runtime().rung_symbol(self._library._handle, symbol.encode(), ctypes.byref(room))
        if not address:
            raise RungError(
                f"{self._build.origin} has no __constant__ variable named '{symbol}' (outside functions, not static)."
            )
        source = tensor.detach().contiguous()
        size = source.numel() * source.element_size()
        if size > room.value:
            raise RungError(
                f"{self._build.origin}: constant '{symbol}' has room for {room.value} bytes, and {size} were given."
            )
        self._constants[symbol] = room.value
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

    def _pack(self, kernel: str, number: int, args: Sequence[Argument]) -> list[ctypes.Array[ctypes.c_char]]:
        shape_of = getattr(self._library, f"rung_shape_{number}")
        shape_of.restype = ctypes.POINTER(ctypes.c_int)
        shape = shape_of()
        if shape[0] != len(args):
            raise RungError(
                f"{self._build.origin}: kernel '{kernel}' has {shape[0]} parameters, and {len(args)} were given."
            )
        packed = []
        for i, (kind, value) in enumerate(args):
            data = _bytes_of(kind, value)
            size = shape[1 + i]
            if len(data) != abs(size) or (kind == "pointer") != (size < 0):
                raise RungError(
                    f"{self._build.origin}: parameter {i + 1} of kernel '{kernel}' is "
                    f"{'a pointer' if size < 0 else f'a value of {size} bytes'}, and a {kind} was given."
                )
            packed.append(_aligned(data))
        return packed

    # ---- what went wrong --------------------------------------------------------------------------------------

    def _fault(self, kernel: str, report: native.Report, args: Sequence[Argument]) -> EmulatorFault:
        kind: FaultKind = KINDS[report.fault - 1]
        text = report.text.decode(errors="replace")
        text = re.sub(r"\{([0-9a-f]+)\}", lambda place: self._line_of(int(place[1], 16) - 1)[2:] or "some line", text)
        where = f"kernel '{kernel}', block ({report.block.x}, {report.block.y}, {report.block.z})"
        if report.thread.x != _NOWHERE:
            where += f", thread ({report.thread.x}, {report.thread.y}, {report.thread.z})"
        if report.counter:
            where += self._line_of(report.counter)
        if kind == "race":
            line = self._line_of(report.other_counter).replace(", line", " at line")
            what, _, lacks = text.partition("|")
            text = f"{what}{line}, {lacks}: {self._place(kernel, report.address, args)}"
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
            side = "past the end" if address >= start else "before the start"
            return f"touches parameter '{name}' {side}: element {index} (a tensor of {value.numel() or count} elements)"
        return f"touches memory that belongs to no argument (address {address:#x})"

    def _place(self, kernel: str, address: int, args: Sequence[Argument]) -> str:
        """What lies at an address, or at an offset in shared memory, which is smaller than any address."""
        if address < _SHARED_ROOM:
            return self._variable(address)
        for i, (kind, value) in enumerate(args):
            if kind != "pointer" or value is None:
                continue
            start, size = value.data_ptr(), value.element_size()
            if start <= address < start + value.untyped_storage().nbytes() - value.storage_offset() * size:
                name = kernel_parameters(self._build.source, kernel, self._build.origin)[i].name
                return f"parameter '{name}', element {(address - start) // size}"
        return "global memory"

    def _variable(self, offset: int) -> str:
        """The `__shared__` variable at an offset in a block's shared memory."""
        symbols = [s for s in shared_symbols(self._path) if s.offset <= offset and s.plain != "rung_dynamic_shared"]
        if not symbols:
            return "shared memory"
        nearest = max(symbols, key=lambda s: s.offset)
        return f"shared variable '{nearest.plain}', byte {offset - nearest.offset}"

    def _line_of(self, counter: int) -> str:
        """The line of an instruction, through addr2line where binutils have it."""
        base = _base_of(self._path)
        if not counter or base is None or counter < base:
            return ""
        try:
            result = subprocess.run(
                ["addr2line", "-i", "-e", str(self._path), hex(counter - base)],
                capture_output=True,
                text=True,
                check=True,
            )
        except (OSError, subprocess.CalledProcessError):
            return ""
        for line in result.stdout.splitlines():
            file, _, number = line.partition(" ")[0].rpartition(":")
            if file.endswith(Path(self._build.origin).name) and number.isdigit():
                return f", line {number}"
        return ""


def _aligned(data: bytes) -> ctypes.Array[ctypes.c_char]:
    """The bytes at a multiple of 64, as the widest parameter wants."""
    room = bytearray(len(data) + 64)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(room)) % 64
    room[start : start + len(data)] = data
    return (ctypes.c_char * len(data)).from_buffer(room, start)


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
