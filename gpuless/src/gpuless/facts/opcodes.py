"""What an opcode is: the rows of opcodes.h, from which the executor of machine code is compiled, too."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).with_name("opcodes.h")
_LIST = re.compile(r'^#define (\w+_WORDS) ((?:"[^"]*"[\s\\]*)+)$', re.MULTILINE)
_ROW = re.compile(r"^(?:OP|ACCESS)\(([^()]*)\)$", re.MULTILINE)
_FIELD = re.compile(r'((?:"[^"]*"\s*)+)|([^,"\s][^,"]*)')


class Opcode(NamedTuple):
    """A row. `interval` counts the clocks for which a warp's instruction occupies its unit in a quarter of a
    multiprocessor, 0 where its shape decides; `way` says how it accesses `space`, which is global, shared, local,
    constant or any."""

    name: str
    handler: str
    prepare: str
    writes: str
    modifiers: str
    group: str
    unit: str
    interval: int
    width: str
    way: str
    space: str
    direction: str

    @property
    def accesses(self) -> tuple[tuple[str, str], ...]:
        """Memories and directions; none where only its addresses tell."""
        if self.space == "any":
            return ()
        if self.direction == "copy":
            return (self.space, "read"), ("shared", "write")
        return ((self.space, "read" if self.direction == "read" else "write"),)


@functools.cache
def table() -> dict[str, Opcode]:
    return {row.name: row for row in _rows()}


def _rows() -> Iterator[Opcode]:
    text = SOURCE.read_text()
    for name, words in _LIST.findall(text):
        text = re.sub(rf"^([^#].*)\b{name}\b", rf'\g<1>"{_joined(words)}"', text, flags=re.MULTILINE)
    for found in _ROW.finditer(text):
        fields = [_joined(quoted) if quoted else plain for quoted, plain in _FIELD.findall(found[1])]
        name, handler, prepare, writes, modifiers, group, unit, interval, width, *access = fields
        way, space, direction = (word.lower().replace("none", "").replace("_", ".") for word in access or ["", "", ""])
        yield Opcode(name, handler, prepare, writes, modifiers, group, unit, int(interval), width, way,
                     space, direction)  # fmt: skip


def _joined(quoted: str) -> str:
    """What the compiler makes of strings beside each other."""
    return "".join(re.findall(r'"([^"]*)"', quoted))


@functools.cache
def row(name: str) -> Opcode | None:
    """The row of an opcode without its modifiers; an opcode of the uniform datapath may have that of the rest."""
    if name in table():
        return table()[name]
    rest = table().get(name.removeprefix("U"))
    return rest._replace(name=name, unit="UNIFORM") if rest and name.startswith("U") else None


def groups() -> tuple[str, ...]:
    """Groups of opcodes in the order of tables."""
    return tuple(dict.fromkeys(entry.group for entry in table().values() if entry.group))


def of_width(width: str) -> tuple[str, ...]:
    return tuple(entry.name for entry in table().values() if entry.width == width)
