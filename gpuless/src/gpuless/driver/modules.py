"""Writes a cubin as a module file: what libcuda.so.1 needs to run its kernels, without Python and a disassembler.

A file begins with MAGIC and the length of its text in 16 digits; data follow the text, in the order in which it gives
their sizes:
    arch NUMBER
    section SIZE             constant banks 3 and 4; __device__ variables without and with values
    variable SECTION OFFSET SIZE NAME
    place SECTION OFFSET absolute|section VALUE [SECTION]        an address that is to be written
    kernel NAME, then a line: why it is not executed, or + if its code is in a file of its own that is asked for when
    it is used, or -; and in the latter case its constants' places, shared memory, stack with and without room,
    registers, most threads, cluster, whether it is Triton's; its parameters' and shared variables' places; and the
    sizes of its code, lines and table. 32@lo(SECTION+OFFSET) in the code is half of an address
modules.cpp reads it.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from gpuless import machine
from gpuless.base.errors import UserError, first_line
from gpuless.compile import elf, sass
from gpuless.compile.cubin_cache import Cubin

MAGIC = b"gpuless-module-1\n"


class _Blob:
    def __init__(self) -> None:
        self._lines: list[str] = []
        self._pieces: list[bytes] = []

    def add(self, *words: object) -> None:
        self._lines.append(" ".join(map(str, words)))

    def add_piece(self, data: bytes) -> None:
        self.add(len(data))
        self._pieces.append(data)

    def whole(self) -> bytes:
        head = "\n".join(self._lines).encode() + b"\n"
        return MAGIC + b"%016d\n" % len(head) + head + b"".join(self._pieces)


def module_of(cubin: Path) -> bytes:
    """The module file of a cubin."""
    data = cubin.read_bytes()
    blob = _Blob()
    blob.add("arch", elf.arch(data).removeprefix("sm_"))
    _describe_memory(blob, data)
    kernels = elf.kernels(data)
    if len(kernels) > 1 and elf.code(data).is_large():
        for kernel in kernels:
            blob.add("kernel", kernel)
            blob.add("+")
    else:
        _describe_kernels(blob, cubin, data, kernels)
    return blob.whole()


def kernel_of(cubin: Path, kernel: str) -> bytes:
    """The file of one kernel."""
    blob = _Blob()
    _describe_kernels(blob, cubin, cubin.read_bytes(), [kernel])
    return blob.whole()


def _describe_kernels(blob: _Blob, cubin: Path, data: bytes, kernels: list[str]) -> None:
    of = Cubin(cubin, elf.arch(data), {one: one for one in kernels}, {}, "")
    try:
        code = sass.instructions_of(of) if kernels else {}
        refused = ""
    except UserError as problem:
        code, refused = {}, first_line(str(problem)).rstrip(".")
    for kernel in kernels:
        blob.add("kernel", kernel)
        if refused:
            blob.add(refused)
        else:
            blob.add("-")
            _describe_kernel(blob, data, kernel, code[kernel])


def _describe_memory(blob: _Blob, data: bytes) -> None:
    memory = elf.module_memory(data)
    numbers = {name: n for n, name in enumerate(memory.sections)}
    for contents in memory.sections.values():
        blob.add("section")
        blob.add_piece(contents)
    for name, variable in memory.variables.items():
        if variable.section in numbers:
            blob.add("variable", numbers[variable.section], variable.offset, variable.size, name)
    functions = machine.functions(data)
    for section, offset, name, added in memory.placed:
        found = memory.variables.get(name)
        if name in functions:
            blob.add("place", numbers[section], offset, "absolute", functions[name])
        elif found and found.section in numbers:
            blob.add("place", numbers[section], offset, "section", found.offset + added, numbers[found.section])


def _describe_kernel(blob: _Blob, data: bytes, kernel: str, instructions: list[sass.Instruction]) -> None:
    memory, found = elf.kernel_memory(data, kernel), elf.resources(data, kernel)
    local = machine.local_bytes(memory, instructions)
    blob.add(memory.start, memory.constants, found.static_shared, local, memory.stack, found.registers)
    tiles = elf.names_pointers_as_llvm(data) and any(i.lines and i.lines[0][0].endswith(".py") for i in instructions)
    blob.add(elf.most_threads(data, kernel) or 1024, *elf.cluster(data, kernel), int(tiles))  # Triton's code
    blob.add(len(memory.parameters), *(word for parameter in memory.parameters for word in parameter))
    shared = elf.kernel_shared(data, kernel)
    blob.add(len(shared), *(word for variable in shared for word in (variable.offset, variable.plain)))
    text = "".join(f"{machine.line_of(i)}\n" for i in instructions)
    if "32@" in text:
        text = sass.VARIABLE.sub(functools.partial(_placed_in, elf.module_memory(data)), text)
    places = "".join(f"{_place(i.lines)}\n" for i in instructions)
    for piece in (text.encode(), places.encode(), memory.table):
        blob.add_piece(piece)


def _placed_in(memory: elf.ModuleMemory, found: re.Match[str]) -> str:
    """Half of a variable's address: the number of its section, and its place there; in shared memory a number."""
    variable = memory.variables.get(found[2])
    if variable is None:
        return found[0]
    at = variable.offset + int(found[3] or "0", 16)
    if variable.section.startswith(".nv.shared"):
        return hex(at if found[1] == "lo" else 0)
    sections = [*memory.sections]
    return f"32@{found[1]}({sections.index(variable.section)}+{at})" if variable.section in sections else found[0]


def _place(lines: sass.Stack) -> str:
    """The innermost line of the program's own files; "cuda" if all lines are of CUDA's headers."""
    own = (f"{file}:{line}" for file, line in lines if not _is_of_cuda(file))
    return next(own, "cuda" if lines else "")


def _is_of_cuda(file: str) -> bool:
    places = ("/nvidia/", "/cuda/standard/", "/cccl/", "/usr/local/cuda", "/compiler/../include/")
    return any(part in file for part in places)
