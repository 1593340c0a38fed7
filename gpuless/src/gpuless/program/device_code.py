"""The kernels of a program's file: machine code that NVRTC makes, in the object that g++ makes of the host's part.

The object's assembly gets a record in the section rung_modules: a blob, which host/modules.h describes, and the
addresses of the kernels and variables that the blob counts through. So a static kernel is found as well as a template's
instance, and an object needs no file beside it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import struct
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from gpuless import machine
from gpuless.base import disk_cache
from gpuless.base.errors import CompileError, EmulatorFault, UserError, first_line
from gpuless.compile import elf, headers, host_code, nvrtc, sass
from gpuless.compile.cubin_cache import Cubin
from gpuless.compile.source import code_only, kernels_in
from gpuless.facts.limits import DEFAULT_SHARED
from gpuless.launch import Build
from gpuless.program import lambdas

_VARIABLE = re.compile(r"__(?:device|constant)__\s([^;{}()=]*?\b\w+\s*(?:\[[^;={]*\]\s*)*)(?==|;|\{)")
_MANAGED = re.compile(_VARIABLE.pattern.replace("device|constant", "managed"))
_DECLARED = re.compile(r"\b(\w+)\s*(?:\[[^\]]*\]\s*)*(?:,|$)")  # one of `float a, b[2], c`
_RUNTIME = re.compile(r"\b(cuda[A-Z]\w*)\s*\(")
_LIBRARY = re.compile(r"#\s*include\s*<(cu(?:blas|rand|fft|sparse|solver|dnn))")
_ALIGNED = re.compile(r"\b(?:__align__|alignas|__attribute__|__launch_bounds__)\s*\((?:[^()]|\([^()]*\))*\)")
_PART = ".rung_part"  # the section of an object whose kernels are linked with others'
_CONSTANTS, _ZEROS = ".nv.constant3", ".nv.global"
_WITH_VALUES = (_CONSTANTS, ".nv.global.init")


class Symbol(NamedTuple):
    """A kernel or a variable of the host's part, and its name in the cubin."""

    kind: str
    mangled: str
    size: int
    name: str
    expression: str
    refused: str = ""  # why the compiler takes this kernel not


@dataclass(frozen=True)
class KernelOptions:
    """What kernels are compiled for, and with which of NVRTC's options."""

    arch: str = machine.ARCH
    include: tuple[str, ...] = ()
    defines: tuple[str, ...] = ()
    standard: str = "c++17"
    more: tuple[str, ...] = ()
    relocatable: bool = False  # device functions of other files are called

    @property
    def emulated(self) -> bool:
        return self.arch == machine.ARCH


@dataclass
class _Blob:
    lines: list[str] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)

    def add(self, *words: object) -> None:
        self.lines.append(" ".join(map(str, words)))

    def add_piece(self, data: bytes) -> None:
        self.add(len(data))
        self.pieces.append(data)

    def whole(self) -> bytes:
        head = "\n".join(self.lines).encode() + b"\n"
        return b"%016d\n" % len(head) + head + b"".join(self.pieces)


def assembly(source: Path, made: Path, found: Sequence[lambdas.Lambda], how: KernelOptions, work: Path) -> str:
    """What the assembly of the object `made` gets; nothing if the file has no kernels."""
    compiled = _compile(source, made, found, how)
    if compiled is None:
        return ""
    cubin, symbols = compiled
    blob = _Blob()
    blob.add(cubin.path if cubin else "-")
    blob.add(source.absolute())
    blob.add_piece(cubin.path.read_bytes() if cubin else b"")
    for number, one in enumerate(symbols):
        blob.add("symbol", one.kind, number, one.size, one.name)
    if cubin and how.emulated and not how.relocatable:
        _describe(blob, str(source), cubin.path, symbols)
    if not how.relocatable:
        return _record(blob, symbols, work)
    prefix = f"rung_{hashlib.sha256(str(source.absolute()).encode()).hexdigest()[:16]}"
    names = [f"{prefix}_{number}" for number in range(len(symbols))]
    named = [*zip(names, symbols, strict=True)]
    aliases = "\n".join(f"\t.globl {name}\n\t.set {name}, {one.mangled}" for name, one in named)
    path = work / "kernels.part"
    path.write_bytes(json.dumps([[*one, name] for name, one in named]).encode() + b"\n" + blob.pieces[0])
    return f"""
{aliases}
\t.section {_PART},"",@progbits
\t.quad {path.stat().st_size}
\t.incbin "{path}"
"""


