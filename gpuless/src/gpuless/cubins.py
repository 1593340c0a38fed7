"""Kernels of a cubin that any compiler has made, launched on memory of the CPU."""

from __future__ import annotations

import functools
import hashlib
import math
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpuless import guard, machine, session
from gpuless.base import disk_cache, files
from gpuless.base.errors import EmulatorFault, UserError
from gpuless.compile import elf, sass
from gpuless.compile.cubin_cache import Cubin
from gpuless.launch import LaunchConfig
from gpuless.module import pack_bf16

SEED = 17
FORMATS = {
    "i8": "b", "u8": "B", "i16": "h", "u16": "H", "i32": "i", "u32": "I", "i64": "q", "u64": "Q", "f16": "e",
    "f32": "f", "f64": "d", "bool": "?",
}  # fmt: skip




class Parameter(NamedTuple):
    """An argument of a kernel: its bytes, and the array that a pointer or a tensor map belongs to."""

    name: str
    data: bytes
    tensor: Any = None


def of_tensor(name: str, tensor: Any) -> Parameter:
    return Parameter(name, struct.pack("<Q", 0 if tensor is None else guard.address_of(tensor)), tensor)


def of_number(name: str, kind: str, value: float) -> Parameter:
    if kind == "bf16":
        return Parameter(name, pack_bf16(value))
    if kind not in FORMATS:
        raise UserError(f"a number of type {kind!r} is not known; there are {', '.join(FORMATS)}.")
    try:
        return Parameter(name, struct.pack(f"<{FORMATS[kind]}", value if kind.startswith("f") else int(value)))
    except struct.error as problem:
        raise UserError(f"{value!r} does not fit {kind}: {problem}.") from None


def select_kernel(kernels: Sequence[str], wanted: str | None, origin: str) -> str:
    """The kernel that is meant: by its symbol, or a part of it."""
    found = [kernel for kernel in kernels if wanted is None or wanted == kernel] or [
        kernel for kernel in kernels if wanted and wanted in kernel
    ]
    if len(found) != 1:
        have = ", ".join(kernels) or "none"
        raise UserError(f"{origin}: name one kernel; it has {have}.")
    return found[0]


class Loaded:
    """A cubin; `origin` is the file that its lines belong to."""

    def __init__(self, data: bytes, origin: str) -> None:
        self._data, self.origin = data, origin
        self.kernels = elf.kernels(data)
        path = _cache(data)
        resources = {kernel: elf.resources(data, kernel) for kernel in self.kernels}
        self._cubin = Cubin(path, elf.arch(data), {kernel: kernel for kernel in self.kernels}, resources, "")
        self._variables = machine.Variables(data)
        self._programs: dict[str, machine.Program] = {}

    @functools.cached_property
    def _instructions(self) -> dict[str, list[sass.Instruction]]:
        return sass.instructions_of(self._cubin)

    def program(self, kernel: str) -> machine.Program:
        if kernel not in self._programs:
            instructions = self._instructions[kernel]
            stacks = (i.lines for i in instructions if self.origin.endswith(".cubin"))
            origin = next((stack[-1][0] for stack in stacks if stack), self.origin)
            self._programs[kernel] = machine.Program(self._cubin, instructions, kernel, origin)
        return self._programs[kernel]

    def launch(
        self,
        kernel: str,
        config: LaunchConfig,
        arguments: Sequence[Parameter],
        *,
        tiles: bool = False,
        regions: Sequence[machine.Region] | None = None,
        settings: session.Settings | None = None,
    ) -> None:
        """Runs the whole grid before it returns; `tiles` and `settings`: as Session.execute says. `regions`: the memory
        that may be touched, by default that of the arguments."""
        if not session.current().admit():
            return
        program = self.program(kernel)
        name = f"{self.origin}, kernel '{kernel}'"
        session.require_fit(name, self._cubin.arch, config, program.resources.static_shared)
        sizes = [size for _, size in program.memory.parameters]
        if sizes != [len(one.data) for one in arguments]:
            given = ", ".join(f"{one.name} of {len(one.data)}" for one in arguments)
            raise UserError(f"{name} takes parameters of {sizes} bytes, and these were given: {given}.")
        values = [machine.aligned(one.data, 64) for one in arguments]
        if regions is None:
            regions = guard.regions_of((one.name, one.tensor) for one in arguments)
        session.current().execute(
            program, config, self._variables, values, regions, tiles=tiles, settings=settings
        )


