"""Reads untrusted files: only regular files, and only up to a size limit."""

from __future__ import annotations

import json
import os
import reprlib
import stat
from pathlib import Path
from typing import Any

from rung.errors import RungError

TEXT = 1 << 28  # bytes of a text at most
JSON = 1 << 26
_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = 60


def shown(value: object) -> str:
    """An untrusted value, shortened for an error message."""
    try:
        return _SHOWN.repr(value)
    except (ValueError, RecursionError):  # an integer with more digits than Python converts
        return f"a {type(value).__name__}"


def read_bytes(path: Path, most: int = TEXT) -> bytes:
    """The content of a file; a RungError if it is no regular file or has more than `most` bytes. Reading a pipe could
    block, and a device may never end.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise RungError(f"{path} is a pipe or a device; copy its content to a file.")
        # Files in /proc report a size of 0.
        content = file.read(most + 1) if facts.st_size <= most else None
    if content is None or len(content) > most:
        raise RungError(f"{path} has more than {most >> 20:,} MB, too many for its kind; name another file.")
    return content


def read_json(path: Path, remedy: str, most: int = JSON) -> Any:
    """The content of a JSON file; an OSError for a missing file is left to the caller."""
    return parse_json(read_bytes(path, most), str(path), remedy)


def parse_json(content: bytes, origin: str, remedy: str) -> Any:
    try:
        return json.loads(content)
    except RecursionError:
        raise RungError(f"{origin} nests too deeply for JSON; {remedy}.") from None
    except ValueError as error:
        raise RungError(f"{origin} cannot be read as JSON ({error}); {remedy}.") from None