def linked(objects: Sequence[Path], arch: str, output: Path, work: Path) -> str:
    """The assembly of the kernels that objects hold in parts; nothing if there are none."""
    parts, symbols = [], {}
    for path in objects:
        every = elf.sections(data) if (data := path.read_bytes())[:4] == b"\x7fELF" else []
        data = b"".join(section.data for section in every if section.name == _PART)
        while data:
            (size,) = struct.unpack_from("<Q", data)
            listed, _, part = data[8 : 8 + size].partition(b"\n")
            parts.append(part)
            data = data[8 + size :]
            for kind, _, bytes_, name, expression, refused, alias in json.loads(listed):
                symbols[name] = Symbol(kind, alias, bytes_, name, expression, refused)
    if not parts:
        return ""
    key = hashlib.sha256(b"".join([arch.encode(), *parts])).hexdigest()[:32]
    cubin = disk_cache.kept("emulator", key, lambda folder: (_link(parts, arch, folder), None)).path
    blob, of_all = _Blob(), _present([*symbols.values()], cubin)
    blob.add(cubin)
    blob.add(output.absolute())
    blob.add_piece(cubin.read_bytes())
    for number, one in enumerate(of_all):
        blob.add("symbol", one.kind, number, one.size, one.name)
    if arch == machine.ARCH:
        _describe(blob, str(output), cubin, of_all)
    return _record(blob, of_all, work)


def _link(parts: Sequence[bytes], arch: str, folder: Path) -> Path:
    path = folder / "linked.cubin"
    path.write_bytes(nvrtc.linked(parts, arch))
    return path


def _record(blob: _Blob, symbols: Sequence[Symbol], work: Path) -> str:
    path = work / "kernels.blob"
    path.write_bytes(blob.whole())
    addresses = "\n".join(f"\t.quad {one.mangled}" for one in symbols)
    return f"""
\t.section .rodata.rung_blob,"a",@progbits
\t.balign 8
.Lrung_blob:
\t.incbin "{path}"
.Lrung_blob_end:
\t.section .data.rel.ro.rung,"aw",@progbits
\t.balign 8
.Lrung_addresses:
{addresses}
\t.section rung_modules,"aw",@progbits
\t.balign 8
\t.quad .Lrung_blob, .Lrung_blob_end - .Lrung_blob, .Lrung_addresses
"""


def _compile(
    source: Path, made: Path, found: Sequence[lambdas.Lambda], how: KernelOptions
) -> tuple[Cubin | None, list[Symbol]] | None:
    where = "on the emulator" if how.emulated else "with --device cuda"
    whole = lambdas.with_structs(host_code.with_headers(source, how.include), found, str(source))
    if not how.emulated and (calls := _LIBRARY.search(whole)):
        raise UserError(f"{source}: {calls[1]} is not linked {where}.")
    text = host_code.device_part(whole)
    code = code_only(text)
    for name in ("thrust", "cub") if how.emulated else ():  # what only the host's part calls runs there
        if f"{name}::" not in code and f"namespace {name}" not in code:
            whole = re.sub(rf"^[ \t]*#[ \t]*include[ \t]*<{name}/.*$", "", whole, flags=re.MULTILINE)
    plain = _ALIGNED.sub("", code)
    kernels = set(kernels_in(text))
    templates = host_code.templates_in(code)
    variables, managed = ({*_DECLARED.findall(",".join(of.findall(plain)))} for of in (_VARIABLE, _MANAGED))
    if not how.emulated and managed:
        raise UserError(f"{source}: __managed__ variables are refused {where}: use cudaMallocManaged.")
    wanted: dict[str, tuple[str, str, int]] = {}
    for mangled, kind, size, plain_name in _symbols(made):
        expression = expression_of(plain_name)
        last = _plain(expression)
        if last in templates and "<" not in expression:  # a function of the host's
            continue
        if last in kernels and kind in "tTwWuiI":
            if "{lambda" in plain_name:
                raise UserError(
                    f"{source}: kernel '{last}' takes a lambda that is refused {where}: mark it with __device__, or "
                    "take a struct."
                )
            wanted[mangled] = ("kernel", expression, size)
        elif expression in variables | managed and kind in "bBdDgGsSuVrR":  # a managed name is no expression for NVRTC
            wanted[mangled] = ("variable", mangled if expression in managed else f"&{expression}", size)
    if not wanted and not (how.relocatable and "__device__" in code):
        return None
    if how.emulated and not how.relocatable and all(kind != "kernel" for kind, _, _ in wanted.values()):
        return None, [Symbol(kind, mangled, size, mangled, of) for mangled, (kind, of, size) in wanted.items()]
    expressions = [expression for _, expression, _ in wanted.values()]
    names = tuple(name for name in expressions if expressions.count(name) == 1 and name not in managed)
    # an overload has its mangled name
    needed = frozenset(word for name in names for word in re.findall(r"[A-Za-z_]\w*", name))
    defines = tuple((name, value or "1") for name, _, value in (word.partition("=") for word in how.defines))
    defines += (("register", ""), ("__const__", "const"))  # which nvcc takes
    options = (f"--std={how.standard}", "--lineinfo", *how.more)
    options += ("--relocatable-device-code=true", "--dlink-time-opt") if how.relocatable else ()

    def compiled(only: frozenset[str] | None) -> Cubin:
        text = host_code.device_part(whole, needed, only)
        absent = sorted(set(_RUNTIME.findall(code_only(text))) - _device_runtime())
        declared = "".join(f"template <class... A> __device__ cudaError_t {name}(A...);\n" for name in absent)
        text = f'#include <cuda_device_runtime_api.h>\n{declared}#line 1 "{source}"\n{text}'
        of = tuple(name for name in names if only is None or name[0] == "&" or _plain(name) in only)
        build = Build(text, str(source), of, defines, options, include=how.include, arch_specific=True)
        return nvrtc.compile_cubin(build, how.arch)

    # a GPU's runtime has no place for a reason
    cubin, refused = _without_refused(compiled, sorted(kernels), code, source) if how.emulated else (compiled(None), {})
    every = [
        Symbol(kind, mangled, size, cubin.lowered.get(of, mangled), of, refused.get(_plain(of), ""))
        for mangled, (kind, of, size) in wanted.items()
    ]
    return cubin, every if how.relocatable else _present(every, cubin.path)


