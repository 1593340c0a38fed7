"""Kernels of a cubin that any compiler has made, run on the machine."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from rung.cuda import elf, kept, sass
from rung.cuda.cubin_cache import Cubin
from rung.cuda.launch import LaunchConfig
from rung.cuda.limits import refusal
from rung.emulator import machine, module
from rung.emulator.translation import LIMITS
from rung.errors import RungError


class Argument(NamedTuple):
    """A kernel's argument: its name, its bytes, and the tensor that it points to."""

    name: str
    data: bytes
    tensor: torch.Tensor | None = None


class Loaded:
    """A cubin; `origin` is the file that its lines belong to."""

    def __init__(self, data: bytes, origin: str) -> None:
        self._data, self.origin = data, origin
        self.kernels = elf.kernels(data)
        path = _kept(data)
        resources = {kernel: elf.resources(data, kernel) for kernel in self.kernels}
        self._cubin = Cubin(path, machine.ARCH, {kernel: kernel for kernel in self.kernels}, resources, "")
        self._variables = machine.Variables(data)
        self._programs: dict[str, machine.Program] = {}

    @functools.cached_property
    def _instructions(self) -> dict[str, list[sass.Instruction]]:
        return sass.instructions_of(self._cubin)

    def program(self, kernel: str) -> machine.Program:
        if kernel not in self._programs:
            made = machine.Program(self._cubin, self._instructions[kernel], kernel, self.origin)
            self._programs[kernel] = made
        return self._programs[kernel]

    def launch(self, kernel: str, config: LaunchConfig, arguments: Sequence[Argument]) -> None:
        """Runs the whole grid before it returns."""
        program = self.program(kernel)
        name = f"{self.origin}, kernel '{kernel}'"
        if reason := refusal(LIMITS, config, static_shared=program.resources.static_shared):
            raise RungError(f"{name}: {reason}.")
        sizes = [size for _, size in program.memory.parameters]
        if sizes != [len(one.data) for one in arguments]:
            given = ", ".join(f"{one.name} of {len(one.data)}" for one in arguments)
            raise RungError(f"{name} takes parameters of {sizes} bytes, and these were given: {given}.")
        module.execute(program, config, self._variables, [machine.aligned(one.data, 64) for one in arguments])


@functools.lru_cache(maxsize=64)
def loaded(data: bytes, origin: str) -> Loaded:
    return Loaded(data, origin)


def _kept(data: bytes) -> Path:
    def make(work: Path) -> tuple[Path, None]:
        (work / "code.cubin").write_bytes(data)
        return work / "code.cubin", None

    return kept.kept("cubin", hashlib.sha256(data).hexdigest()[:32], make).path
