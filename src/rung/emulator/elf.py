"""Reads the thread-local symbols of an object file: a kernel's shared memory."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path

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
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{path} is no 64-bit little-endian ELF file")
    (sections_at,) = struct.unpack_from("<Q", data, 40)
    entry_size, count = struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, sections_at + i * entry_size) for i in range(count)]
    found = []
    for _, kind, _, _, offset, size, link, _, _, entry in sections:
        if kind != _SYMBOL_TABLE:
            continue
        strings = sections[link][4]
        for at in range(offset, offset + size, entry):
            name_at, info, _, section, value, symbol_size = struct.unpack_from("<IBBHQQ", data, at)
            if info & 15 != _TLS:
                continue
            start = strings + name_at
            name = data[start : data.index(b"\0", start)].decode()
            if not name.startswith("_ZGV") and "rung_emulator" not in name:  # g++'s and the emulator's own
                found.append(SharedSymbol(name, symbol_size, section == 0, value))
    return tuple(found)