def _without_refused(
    compiled: Callable[[frozenset[str] | None], Cubin], kernels: Sequence[str], code: str, source: Path
) -> tuple[Cubin, dict[str, str]]:
    """The kernels that the compiler takes, and why it refuses the others. They are found by halves."""

    def why(some: Sequence[str]) -> dict[str, CompileError]:
        try:
            compiled(frozenset(some))
            return {}
        except CompileError as problem:
            middle = len(some) // 2
            return why(some[:middle]) | why(some[middle:]) if middle else {some[0]: problem}

    def launches(kernel: str) -> bool:
        return "<<<" in code_only(host_code.device_part(code, only=frozenset({kernel})))

    refused = {one: nvrtc.LAUNCHES for one in kernels if launches(one)} if "<<<" in host_code.device_part(code) else {}
    try:
        if len(refused) == len(kernels) > 0:
            raise CompileError(f"{source} is not compiled: {nvrtc.LAUNCHES}")
        return compiled(frozenset({*kernels} - refused.keys()) if refused else None), refused
    except CompileError as problem:
        rest = sorted({*kernels} - refused.keys())
        found = why(rest) if len(rest) > 1 else {}
        refused |= {name: one.reason or first_line(str(one)) for name, one in found.items()}
        if not found or len(refused) == len(kernels):
            raise problem from None
        return compiled(frozenset({*kernels} - refused.keys())), refused


def _plain(expression: str) -> str:
    """A kernel's name without namespaces and template arguments."""
    return re.sub(r"<.*", "", expression, flags=re.DOTALL).rpartition("::")[2]


def _present(symbols: Sequence[Symbol], cubin: Path) -> list[Symbol]:
    """Without functions of the host that have a kernel's name."""
    kernels = {*elf.kernels(cubin.read_bytes())}
    return [one for one in symbols if one.kind == "variable" or one.refused or one.name in kernels]


def program(cubin: Path, symbol: str, source: str, name: str) -> machine.Program:
    """A kernel ready to run; raises an EmulatorFault if it is not executed here."""
    data = cubin.read_bytes()
    of = Cubin(cubin, machine.ARCH, {name: symbol}, {name: elf.resources(data, symbol)}, "")
    return machine.Program(of, _instructions(cubin)[symbol], name, source)


@functools.lru_cache(maxsize=8)
def _instructions(cubin: Path) -> dict[str, list[sass.Instruction]]:
    kernels = elf.kernels(cubin.read_bytes())
    return sass.instructions_of(Cubin(cubin, machine.ARCH, {one: one for one in kernels}, {}, ""))


