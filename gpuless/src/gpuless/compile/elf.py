"""Reads the sections of an ELF file: limits, parameters, constants and variables of a cubin's kernels, and the
thread-local symbols of an object file, which are the shared memory of an emulated kernel.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gpuless.launch import Resources

# Attributes of .nv.info: the threads that __launch_bounds__ allows, and those that __block_size__ requires; where the
# parameters lie in constant bank 0, and each one's place there; the bytes of a function's stack, its registers.
_MAX_THREADS, _REQUIRED_THREADS = 0x05, 0x10
_UNKNOWN = 0xFFFFFFFF  # the stack of a kernel that calls itself, or through pointers
_PARAMETERS, _PARAMETER, _FRAME, _STACK, _REGISTERS = 0x0A, 0x17, 0x11, 0x12, 0x2F
_LARGE_PARAMETER = 0x45  # of a kernel with more than 4 KB of them
_MEETINGS = 0x28  # the places of shuffles, votes and what is left of each __syncwarp
_CLUSTER = 0x3D  # the blocks of a cluster that __cluster_dims__ requires
_INFO = ".nv.info."
_SYMBOL_TABLE, _NO_DATA = 2, 8  # kinds of sections
_OBJECT, _FUNCTION = 1, 2  # and of symbols
_CODE_ALIGNED = 128
_PTX = ".nv_debug_ptx_txt"
_ENTRY = 0x10  # in a symbol's visibility: of a kernel
_SIZED = 4  # the format of an attribute with a size and that many bytes; the others have two bytes


@dataclass(frozen=True)
class Section:
    name: str
    kind: int
    link: int  # of a symbol table, the section of its names
    entry: int  # bytes of an entry
    data: bytes
    size: int  # also of a section that the file has no data of


def sections(data: bytes) -> list[Section]:
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    (start,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    rows = [struct.unpack_from("<IIQQQQIIQQ", data, start + i * size) for i in range(count)]
    texts = rows[names][4] if rows else 0
    found = []
    for name, kind, _, _, offset, length, link, _, _, entry in rows:
        at = texts + name
        text = data[at : data.index(b"\0", at)].decode()
        own = b"" if kind == _NO_DATA else data[offset : offset + length]
        found.append(Section(text, kind, link, entry, own, length))
    return found


def most_threads(cubin: bytes, symbol: str) -> int | None:
    """The threads per block that the kernel's __launch_bounds__ allows; None if it has none."""
    for section in sections(cubin):
        if section.name == _INFO + symbol:
            for attribute, value in _attributes(section.data):
                if attribute in (_MAX_THREADS, _REQUIRED_THREADS) and len(value) == 12:
                    x, y, z = struct.unpack("<III", value)
                    return int(x * y * z)
    return None


def cluster(cubin: bytes, symbol: str) -> tuple[int, int, int]:
    """The cluster that __cluster_dims__ requires; zeros if it has none."""
    for section in sections(cubin):
        if section.name == _INFO + symbol:
            for attribute, value in _attributes(section.data):
                if attribute == _CLUSTER and len(value) == 12:
                    x, y, z = struct.unpack("<III", value)
                    return x, y, z
    return 0, 0, 0


def meetings(cubin: bytes) -> dict[str, frozenset[int]]:
    """Of each function that the file describes: where lanes of a warp come together."""
    found = {}
    for section in sections(cubin):
        if section.name.startswith(_INFO):
            places = (value for attribute, value in _attributes(section.data) if attribute == _MEETINGS)
            found[section.name.removeprefix(_INFO)] = frozenset(
                at for some in places for (at,) in struct.iter_unpack("<I", some)
            )
    return found


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(data):
        form, attribute, value = struct.unpack_from("<BBH", data, at)
        at += 4
        size = value if form == _SIZED else 0
        yield attribute, data[at : at + size]
        at += size


@dataclass(frozen=True)
class KernelMemory:
    """What a kernel's launch needs in memory."""

    constants: int  # bytes of bank 0, which has the parameters from `start`
    start: int
    parameters: tuple[tuple[int, int], ...]  # offset from `start` and size of each
    table: bytes  # bank 2
    stack: int  # bytes of a thread, as far as they are known


@dataclass(frozen=True)
class Variable:
    section: str
    offset: int
    size: int


@dataclass(frozen=True)
class ModuleMemory:
    """What all kernels of a cubin share: bank 3 with __constant__ variables, bank 4 with addresses, and __device__
    variables with and without initial values. `placed` says where a variable's address is to be written: the section,
    the offset there, the variable and what is added."""

    sections: dict[str, bytes]
    variables: dict[str, Variable]
    placed: tuple[tuple[str, int, str, int], ...]


