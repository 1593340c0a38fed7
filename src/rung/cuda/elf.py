"""Reads the sections of an ELF file: the launch limits of a cubin's kernels, and the thread-local symbols of an object
file, which are the shared memory of an emulated kernel.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Attributes of .nv.info: the threads that __launch_bounds__ allows, and those that __block_size__ requires.
_MAX_THREADS, _REQUIRED_THREADS = 0x05, 0x10
_SIZED = 4  # the format of an attribute with a size and that many bytes; the others have two bytes


@dataclass(frozen=True)
class Section:
    name: str
    kind: int
    link: int  # of a symbol table, the section of its names
    entry: int  # bytes of an entry
    data: bytes


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
        found.append(
            Section(data[at : data.index(b"\0", at)].decode(), kind, link, entry, data[offset : offset + length])
        )
    return found


def most_threads(cubin: bytes, symbol: str) -> int | None:
    """The threads per block that the kernel's __launch_bounds__ allows; None if it has none."""
    for section in sections(cubin):
        if section.name == f".nv.info.{symbol}":
            for attribute, value in _attributes(section.data):
                if attribute in (_MAX_THREADS, _REQUIRED_THREADS) and len(value) == 12:
                    x, y, z = struct.unpack("<III", value)
                    return int(x * y * z)
    return None


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(data):
        form, attribute, value = struct.unpack_from("<BBH", data, at)
        at += 4
        size = value if form == _SIZED else 0
        yield attribute, data[at : at + size]
        at += size


_SYMBOL_TABLE, _TLS = 2, 6


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


def shared_symbols(path: Path) -> tuple[SharedSymbol, ...]:
    parts = sections(path.read_bytes())
    found = []
    for part in parts:
        if part.kind != _SYMBOL_TABLE:
            continue
        names = parts[part.link].data
        for at in range(0, len(part.data), part.entry):
            start, info, _, section, value, size = struct.unpack_from("<IBBHQQ", part.data, at)
            if info & 15 != _TLS:
                continue
            name = names[start : names.index(b"\0", start)].decode()
            if not name.startswith("_ZGV") and "rung_emulator" not in name:  # g++'s and the emulator's own
                found.append(SharedSymbol(name, size, section == 0, value))
    return tuple(found)