def _describe(blob: _Blob, source: str, cubin: Path, symbols: Sequence[Symbol]) -> None:
    """The module's memory and its kernels, for the machine."""
    memory = elf.module_memory(cubin.read_bytes())
    own = {one.name: number for number, one in enumerate(symbols) if one.kind == "variable"}
    numbers = {name: n for n, name in enumerate(memory.sections)}
    for name, data in memory.sections.items():
        used = [v.offset + v.size for n, v in memory.variables.items() if v.section == name and n not in own]
        blob.add("section")
        blob.add_piece(data[: max(used, default=0)] if name == _ZEROS else data)
    for section, offset, name, added in memory.placed:
        found = memory.variables.get(name)
        if name in machine.DRIVER:
            blob.add("place", numbers[section], offset, "absolute", machine.DRIVER[name])
        elif name in own:
            blob.add("place", numbers[section], offset, "program", added, own[name])
        elif found and found.section in numbers:
            blob.add("place", numbers[section], offset, "section", found.offset + added, numbers[found.section])
    for name, number in own.items():
        found = memory.variables.get(name)
        if found and found.section in _WITH_VALUES:
            blob.add("initial", numbers[found.section], found.offset, found.size, number)
        if found and found.section == _CONSTANTS:
            blob.add("constant", found.offset, found.size, number)
    for number, one in enumerate(symbols):
        if one.kind == "kernel":
            blob.add("kernel", number, one.size, one.name)
            _describe_kernel(blob, source, cubin, one)


def _describe_kernel(blob: _Blob, source: str, cubin: Path, one: Symbol) -> None:
    if one.refused:
        blob.add(f"kernel '{one.expression}' does not compile: {one.refused.rstrip('.')}")
        return
    try:
        of = program(cubin, one.name, source, one.expression)
    except EmulatorFault as problem:
        blob.add(first_line(str(problem)).rstrip("."))
        return
    blob.add("-")
    memory, found = of.memory, of.resources
    if found.static_shared > DEFAULT_SHARED:
        raise CompileError(
            f"{source}: {demangled(one.name).strip()} has {found.static_shared:,} bytes of __shared__ variables, and "
            f"{DEFAULT_SHARED:,} is the most; take extern __shared__ memory, and cudaFuncSetAttribute with "
            "cudaFuncAttributeMaxDynamicSharedMemorySize."
        )
    blob.add(memory.start, memory.constants, found.static_shared, of.local_bytes, found.registers)
    blob.add(len(memory.parameters), *(word for parameter in memory.parameters for word in parameter))
    blob.add(len(of.shared), *(word for variable in of.shared for word in (variable.offset, variable.plain)))
    places = (_place(one.lines) for one in of.instructions)
    for data in (of.text + "\n", "\n".join(places) + "\n", memory.table):
        blob.add_piece(data if isinstance(data, bytes) else data.encode())


def _place(lines: sass.Stack) -> str:
    """The innermost line of the program's own files."""
    own = (f"{file}:{line}" for file, line in lines if not _is_of_cuda(file))
    return next(own, "")


def _is_of_cuda(file: str) -> bool:
    return any(part in file for part in ("/nvidia/", "/cuda/standard/", "/cccl/", "/usr/local/cuda"))


def _device_runtime() -> set[str]:
    """What kernels may call of the runtime. Members of their classes may call the rest, in the host's part."""
    folders = map(Path, headers.find(nvrtc.version()).folders)
    header = next((f / name for f in folders if (f / (name := "cuda_device_runtime_api.h")).is_file()), None)
    declared: list[str] = _RUNTIME.findall(header.read_text(errors="replace")) if header else []
    return set(declared) - {"cudaDeviceSynchronize"}  # of old architectures


def _symbols(path: Path) -> list[tuple[str, str, int, str]]:
    """Mangled name, kind, size and plain name of what an object defines."""
    done = subprocess.run(["nm", "-S", "--defined-only", str(path)], capture_output=True, text=True, check=True)
    rows = [row for line in done.stdout.splitlines() if len(row := line.split()) == 4]
    names = "\n".join(row[3] for row in rows)
    plain = demangled(names).split("\n")
    return [(row[3], row[2], int(row[1], 16), name) for row, name in zip(rows, plain, strict=False)]


def demangled(names: str) -> str:
    return subprocess.run(["c++filt"], input=names, capture_output=True, text=True, check=True).stdout


def expression_of(demangled: str) -> str:
    """`void sum<float, 256>(float const*)` as `sum<float, 256>`."""
    depth, start = 0, 0
    text = demangled.replace("(anonymous namespace)::", "")
    for i, letter in enumerate(text):
        depth += (letter == "<") - (letter == ">")
        if letter == " " and not depth:
            start = i + 1
        if letter == "(" and not depth:
            return text[start:i]
    return text
