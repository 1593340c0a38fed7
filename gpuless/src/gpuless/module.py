"""Kernels executed on a CPU behind the interface of a loaded CUDA module: the machine code that a GPU would run."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gpuless import guard, machine, session, tensor_map
from gpuless.base.errors import UserError
from gpuless.compile import nvrtc
from gpuless.compile.source import kernel_parameters, with_checked_masks
from gpuless.launch import Argument, Build, LaunchConfig, Resources
from gpuless.session import Settings

_FORMATS = {"i32": "i", "u32": "I", "i64": "q", "u64": "Q", "f32": "f", "f64": "d", "bool": "?", "f16": "e"}
_POINTING = ("pointer", "tensor_map")
CONSTANT_ROOM = 64 * 1024  # bytes of __constant__ memory that a module has


def load(build: Build, *, settings: Settings | None = None) -> EmulatedModule:
    """Compiles `build` (or takes it from the cache) and loads it; without settings, those of the session hold."""
    return EmulatedModule(build, settings)


class EmulatedModule:
    """Kernels of one source, launched on CPU tensors, synchronously."""

    def __init__(self, build: Build, settings: Settings | None = None) -> None:
        self._own = settings
        self._build = with_checked_masks(build) if self.settings.check_races else build
        session.current().unwritten = None
        self._variables: dict[str, machine.Variables] = {}  # by architecture
        _ = self.resources  # what does not compile is refused now
        self._ready: set[tuple[str, LaunchConfig, str]] = set()
        self._constants: dict[str, int] = {}

    @property
    def settings(self) -> Settings:
        return self._own or session.current().settings

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
        static = self.resources[kernel].static_shared
        session.require_fit(f"{self._build.origin}, kernel '{kernel}'", self._arch, config, static)
        self._ready.add((kernel, config, self._arch))

    def launch(self, kernel: str, config: LaunchConfig, args: Sequence[Argument]) -> None:
        """Runs the whole grid before it returns."""
        self.bind(kernel, config, args)()

    def bind(self, kernel: str, config: LaunchConfig, args: Sequence[Argument]) -> Callable[[], None]:
        """The same launch, packed once, for repeated calls."""
        self.prepare(kernel, config)
        if config.pdl:
            session.current().expect_dependent()
        values = self._pack(kernel, args)
        program, variables = machine.program(self._build, kernel, self._arch), self._own_variables()

        def run() -> None:
            if not session.current().admit():
                return
            regions = self._regions(kernel, args)
            # A model's tensors are not guarded, and its kernels follow pointers that lie in memory.
            bounds = any(guard.data_at(region.start) for region in regions)
            how = self.settings
            session.current().execute(program, config, variables, values, regions, settings=how, bounds=bounds)

        return run

    def _regions(self, kernel: str, args: Sequence[Argument]) -> list[machine.Region]:
        names = [p.name for p in kernel_parameters(self._build.source, kernel, self._build.origin)]
        named = zip(names if len(names) == len(args) else [""] * len(args), args, strict=True)
        tensors = ((name, getattr(value, "tensor", value)) for name, (kind, value) in named if kind in _POINTING)
        return guard.regions_of(tensors)

    def _own_variables(self) -> machine.Variables:
        if self._arch not in self._variables:
            cubin = nvrtc.compile_cubin(self._build.with_lines, self._arch)
            self._variables[self._arch] = machine.Variables(cubin.path.read_bytes())
        return self._variables[self._arch]

    def _constant(self, symbol: str) -> tuple[int, int] | None:
        """The address and the size of a __constant__ variable."""
        return self._own_variables().constant(symbol)

    def set_constant(self, symbol: str, tensor: Any) -> None:
        """Copies an array into a `__constant__` array."""
        found = self._constant(symbol)
        if found is None:
            raise UserError(
                f"{self._build.origin} has no __constant__ variable named '{symbol}' (outside functions, not static)."
            )
        address, capacity = found
        source = tensor.detach().contiguous() if hasattr(tensor, "detach") else np.ascontiguousarray(tensor)
        size = source.nbytes
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
        ctypes.memmove(address, guard.address_of(source), size)

    def _pack(self, kernel: str, args: Sequence[Argument]) -> list[machine.Bytes]:
        sizes = self._sizes(kernel)
        if len(sizes) != len(args):
            raise UserError(
                f"{self._build.origin}: kernel '{kernel}' has {len(sizes)} parameters, and {len(args)} were given."
            )
        packed = []
        for i, ((kind, value), size) in enumerate(zip(args, sizes, strict=True)):
            data = pack(kind, value)
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


def pack(kind: str, value: Any) -> bytes:
    """A parameter as a launch passes it."""
    if kind == "pointer":
        return struct.pack("P", 0 if value is None else guard.address_of(value))
    if kind == "tensor_map":
        packed: bytes = value.emulated() if value else bytes(tensor_map.SIZE)
        return packed
    if kind == "bf16":
        return pack_bf16(value)
    if kind not in _FORMATS:
        raise UserError(f"An argument of kind '{kind}' is not known: take pointer, bf16, {', '.join(_FORMATS)}.")
    try:
        return struct.pack(_FORMATS[kind], value)
    except (struct.error, OverflowError) as problem:
        raise UserError(f"{value!r} does not fit a parameter of kind {kind}: {problem}.") from None


def pack_bf16(value: float) -> bytes:
    """The number rounded to the nearest bfloat16, ties to even."""
    (bits,) = struct.unpack("<I", struct.pack("<f", np.float32(value)))
    if math.isnan(value):
        return struct.pack("<H", bits >> 16 | 0x40)
    return struct.pack("<H", bits + 0x7FFF + (bits >> 16 & 1) >> 16)
