"""Reads the sections of an ELF file, and the launch limits that a cubin states for each kernel."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

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