SHARED_BY_KERNELS = (".nv.constant3", ".nv.constant4", ".nv.global", ".nv.global.init")


def kernel_memory(cubin: bytes, symbol: str) -> KernelMemory:
    parts = {part.name: part.data for part in sections(cubin)}
    start, found = 0, {}
    for attribute, value in _attributes(parts.get(_INFO + symbol, b"")):
        if attribute == _PARAMETERS:
            start = struct.unpack_from("<H", value, 4)[0]
        elif attribute == _PARAMETER:
            _, number, offset, bits = struct.unpack("<IHHI", value)
            found[number] = (offset, bits >> 18)
        elif attribute == _LARGE_PARAMETER:
            _, number, offset, size, _ = struct.unpack("<IHHHH", value)
            found[number] = (offset, size)
    named = [one.name for one in _symbols(cubin)]
    stacks = [0]
    for attribute, value in _attributes(parts.get(".nv.info", b"")):
        if attribute in (_FRAME, _STACK):
            number, size = struct.unpack("<II", value)
            if size != _UNKNOWN and (named[number] == symbol or named[number].startswith(f"${symbol}$")):
                stacks.append(size)
    constants = len(parts.get(f".nv.constant0.{symbol}", b""))
    in_order = tuple(found[number] for number in sorted(found))
    return KernelMemory(constants, start, in_order, parts.get(f".nv.constant2.{symbol}", b""), max(stacks))


def arch(cubin: bytes) -> str:
    """The architecture that a cubin says it is for, such as sm_80."""
    (flags,) = struct.unpack_from("<I", cubin, 48)
    number = flags >> 8 & 0xFF if cubin[8] >= 8 else flags & 0xFF  # of this version, and before
    return f"sm_{number}"


def reserved_shared(arch: str) -> int:
    """The bytes that the system takes before a block's own shared memory, as addresses and sections count them."""
    return 1024 if int(re.sub(r"\D", "", arch)) >= 90 else 0


def resources(cubin: bytes, symbol: str) -> Resources:
    """What the file itself tells of a kernel: not how much of its stack are spills."""
    parts = {part.name: part for part in sections(cubin)}
    shared = parts.get(f".nv.shared.{symbol}")
    static = max(0, shared.size - reserved_shared(arch(cubin))) if shared else 0
    named, registers = [one.name for one in _symbols(cubin)], 0
    for attribute, value in _attributes(parts[".nv.info"].data if ".nv.info" in parts else b""):
        if attribute == _REGISTERS and named[struct.unpack_from("<I", value)[0]] == symbol:
            registers = struct.unpack_from("<I", value, 4)[0]
    return Resources(registers, static, 0, 0, kernel_memory(cubin, symbol).stack)


def numbers_of(cubin: bytes, names: Collection[str]) -> list[int]:
    """The places of functions in the table of symbols."""
    return [number for number, one in enumerate(_symbols(cubin)) if one.kind == _FUNCTION and one.name in names]


def kernels(cubin: bytes) -> list[str]:
    """The symbols of its kernels."""
    entries = {one.name for one in _symbols(cubin) if one.entry}
    found = [part.name.removeprefix(_INFO) for part in sections(cubin) if part.name.startswith(_INFO)]
    return [name for name in found if name in entries]


class Code(NamedTuple):
    """The machine code of a cubin by addresses: each kernel begins at 0, and the functions that have sections of their
    own lie from FUNCTIONS on."""

    kernels: dict[str, bytes]
    functions: bytes
    starts: dict[str, int]  # of the functions
    taken: frozenset[str]  # functions whose addresses lie in memory

    def at(self, kernel: str, address: int) -> tuple[int, int]:
        """The two words of an instruction."""
        data = self.kernels[kernel] if address < FUNCTIONS else self.functions
        low, high = struct.unpack_from("<QQ", data, address % FUNCTIONS)
        return int(low), int(high)

    def is_large(self) -> bool:
        """Whether a kernel's code is read when it is asked for, and not all at once."""
        return sum(map(len, self.kernels.values())) > _LARGE


FUNCTIONS = 1 << 24
_LARGE = 1 << 17
# What NVIDIA's device runtime brings into a cubin that is linked with it: no code of the user's, and not executed.
_DEVICE_RUNTIME = re.compile(r"cuda[A-Z]|__nv_static_\w*_cuda_device_runtime_cu_")


