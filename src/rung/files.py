"""Reads files that a stranger may have written: regular ones only, of a bounded size."""

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
    """A value of a stranger's, short enough for a sentence."""
    try:
        return _SHOWN.repr(value)
    except (ValueError, RecursionError):  # a number of more digits than Python writes
        return f"a {type(value).__name__}"


def read_bytes(path: Path, most: int = TEXT) -> bytes:
    """The content of a file; a RungError for what is no regular file, and for more than `most` bytes.

    A pipe would wait for its writer, and a device may never end.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise RungError(f"{path} is a pipe or a device; copy its content to a file.")
        # What /proc holds says that it is empty.
        content = file.read(most + 1) if facts.st_size <= most else None
    if content is None or len(content) > most:
        raise RungError(f"{path} has more than {most >> 20:,} MB, which none of its kind has; name another file.")
    return content


def read_json(path: Path, mend: str, most: int = JSON) -> Any:
    """What a file of JSON holds; the OSError of a file that is not there is left to the caller."""
    return parse_json(read_bytes(path, most), str(path), mend)


def parse_json(content: bytes, origin: str, mend: str) -> Any:
    try:
        return json.loads(content)
    except RecursionError:
        raise RungError(f"{origin} nests too deeply for JSON; {mend}.") from None
    except ValueError as error:
        raise RungError(f"{origin} cannot be read as JSON ({error}); {mend}.") from None
