"""Reads a hand-written rung, from any editor."""

from __future__ import annotations

from pathlib import Path

from rung.errors import RungError
from rung.files import read_bytes

LARGEST = 1 << 20  # bytes of a rung's file


def read(path: Path) -> str:
    """The text of `path`, with lines ending in \\n and without a byte order mark."""
    try:
        text = read_bytes(path, LARGEST).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except OSError as error:
        raise RungError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise RungError(f"{path}, line {line}: this is not UTF-8; save the file as UTF-8.") from None
    return text