def code(cubin: bytes) -> Code:
    own, starts, functions = {}, {}, bytearray()
    entries, parts = set(kernels(cubin)), sections(cubin)
    with_runtime = any("_cuda_device_runtime_cu_" in part.name for part in parts)
    for part in parts:
        name = part.name.removeprefix(".text.")
        if name == part.name:
            continue
        if name in entries:
            own[name] = part.data
        elif not (with_runtime and _DEVICE_RUNTIME.match(name)):
            starts[name] = FUNCTIONS + len(functions)
            functions += part.data.ljust(-(-len(part.data) // _CODE_ALIGNED) * _CODE_ALIGNED, b"\0")
    taken = frozenset(name for _, _, name, _ in module_memory(cubin).placed if name in starts)
    return Code(own, bytes(functions), starts, taken)


def module_memory(cubin: bytes) -> ModuleMemory:
    parts = {part.name: part for part in sections(cubin)}
    listed = list(_symbols(cubin))
    placed = []
    for section in SHARED_BY_KERNELS:
        for offset, _, number, added in struct.iter_unpack("<QIIq", _data(parts, f".rela{section}")):
            placed.append((section, offset, listed[number].name, added))
        for offset, _, number in struct.iter_unpack("<QII", _data(parts, f".rel{section}")):  # before sm_90
            (added,) = struct.unpack_from("<q", parts[section].data, offset)
            placed.append((section, offset, listed[number].name, added))
    return ModuleMemory(
        {n: parts[n].data.ljust(parts[n].size, b"\0") if n in parts else b"" for n in SHARED_BY_KERNELS},
        {one.name: Variable(one.section, one.value, one.size) for one in listed if one.kind == _OBJECT},
        tuple(placed),
    )


def _data(parts: Mapping[str, Section], name: str) -> bytes:
    return parts[name].data if name in parts else b""


class _Symbol(NamedTuple):
    name: str
    section: str
    value: int
    size: int
    kind: int
    entry: bool  # of a kernel


def _symbols(data: bytes) -> Iterator[_Symbol]:
    parts = sections(data)
    for part in parts:
        if part.kind == _SYMBOL_TABLE:
            names = parts[part.link].data
            for at in range(0, len(part.data), part.entry):
                start, info, other, section, value, size = struct.unpack_from("<IBBHQQ", part.data, at)
                where = parts[section].name if section < len(parts) else ""
                name, kind = names[start : names.index(b"\0", start)].decode(), info & 15
                yield _Symbol(name, where, value, size, kind, kind == _FUNCTION and bool(other & _ENTRY))


@dataclass(frozen=True)
class SharedSymbol:
    """A `__shared__` variable; `declared` alone (`extern __shared__`) has no size yet."""

    name: str
    size: int
    declared: bool
    offset: int = 0  # in a finished library

    @property
    def plain(self) -> str:
        """`tile` of `_ZZ6kernelE4tile`."""
        for number in re.finditer(r"(?=(\d+)([A-Za-z_]\w*))", self.name):
            length, rest = int(number.group(1)), number.group(2)
            if re.fullmatch(r"(?:_\d+)?", rest[length:]) and len(rest) >= length and self.name.startswith("_Z"):
                return rest[:length]
        return self.name


_SHARED = re.compile(r"\.shared\s+\.align\s+(\d+)\s+\.[bfsu](\d+)\s+([\w$]+)(\[\d*\])?;")


def names_pointers_as_llvm(cubin: bytes) -> bool:
    """Whether the PTX was made by LLVM's back-end, and not by NVIDIA's: Triton's is."""
    return any(part.name == _PTX and b".ptr .global .align 1 " in part.data for part in sections(cubin))


def kernel_shared(cubin: bytes, symbol: str) -> tuple[SharedSymbol, ...]:
    """The `__shared__` variables of a kernel, which ptxas lays out in the order of the PTX that a cubin with lines
    holds; dynamic memory lies behind them."""
    text = next((part.data for part in sections(cubin) if part.name == _PTX), b"")
    ptx = text.replace(b"\0", b"\n").decode(errors="replace")
    start = ptx.find(f".entry {symbol}(")
    following = re.compile(r"^\.?(?:visible |weak )?\.entry ", re.MULTILINE).search(ptx, start + 1)
    body = ptx[start : following.start() if following else len(ptx)]
    found, at, dynamic = [], 0, []
    for align, bits, name, count in _SHARED.findall(ptx):
        if not re.search(rf"{re.escape(name)}\b", body):
            continue
        if count == "[]":
            dynamic.append((int(align), name))
            continue
        size = int(bits) // 8 * int(count.strip("[]") or 1)
        at = -(-at // int(align)) * int(align)
        found.append(SharedSymbol(name, size, False, at))
        at += size
    for align, name in dynamic:
        found.append(SharedSymbol(name, 0, True, -(-at // align) * align))
    return tuple(found)
