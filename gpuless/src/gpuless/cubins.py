"""Kernels of a cubin that any compiler has made, run on the machine."""

from __future__ import annotations

import functools
import hashlib
import math
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gpuless import guard, machine, module
from gpuless.base import disk_cache, files
from gpuless.base.errors import EmulatorFault, UserError
from gpuless.compile import elf, sass
from gpuless.compile.cubin_cache import Cubin
from gpuless.facts.limits import limits, refusal
from gpuless.launch import LaunchConfig
from gpuless.program.pretended import Parameter

ORDERS: tuple[module.Order, ...] = ("forward", "reverse", "shuffled")
SEED = 17


FORMATS = {
    "i8": "b", "u8": "B", "i16": "h", "u16": "H", "i32": "i", "u32": "I", "i64": "q", "u64": "Q", "f16": "e",
    "f32": "f", "f64": "d", "bool": "?",
}  # fmt: skip


def of_tensor(name: str, tensor: torch.Tensor | None) -> Parameter:
    return Parameter(name, struct.pack("<Q", 0 if tensor is None else tensor.data_ptr()), tensor)


def of_number(name: str, kind: str, value: float) -> Parameter:
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
        self, kernel: str, config: LaunchConfig, arguments: Sequence[Parameter], *, tiles: bool = False
    ) -> None:
        """Runs the whole grid before it returns; `tiles`: as module.execute says."""
        if not module.launching():
            return
        program = self.program(kernel)
        name = f"{self.origin}, kernel '{kernel}'"
        if reason := refusal(limits(self._cubin.arch), config, static_shared=program.resources.static_shared):
            raise UserError(f"{name}: {reason}.")
        sizes = [size for _, size in program.memory.parameters]
        if sizes != [len(one.data) for one in arguments]:
            given = ", ".join(f"{one.name} of {len(one.data)}" for one in arguments)
            raise UserError(f"{name} takes parameters of {sizes} bytes, and these were given: {given}.")
        values = [machine.aligned(one.data, 64) for one in arguments]
        regions = module.regions_of((one.name, one.tensor) for one in arguments)
        module.execute(program, config, self._variables, values, regions, tiles=tiles)


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

    def made(self, random: torch.Generator, *, aligned: bool = False) -> torch.Tensor | None:
        """The array, which ends where its memory does, or begins as a GPU's allocator aligns it; None for a number."""
        if self.shape is None:
            return None
        kind = _kind(self.kind)
        size = math.prod(self.shape) * kind.itemsize
        multiple = guard.PAGE if aligned else 16
        raw = guard.guarded_empty(-(-size // multiple) * multiple)
        guard.mark_data(raw, 0, size)
        tensor = raw[:size].view(kind).view(self.shape)
        if self.value is None:
            numbers = torch.randn(self.shape, generator=random)
            tensor.copy_(numbers if kind.is_floating_point else (numbers * 8).abs())
        elif self.value != UNSET:
            tensor.fill_(float(self.value))
        return tensor

    def argument(self, tensor: torch.Tensor | None) -> Parameter:
        if tensor is not None:
            return of_tensor(self.name, tensor)
        value = float(str(self.value)) if self.kind in ("f16", "bf16", "f32", "f64") else int(str(self.value), 0)
        return of_number(self.name, self.kind, value)


def _kind(name: str) -> torch.dtype:
    letters = {"f": "float", "i": "int", "u": "uint", "bf": "bfloat"}
    found = re.fullmatch(r"(\D+)(\d+)", name)
    kind: torch.dtype = getattr(torch, letters[found[1]] + found[2] if found else name)
    return kind


def read(path: Path) -> Loaded:
    data = files.read_bytes(path)
    if not data.startswith(b"\x7fELF") or not elf.kernels(data):
        raise UserError(f"{path} is no cubin with kernels; compile for sm_90a with -cubin.")
    return loaded(data, str(path))


def try_orders(of: Loaded, kernel: str, config: LaunchConfig, given: Sequence[Given]) -> list[dict[str, Any]]:
    """Findings of launches in several orders: faults, races, and results that depend on the order."""
    results: dict[str, list[torch.Tensor]] = {}
    for order in ORDERS:
        arrays = [one.made(torch.Generator().manual_seed(0)) for one in given]
        try:
            with module.under(order=order, seed=SEED, check_races=True):
                of.launch(kernel, config, [one.argument(array) for one, array in zip(given, arrays, strict=True)])
        except EmulatorFault as fault:
            return [{"kind": fault.kind, "text": str(fault), "place": fault.place, "related": fault.related}]
        results[order] = [array for array in arrays if array is not None]
    names = [one.name for one in given if one.shape is not None]
    first = results[ORDERS[0]]
    for order in ORDERS[1:]:
        for name, one, other in zip(names, first, results[order], strict=True):
            if not torch.equal(one.view(torch.uint8), other.view(torch.uint8)):
                text = f"kernel '{kernel}': {name} depends on the order in which blocks and warps run ({order})"
                return [{"kind": "race", "text": text}]
    return []
