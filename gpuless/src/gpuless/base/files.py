"""Reads what users write: files, JSON and whole numbers. Reading and writing never block, and what is read has a size
limit.
"""

from __future__ import annotations

import errno
import json
import os
import reprlib
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO

from gpuless.base.errors import UserError

TEXT = 1 << 28  # bytes of a text at most
JSON = 1 << 26
RUNG = 1 << 20  # of a hand-written rung
DIGITS = 18  # of a whole number: such numbers fit into 64 bits
_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = 60


def shown(value: object) -> str:
    """An untrusted value, shortened for an error message."""
    try:
        return _SHOWN.repr(value)
    except (ValueError, RecursionError):  # an integer with more digits than Python converts
        return f"a {type(value).__name__}"


def opened(path: Path, *, pipes: bool = False) -> BinaryIO:
    """The file for reading; a UserError if it is not regular, since a pipe could block and a device may never end.
    With `pipes`, a pipe is read as far as its writers go; without a writer it is empty.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(kind):
        os.close(descriptor)
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(kind) and not (pipes and stat.S_ISFIFO(kind)):
        os.close(descriptor)
        raise UserError(f"{path} is a pipe or a device; copy its content to a file.")
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "rb")


def read_bytes(path: Path, most: int = TEXT) -> bytes:
    """The content of a regular file; a UserError if it has more than `most` bytes."""
    with opened(path) as file:
        # Files in /proc report a size of 0.
        content = file.read(most + 1) if os.fstat(file.fileno()).st_size <= most else None
    if content is None or len(content) > most:
        raise _too_long(path, most)
    return content


def _too_long(path: Path | str, most: int) -> UserError:
    size = f"{most >> 20:,} MB" if most >= 1 << 20 else f"{most:,} bytes"
    return UserError(f"{path} has more than {size}, too many for its kind; name another file.")


def lines_of(file: IO[bytes], name: str, most: int = TEXT) -> Iterator[bytes]:
    """The lines of an open file, ended by a line feed alone; a UserError one of more than `most` bytes."""
    while line := file.readline(most + 1):
        if len(line) > most:
            raise UserError(f"{name} has a line of more than {most >> 20:,} MB; divide it.")
        yield line


def writing(path: Path, *, append: bool = False) -> IO[str]:
    """The file for writing text; a pipe that nothing reads is an OSError instead of a wait."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC | (os.O_APPEND if append else os.O_TRUNC)
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, "no program reads this pipe", str(path)) from None
        raise
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "w", encoding="utf-8")


def read_json(path: Path, remedy: str, most: int = JSON) -> Any:
    """The content of a JSON file; an OSError for a missing file is left to the caller."""
    return parse_json(read_bytes(path, most), str(path), remedy)


def parse_json(content: bytes, origin: str, remedy: str) -> Any:
    try:
        return json.loads(content)
    except RecursionError:
        raise UserError(f"{origin} nests too deeply for JSON; {remedy}.") from None
    except ValueError as error:
        raise UserError(f"{origin} cannot be read as JSON ({error}); {remedy}.") from None


def read_text(path: Path) -> str:
    """The text of a hand-written rung, from any editor: with lines ending in \\n and without a byte order mark."""
    try:
        text = read_bytes(path, RUNG).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(f"{path}, line {line}: this is not UTF-8; save the file as UTF-8.") from None
    return text


def whole(text: str) -> int | None:
    """The number that ASCII digits write, with a minus before them or without; None where a text is none, or has more
    digits than any size. `str.isdigit` is true for texts that `int` refuses: superscripts, or 5,000 digits."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > DIGITS:
        return None
    return int(text)
