"""Reads the thread-local symbols of an object file: a kernel's shared memory."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path

from rung.cuda.elf import sections

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