@functools.lru_cache(maxsize=64)
def loaded(data: bytes, origin: str) -> Loaded:
    return Loaded(data, origin)


def _cache(data: bytes) -> Path:
    def make(work: Path) -> tuple[Path, None]:
        (work / "code.cubin").write_bytes(data)
        return work / "code.cubin", None

    return disk_cache.kept("cubin", hashlib.sha256(data).hexdigest()[:32], make).path


# ---- a kernel by itself -------------------------------------------------------------------------------------------

_TYPES = {**FORMATS, "bf16": ""}
_WORD = re.compile(r"(?:(\w+):)?(\w+)(?:\[([\d,x ]+)\])?(?:=(.+))?")
UNSET = "unset"  # what an array holds that nothing has written


@dataclass(frozen=True)
class Given:
    """An argument as text: `x:f32[16,64]` (random numbers), `out:f32[64]=unset`, `n:i32=64`."""

    name: str
    kind: str
    shape: tuple[int, ...] | None
    value: str | None

    @classmethod
    def parsed(cls, word: str, number: int) -> Given:
        found = _WORD.fullmatch(word)
        if not found or found[2] not in _TYPES or (found[3] is None and found[4] is None):
            raise UserError(f"argument {word!r} is neither an array as x:f32[16,64] nor a number as n:i32=64.")
        shape = tuple(int(size) for size in re.split(r"[,x ]+", found[3])) if found[3] else None
        return cls(found[1] or f"argument {number}", found[2], shape, found[4])

    def made(self, random: np.random.Generator, *, aligned: bool = False) -> Any:
        """The array, which ends where its memory does, or begins as a GPU's allocator aligns it; None for a number."""
        if self.shape is None:
            return None
        bf16 = self.kind == "bf16"
        kind = np.dtype(np.uint16 if bf16 else FORMATS[self.kind])
        size = math.prod(self.shape) * kind.itemsize
        multiple = guard.PAGE if aligned else 16
        raw = guard.guarded_empty(-(-size // multiple) * multiple)
        guard.mark_data(raw, 0, size)
        array = raw[:size].view(kind).reshape(self.shape)
        if self.value != UNSET:
            drawn = self.value is None
            numbers = random.standard_normal(self.shape) if drawn else np.full(self.shape, float(str(self.value)))
            if bf16:
                array[...] = (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
            else:
                array[...] = np.abs(numbers * 8) if drawn and kind.kind != "f" else numbers
        return array

    def argument(self, array: Any) -> Parameter:
        if array is not None:
            return of_tensor(self.name, array)
        value = float(str(self.value)) if self.kind in ("f16", "bf16", "f32", "f64") else int(str(self.value), 0)
        return of_number(self.name, self.kind, value)


def read(path: Path) -> Loaded:
    data = files.read_bytes(path)
    if not data.startswith(b"\x7fELF") or not elf.kernels(data):
        raise UserError(f"{path} is no cubin with kernels; compile for sm_90a with -cubin.")
    return loaded(data, str(path))


def try_orders(of: Loaded, kernel: str, config: LaunchConfig, given: Sequence[Given]) -> list[dict[str, Any]]:
    """Findings of launches in several orders: faults, races, and results that depend on the order."""
    results: dict[str, list[Any]] = {}
    for order in session.ORDERS:
        arrays = [one.made(np.random.default_rng(0)) for one in given]
        try:
            with session.under(order=order, seed=SEED, check_races=True):
                of.launch(kernel, config, [one.argument(array) for one, array in zip(given, arrays, strict=True)])
        except EmulatorFault as fault:
            return [{"kind": fault.kind, "text": str(fault), "place": fault.place, "related": fault.related}]
        results[order] = [array for array in arrays if array is not None]
    names = [one.name for one in given if one.shape is not None]
    first = results[session.ORDERS[0]]
    for order in session.ORDERS[1:]:
        for name, one, other in zip(names, first, results[order], strict=True):
            if one.tobytes() != other.tobytes():
                text = f"kernel '{kernel}': {name} depends on the order in which blocks and warps run ({order})"
                return [{"kind": "race", "text": text}]
    return []
